// Clocks and throttling by NVML, looked up at run time: it comes with the driver, not with us.
#include <dlfcn.h>

#include <string>

#include "backends/cuda/host/runtime.h"

namespace pestle::cuda {
namespace {

// NVML's C interface, as far as it is used; every function returns 0 for success.
struct Nvml {
  using Handle = void*;
  int (*init)() = nullptr;
  int (*handle)(const char* bus, Handle* device) = nullptr;
  int (*clock)(Handle device, int which, unsigned* mhz) = nullptr;
  int (*throttle)(Handle device, unsigned long long* reasons) = nullptr;
  int (*temperature)(Handle device, int sensor, unsigned* degrees) = nullptr;
  int (*driver)(char* text, unsigned length) = nullptr;
  bool ready = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    ready = find(init, "nvmlInit_v2") && find(handle, "nvmlDeviceGetHandleByPciBusId_v2") &&
            find(clock, "nvmlDeviceGetClockInfo") &&
            find(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons") &&
            find(temperature, "nvmlDeviceGetTemperature") &&
            find(driver, "nvmlSystemGetDriverVersion") && init() == 0;
  }
};

const Nvml& nvml() {
  static const Nvml loaded;
  return loaded;
}

struct Reason {
  uint64_t bit;
  const char* name;
};
constexpr Reason kReasons[] = {{0x4, "power cap"},
                               {0x8, "hardware slowdown"},
                               {0x20, "thermal"},
                               {0x40, "hardware thermal"},
                               {0x80, "power brake"}};

constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;

}  // namespace

std::string driver_text() {
  char text[96] = {};
  return nvml().ready && nvml().driver(text, sizeof(text)) == 0 ? text : "";
}

std::string Clocks::throttled() const {
  std::string text;
  for (const Reason& reason : kReasons) {
    if (throttle_reasons & reason.bit)
      text += (text.empty() ? "" : ", ") + std::string(reason.name);
  }
  return text;
}

Clocks clocks(int device) {
  Clocks result;
  if (!nvml().ready) return result;
  const auto info = device_info(device);
  Nvml::Handle handle = nullptr;
  if (!info.ok() || nvml().handle(info.value().bus.c_str(), &handle) != 0) return result;
  unsigned sm = 0;
  unsigned memory = 0;
  unsigned degrees = 0;
  unsigned long long reasons = 0;
  result.known = nvml().clock(handle, kSmClock, &sm) == 0 &&
                 nvml().clock(handle, kMemoryClock, &memory) == 0 &&
                 nvml().throttle(handle, &reasons) == 0;
  (void)nvml().temperature(handle, 0, &degrees);
  result.sm_mhz = static_cast<int>(sm);
  result.memory_mhz = static_cast<int>(memory);
  result.temperature = static_cast<int>(degrees);
  result.throttle_reasons = reasons;
  return result;
}

}  // namespace pestle::cuda
