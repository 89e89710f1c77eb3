// Starting ops/attention/sm90/attention_hopper.cuh, one file of instances a dtype; which tensors the
// copy engine takes, for it and for the backward's kernel.
#pragma once

#include <climits>

#include "backends/cuda/host/tensor_map.h"
#include "core/op.h"

namespace pestle::ops {
struct AttentionInputs;
}

namespace pestle::cuda {

struct AttentionJob;

// [B, H, S, columns] as the copy engine sees it: columns, rows and heads, of which those of a batch
// begin `batch_heads` behind those of the one before, whatever lies between.
struct RowBoxes {
  BoxedTensor boxes;
  int batch_heads = 0;
  const char* why = "";  // it can't be seen so
};

inline RowBoxes row_boxes(const TensorView& t, int rows_of_box) {
  const int64_t bytes = dtype_bytes(t.dtype);
  const int64_t batches = t.shape[0], heads = t.shape[1], rows = t.shape[2];
  const int64_t batch = t.strides[0] * bytes, row = t.strides[2] * bytes;
  const int64_t head = (heads > 1 ? t.strides[1] : t.strides[0]) * bytes;
  RowBoxes r;
  BoxedTensor& b = r.boxes;
  const bool many = batches > 1 || heads > 1;
  if ((many && head <= 0) || (rows > 1 && row <= 0)) {
    r.why = "repeats heads or rows by a stride of 0, or goes backwards";
  } else if (batches > 1 && (batch < 0 || batch % head != 0)) {
    r.why = "has batches at no multiple of the distance of heads";
  } else if (batches > 1 && (batches - 1) * (batch / head) + heads > INT_MAX) {
    r.why = "has batches too far apart";
  }
  if (*r.why) return r;
  if (batches > 1) r.batch_heads = static_cast<int>(batch / head);
  b.data = t.data;
  b.element_bytes = static_cast<int>(bytes);
  b.size[0] = t.shape[3];
  b.size[1] = rows;
  b.size[2] = (batches - 1) * r.batch_heads + heads;
  // A dimension of one element has no stride that matters.
  b.stride_bytes[0] = rows > 1 ? row : (t.shape[3] * bytes + 15) / 16 * 16;
  b.stride_bytes[1] = many ? head : b.stride_bytes[0];
  b.box[0] = 64;
  b.box[1] = rows_of_box;
  r.why = refuse_boxes(b);
  return r;
}

// The same for kernels: a batch begins so many heads behind the one before.
struct BoxedRows {
  CUtensorMap map;
  int batch_heads = 0;
};

inline Status box_rows(const TensorView& t, int rows_of_box, BoxedRows* to) {
  const RowBoxes r = row_boxes(t, rows_of_box);
  to->batch_heads = r.batch_heads;
  return make_tensor_map(r.boxes, &to->map);
}

Status start_attention_hopper_bf16(const Call& call, const ops::AttentionInputs& in,
                                   const AttentionJob& job);
Status start_attention_hopper_f16(const Call& call, const ops::AttentionInputs& in,
                                  const AttentionJob& job);

}  // namespace pestle::cuda
