#include "core/machine.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "core/dispatch.h"

namespace pestle {
namespace {

constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;

std::atomic<uint64_t> g_generation{0};
std::atomic<Isa> g_allowed{Isa::kAvx512};
std::atomic<CudaProbe> g_cuda_probe{nullptr};

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "?";
}

Isa best_isa() {
  static const Isa best = [] {
    const auto targets = static_cast<int64_t>(hwy::SupportedTargets());
    if (targets & kAvx512Targets) return Isa::kAvx512;
    return targets & HWY_AVX2 ? Isa::kAvx2 : Isa::kScalar;
  }();
  return best;
}

Machine this_machine() {
  return {.isa = std::min(best_isa(), g_allowed.load(std::memory_order_relaxed)),
          .compute_capability = 0};
}

Machine machine_for(Device device) {
  Machine machine = this_machine();
  const CudaProbe probe = g_cuda_probe.load(std::memory_order_acquire);
  if (device.type == DeviceType::kCuda && probe != nullptr) {
    machine.compute_capability = probe(device.index);
  }
  return machine;
}

void set_cuda_probe(CudaProbe probe) { g_cuda_probe.store(probe, std::memory_order_release); }

Status set_isa(std::string_view name) {
  Isa wanted = best_isa();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == isa_name(isa)) wanted = isa;
  }
  if (name != "best" && name != isa_name(wanted)) {
    return invalid_argument("instruction set '" + std::string(name) +
                            "' is unknown: use scalar, avx2, avx512 or best");
  }
  if (wanted > best_isa()) {
    return unsupported("this CPU has no " + std::string(name) + "; its best is " +
                       std::string(isa_name(best_isa())));
  }
  g_allowed = wanted;
  int64_t disabled = 0;
  if (wanted < Isa::kAvx512) disabled |= kAvx512Targets;
  if (wanted < Isa::kAvx2) disabled |= HWY_AVX2;
  hwy::DisableTargets(disabled);
  // At once: Highway would choose again in the first call, and while one thread does, others may
  // run the best code for a moment.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  ++g_generation;
  return {};
}

void forget_choices() { ++g_generation; }

uint64_t isa_generation() { return g_generation.load(std::memory_order_relaxed); }

}  // namespace pestle
