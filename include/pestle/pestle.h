/* Pestle's C ABI: the one interface that stays compatible.
 *
 * - Nothing throws or aborts across it; every function that can fail returns a pestle_status and
 *   leaves a sentence in pestle_last_error() of the calling thread.
 * - Thread-safe: any function, any thread.
 * - Memory is the caller's: tensors, outputs, workspace, stream. A call neither allocates device
 *   memory nor synchronises.
 * - Structs begin with their size, so that they may grow: set it with sizeof.
 *
 * pestle/ops.h adds one typed inline function per op; pestle/pestle.hpp wraps all of it in RAII. */
#ifndef PESTLE_PESTLE_H_
#define PESTLE_PESTLE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define PESTLE_API
#else
#define PESTLE_API __attribute__((visibility("default")))
#endif

/* Grows by one whenever something here changes; programs built against an older one go on working.
 */
#define PESTLE_ABI_VERSION 2

typedef enum pestle_status {
  PESTLE_OK = 0,
  PESTLE_INVALID_ARGUMENT = 1, /* the arguments break the op's contract */
  PESTLE_UNSUPPORTED = 2,      /* within the contract, but no implementation here takes it */
  PESTLE_NOT_COMPILED = 3,
  PESTLE_OUT_OF_MEMORY = 4,
  PESTLE_DEVICE_ERROR = 5,
  PESTLE_IO_ERROR = 6,
  PESTLE_CORRUPT_FILE = 7,
  PESTLE_INTERRUPTED = 8,
  PESTLE_INTERNAL = 9
} pestle_status;

typedef enum pestle_dtype {
  PESTLE_F32 = 1,
  PESTLE_F16 = 2,
  PESTLE_BF16 = 3,
  PESTLE_F64 = 4,
  PESTLE_E4M3 = 5,
  PESTLE_E5M2 = 6,
  PESTLE_E8M0 = 7,
  PESTLE_U8 = 8,
  PESTLE_I8 = 9,
  PESTLE_I16 = 10,
  PESTLE_U16 = 11,
  PESTLE_I32 = 12,
  PESTLE_U32 = 13,
  PESTLE_I64 = 14,
  PESTLE_U64 = 15,
  PESTLE_BOOL = 16
} pestle_dtype;

/* DLPack's numbers. */
typedef enum pestle_device_type { PESTLE_CPU = 1, PESTLE_CUDA = 2 } pestle_device_type;

/* A DLPack-shaped view. `strides` counts elements and may be NULL for row-major; any strides and
 * any byte offset are accepted. Up to 8 dimensions. */
typedef struct pestle_tensor {
  void* data;
  int32_t dtype;
  int32_t device_type; /* 0 reads as PESTLE_CPU */
  int32_t device_index;
  int32_t rank;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} pestle_tensor;

typedef enum pestle_kind {
  PESTLE_ABSENT = 0, /* an optional argument left out */
  PESTLE_TENSOR = 1,
  PESTLE_TENSOR_LIST = 2,
  PESTLE_INT = 3,
  PESTLE_FLOAT = 4,
  PESTLE_BOOL_VALUE = 5,
  PESTLE_CHOICE = 6
} pestle_kind;

/* One argument of pestle_call. Inputs and outputs alike are given as views. */
typedef struct pestle_arg {
  int32_t kind;
  int32_t count; /* PESTLE_TENSOR_LIST: how many */
  union {
    const pestle_tensor* tensor; /* one, or the first of a list */
    int64_t i;                   /* PESTLE_INT, PESTLE_BOOL_VALUE */
    double f;
    const char* choice; /* the label */
  } value;
} pestle_arg;

typedef struct pestle_call_options {
  uint32_t size;
  void* stream; /* cudaStream_t; NULL is the default stream */
  void* workspace;
  int64_t workspace_bytes;
  const char* impl; /* NULL: the best; else this implementation or an error */
} pestle_call_options;

typedef struct pestle_op pestle_op; /* opaque, lives as long as the library */

/* ---- the library ---- */
PESTLE_API uint32_t pestle_abi_version(void);
PESTLE_API const char* pestle_version(void);
PESTLE_API const char* pestle_status_name(pestle_status status);
/* The sentence of this thread's last failure; "" before the first. Valid until the next one. */
PESTLE_API const char* pestle_last_error(void);
/* CPU threads of one call, the caller included, 1024 at most; 0 means one per core. */
PESTLE_API void pestle_set_threads(int32_t count);
/* Narrows CPU code to "scalar", "avx2", "avx512" or "best". For tests. */
PESTLE_API pestle_status pestle_set_cpu_isa(const char* name);
/* Choices that `pestle tune` measured on a GPU, in place of earlier ones: reads the file once. What
 * the environment's PESTLE_TUNED names is read at start-up. Not while other threads run ops. */
PESTLE_API pestle_status pestle_load_tuned(const char* path);

