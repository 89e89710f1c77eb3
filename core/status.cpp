#include "core/status.h"

namespace pestle {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kUnsupported: return "unsupported";
    case Code::kNotCompiled: return "not compiled";
    case Code::kOutOfMemory: return "out of memory";
    case Code::kDeviceError: return "device error";
    case Code::kIoError: return "io error";
    case Code::kCorruptFile: return "corrupt file";
    case Code::kInterrupted: return "interrupted";
    case Code::kInternal: return "internal error";
  }
  return "unknown code";
}

}  // namespace pestle
