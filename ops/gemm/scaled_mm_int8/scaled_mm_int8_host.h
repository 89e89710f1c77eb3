// scaled_mm_int8, granularity=host: a scale known on the host becomes two of a tensor in the
// workspace, scale and 1, which change no bit of f32(acc) * scale.
#pragma once

#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_spec.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops::scaled_mm_int8 {

inline constexpr int kScaleArg = arg_index(spec, "scale_a");
inline constexpr int kHostScale = arg_index(spec, "host_scale");

inline std::string refuse_host_scale(const Call& call) {
  return call.has(kScaleArg) ? "" : "granularity=host: another implementation's";
}
inline std::string refuse_device_scales(const Call& call) {
  return call.has(kScaleArg) ? "is for granularity=host" : "";
}

// Where the scales are put: 8 bytes.
inline float* host_scale_memory(const Call& call) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(call.workspace) + 63) &
                                  ~uintptr_t{63});
}

// The call with them.
inline Status run_with_scales(const Call& call, float* scales) {
  InnerCall inner(call, spec.name);
  for (const Arg& arg : spec.args) inner.pass(arg.name);
  const int64_t one[1] = {1};
  for (int i = 0; i < 2; ++i) {
    TensorView t = make_view(scales + i, DType::kF32, 1, one);
    t.device = call.tensor(0).device;
    inner.set(i == 0 ? "scale_a" : "scale_b", t);
  }
  inner.set("granularity", std::string_view("tensor"));
  char* rest = reinterpret_cast<char*>(scales) + 256;
  return inner.run(rest, static_cast<char*>(call.workspace) + call.workspace_bytes - rest);
}

}  // namespace pestle::ops::scaled_mm_int8
