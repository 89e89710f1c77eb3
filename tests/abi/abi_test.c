/* A C11 program calls the ABI: introspection, the typed wrapper, the generic call, refusals. */
#include <stdio.h>
#include <string.h>

#include "pestle/ops.h"

static int failures = 0;

#define EXPECT(condition)                                     \
  do {                                                        \
    if (!(condition)) {                                       \
      printf("line %d: %s is false\n", __LINE__, #condition); \
      ++failures;                                             \
    }                                                         \
  } while (0)

static pestle_tensor tensor(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  pestle_tensor t;
  memset(&t, 0, sizeof(t));
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  t.shape = shape;
  return t;
}

static void quantises(void) {
  float x[2][4] = {{448.0f, -224.0f, 0.0f, 1.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
  unsigned char q[2][4];
  float scale[2];
  const int64_t shape[2] = {2, 4};
  const int64_t scale_shape[2] = {2, 1};
  pestle_tensor tx = tensor(x, PESTLE_F32, 2, shape);
  pestle_tensor tq = tensor(q, PESTLE_E4M3, 2, shape);
  pestle_tensor ts = tensor(scale, PESTLE_F32, 2, scale_shape);
  memset(q, 0xAA, sizeof(q));
  EXPECT(pestle_quantize_fp8(&tx, NULL, &tq, &ts, NULL, "row", NULL, 0, 0, NULL) == PESTLE_OK);
  EXPECT(scale[0] == 1.0f && q[0][0] == 0x7E && q[0][1] == 0xF6 && q[0][2] == 0);
  EXPECT(q[0][3] == 0x38 && q[1][0] == 0);

  EXPECT(pestle_quantize_fp8(&tx, NULL, &tq, &ts, NULL, "rows", NULL, 0, 0, NULL) ==
         PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "granularity is 'rows', expected one of") != NULL);
  EXPECT(pestle_quantize_fp8(&tx, NULL, &tx, &ts, NULL, "row", NULL, 0, 0, NULL) ==
         PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "quantize_fp8: q has dtype f32") != NULL);
}

static void options_and_choice(void) {
  const int64_t shape[2] = {2, 4};
  const int64_t one = 1;
  pestle_tensor x = tensor(NULL, PESTLE_BF16, 2, shape);
  pestle_tensor q = tensor(NULL, PESTLE_E4M3, 2, shape);
  pestle_tensor s = tensor(NULL, PESTLE_F32, 1, &one);
  pestle_arg args[4];
  pestle_call_options options;
  const char* impl = NULL;
  int64_t workspace = -1;
  const pestle_op* op = pestle_find_op("quantize_fp8");
  args[0] = pestle_tensor_arg(&x);
  args[1] = pestle_tensor_arg(NULL);
  args[2] = pestle_tensor_arg(&q);
  args[3] = pestle_tensor_arg(&s);
  memset(&options, 0, sizeof(options));
  options.size = sizeof(options);
  options.impl = "reference";
  EXPECT(pestle_choose(op, args, 4, &options, &impl, &workspace) == PESTLE_OK);
  EXPECT(impl != NULL && strcmp(impl, "reference") == 0 && workspace == 0);
  options.impl = "cpu/no_such";
  EXPECT(pestle_choose(op, args, 4, &options, &impl, &workspace) == PESTLE_INVALID_ARGUMENT);
  EXPECT(pestle_call(op, args, 4, NULL) == PESTLE_INVALID_ARGUMENT); /* data is NULL */
  EXPECT(pestle_call(NULL, args, 4, NULL) == PESTLE_INVALID_ARGUMENT);
  EXPECT(pestle_call(op, args, 99, NULL) == PESTLE_INVALID_ARGUMENT);
  options.size = 4;
  EXPECT(pestle_choose(op, args, 4, &options, NULL, NULL) == PESTLE_INVALID_ARGUMENT);
}

/* A call like an earlier one is answered from memory; what differs must still count. */
static void repeated_calls(void) {
  float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8] = {0, 1, 0, 1, 0, 1, 0, 1}, out[8];
  char label[16] = "silu";
  int64_t shape[2] = {2, 4};
  const int64_t columns[2] = {1, 2};
  pestle_tensor tx = tensor(x, PESTLE_F32, 2, shape);
  pestle_tensor to = tensor(out, PESTLE_F32, 2, shape);
  pestle_arg args[5];
  pestle_call_options options;
  const char* impl = NULL;
  int64_t workspace = -1;
  int i;
  const pestle_op* op = pestle_find_op("softmax");
  args[0] = pestle_tensor_arg(&tx);
  args[1] = pestle_tensor_arg(NULL);
  args[2] = pestle_tensor_arg(&to);
  args[3] = pestle_int_arg(-1);
  args[4] = pestle_float_arg(1);
  for (i = 0; i < 3; ++i) {
    EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK);
    EXPECT(out[0] == 0.25f && out[7] == 0.25f);
  }
  tx.data = y; /* other data, another factor */
  args[4] = pestle_float_arg(0);
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && out[1] == 0.25f);
  args[4] = pestle_float_arg(1);
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && out[1] > 0.36f && out[0] < 0.14f);
  EXPECT(pestle_call(op, args, 4, NULL) == PESTLE_OK && out[1] > 0.36f);
  args[3] = pestle_int_arg(0); /* another dimension */
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && out[0] == 0.5f && out[1] == 0.5f);
  args[3] = pestle_int_arg(2);
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_INVALID_ARGUMENT);
  args[3] = pestle_int_arg(-1);
  to.strides = columns; /* other strides, the same numbers at other places */
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && out[2] > 0.36f && out[0] < 0.14f);
  to.strides = NULL;
  to.data = y; /* in place, and overlapping */
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && y[1] > 0.36f);
  EXPECT(pestle_choose(op, args, 5, NULL, &impl, &workspace) == PESTLE_OK); /* from memory, too */
  EXPECT(impl != NULL && strcmp(impl, "cpu/softmax_simd") == 0 && workspace >= 0);
  to.data = y + 1;
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "out overlaps x") != NULL);
  EXPECT(pestle_choose(op, args, 5, NULL, &impl, &workspace) == PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "out overlaps x") != NULL);
  to.data = NULL;
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "data pointer is NULL") != NULL);
  to.data = out;
  shape[1] = 3; /* the caller's arrays may change */
  EXPECT(pestle_call(op, args, 5, NULL) == PESTLE_OK && out[5] > 0.2f);
  memset(&options, 0, sizeof(options));
  options.size = sizeof(options);
  options.impl = "cpu/no_such";
  EXPECT(pestle_call(op, args, 5, &options) == PESTLE_INVALID_ARGUMENT);
  options.impl = "reference";
  EXPECT(pestle_choose(op, args, 5, &options, &impl, NULL) == PESTLE_OK);
  EXPECT(strcmp(impl, "reference") == 0); /* a forced one is not in memory */

  op = pestle_find_op("activation_backward"); /* a label in memory that changes */
  for (i = 0; i < 2; ++i) {
    const char* const labels[2] = {"silu", "gelu"};
    pestle_tensor tg = tensor(x, PESTLE_F32, 2, shape);
    pestle_tensor td = tensor(y, PESTLE_F32, 2, shape);
    float slope;
    x[0] = 1;
    y[0] = 1;
    memcpy(label, labels[i], 5);
    args[0] = pestle_tensor_arg(&tg);
    args[1] = pestle_tensor_arg(&td);
    args[2] = pestle_tensor_arg(&to);
    args[3] = pestle_choice_arg(label);
    EXPECT(pestle_call(op, args, 4, NULL) == PESTLE_OK);
    slope = out[0];
    EXPECT(i == 0 ? slope > 0.92f && slope < 0.93f : slope > 1.08f && slope < 1.09f);
  }
}