/* ---- calling ops ---- */
PESTLE_API size_t pestle_op_count(void);
PESTLE_API const pestle_op* pestle_op_at(size_t index);
/* NULL if there is no such op. */
PESTLE_API const pestle_op* pestle_find_op(const char* name);
/* `args` in the contract's order; trailing optional ones may be left off. */
PESTLE_API pestle_status pestle_call(const pestle_op* op, const pestle_arg* args, size_t count,
                                     const pestle_call_options* options);
/* Which implementation would run, and the workspace it wants. `impl` may be NULL. The data pointers
 * are not read; they may be NULL. */
PESTLE_API pestle_status pestle_choose(const pestle_op* op, const pestle_arg* args, size_t count,
                                       const pestle_call_options* options, const char** impl,
                                       int64_t* workspace_bytes);
/* Every implementation's verdict on a call, the one that would run first: a JSON list of {"id",
 * "takes_it", "reason", "plan"}. Free the text with pestle_free. */
PESTLE_API pestle_status pestle_why(const pestle_op* op, const pestle_arg* args, size_t count,
                                    char** json);
/* Runs the definition of right on host memory. Outputs that the contract bounds are given as f64
 * tensors, whatever their dtype in a call, and get the exact value, or, if `sum_magnitudes` is not
 * 0, the sum of |terms| that their bound counts with (docs/contract.md). Slow; it allocates. */
PESTLE_API pestle_status pestle_reference(const pestle_op* op, const pestle_arg* args, size_t count,
                                          int32_t sum_magnitudes);

/* ---- introspection: the contract, as data ---- */
typedef struct pestle_arg_info {
  uint32_t size;
  const char* name;
  int32_t kind; /* pestle_kind */
  int32_t is_output;
  int32_t is_optional;
  const char* dtypes;     /* "f32|bf16|f16"; see docs/contract.md for the notation */
  const char* shape;      /* "M, cdiv(K,16)" */
  const char* by;         /* choice argument that selects the alternative of dtypes and shape */
  const char* present_if; /* condition: part of the call exactly when it holds */
  const char* alias;      /* argument whose memory the output may be */
  const char* choices;    /* "a|b|c" */
  double default_value;
  const char* doc;
} pestle_arg_info;

typedef struct pestle_impl_info {
  uint32_t size;
  const char* id;
  int32_t device_type;
  int32_t min_compute_capability;
} pestle_impl_info;

PESTLE_API const char* pestle_op_name(const pestle_op* op);
PESTLE_API const char* pestle_op_doc(const pestle_op* op);
PESTLE_API size_t pestle_op_arg_count(const pestle_op* op);
PESTLE_API pestle_status pestle_op_arg(const pestle_op* op, size_t index, pestle_arg_info* info);
PESTLE_API size_t pestle_op_impl_count(const pestle_op* op);
PESTLE_API pestle_status pestle_op_impl(const pestle_op* op, size_t index, pestle_impl_info* info);
/* The whole contract as JSON, cases included: what `pestle ops NAME --json` prints. Free the text
 * with pestle_free. */
PESTLE_API pestle_status pestle_op_json(const pestle_op* op, char** json);
PESTLE_API void pestle_free(void* memory);

/* ---- whole files ---- */
/* Called between pieces of work; return 0 to go on, anything else to stop (PESTLE_INTERRUPTED,
 * with nothing half-written left). */
typedef int (*pestle_progress)(void* user, const char* stage, uint64_t done_bytes,
                               uint64_t total_bytes);
/* verb: "quantize", "dequantize", "inspect" or "diff"; options and report are JSON, described in
 * docs/files.md. `report` may be NULL; free it with pestle_free. */
PESTLE_API pestle_status pestle_file(const char* verb, const char* options_json,
                                     pestle_progress progress, void* user, char** report);

/* One tensor of a safetensors file, row-major without gaps. */
typedef struct pestle_file_tensor {
  const char* name;
  const char* dtype; /* as safetensors spells it: "BF16", "F8_E4M3" */
  int32_t rank;
  const int64_t* shape;
  void* data; /* pestle_save_tensors reads it, pestle_load_tensors fills it */
} pestle_file_tensor;

/* Writes a safetensors file, complete or not at all. Options may be NULL, or JSON:
 * {"metadata": {text: text}, "force": true to replace a file, "max_shard_bytes": 0}. */
PESTLE_API pestle_status pestle_save_tensors(const char* path, const pestle_file_tensor* tensors,
                                             size_t count, const char* options_json,
                                             pestle_progress progress, void* user);
/* What is in a file, an index or a folder: {"tensors": [{"name", "dtype", "shape"}...],
 * "metadata": {}}. Free the text with pestle_free. */
PESTLE_API pestle_status pestle_list_tensors(const char* path, char** json);
/* Fills the memory of each tensor; dtypes and shapes must be the file's. */
PESTLE_API pestle_status pestle_load_tensors(const char* path, const pestle_file_tensor* tensors,
                                             size_t count, pestle_progress progress, void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PESTLE_PESTLE_H_ */