static void reference_in_double(void) {
  float x[2] = {0.0f, -1.0f};
  double exact[2] = {0, 0}, terms[2] = {0, 0};
  float rounded[2];
  const int64_t shape[2] = {1, 2};
  pestle_tensor tx = tensor(x, PESTLE_F32, 2, shape);
  pestle_tensor out = tensor(exact, PESTLE_F64, 2, shape);
  pestle_arg args[3];
  const pestle_op* op = pestle_find_op("softmax");
  args[0] = pestle_tensor_arg(&tx);
  args[1] = pestle_tensor_arg(NULL);
  args[2] = pestle_tensor_arg(&out);
  EXPECT(pestle_reference(op, args, 3, 0) == PESTLE_OK);
  EXPECT(exact[0] > 0.73105857863 && exact[0] < 0.73105857864); /* 1 / (1 + exp(-1)) */
  out.data = terms;
  EXPECT(pestle_reference(op, args, 3, 1) == PESTLE_OK);
  EXPECT(terms[0] >= exact[0] && terms[1] >= exact[1]);
  out = tensor(rounded, PESTLE_F32, 2, shape);
  EXPECT(pestle_reference(op, args, 3, 0) == PESTLE_INVALID_ARGUMENT);
  EXPECT(strstr(pestle_last_error(), "out is bounded by the contract") != NULL);
  EXPECT(pestle_reference(NULL, args, 3, 0) == PESTLE_INVALID_ARGUMENT);
}

static void introspection(void) {
  size_t i, a;
  EXPECT(pestle_abi_version() == PESTLE_ABI_VERSION);
  EXPECT(pestle_version()[0] != 0);
  EXPECT(pestle_op_count() > 0);
  EXPECT(pestle_op_at(pestle_op_count()) == NULL);
  EXPECT(pestle_find_op("no_such_op") == NULL && pestle_find_op(NULL) == NULL);
  for (i = 0; i < pestle_op_count(); ++i) {
    const pestle_op* op = pestle_op_at(i);
    char* json = NULL;
    EXPECT(pestle_find_op(pestle_op_name(op)) == op);
    EXPECT(pestle_op_impl_count(op) >= 1);
    for (a = 0; a < pestle_op_arg_count(op); ++a) {
      pestle_arg_info info;
      memset(&info, 0, sizeof(info));
      info.size = sizeof(info);
      EXPECT(pestle_op_arg(op, a, &info) == PESTLE_OK && info.name[0] != 0);
      EXPECT(info.size == sizeof(info));
    }
    EXPECT(pestle_op_json(op, &json) == PESTLE_OK && json != NULL && json[0] == '{');
    pestle_free(json);
  }
  {
    /* A caller built against an older, shorter struct gets just that much. */
    struct {
      uint32_t size;
      uint32_t padding;
      const char* name;
      unsigned char canary;
    } older = {16, 0, NULL, 0x5A};
    EXPECT(pestle_op_arg(pestle_op_at(0), 0, (pestle_arg_info*)&older) == PESTLE_OK);
    EXPECT(older.name != NULL && older.canary == 0x5A);
  }
}

int main(void) {
  introspection();
  quantises();
  options_and_choice();
  reference_in_double();
  repeated_calls();
  printf("%s\n", failures == 0 ? "the C ABI holds" : "FAILED");
  return failures != 0;
}
