// Status: how every layer below the bindings says that something went wrong. No exceptions.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace pestle {

// The numbers are part of the C ABI (pestle.h) and never change meaning.
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's arguments break the contract
  kUnsupported = 2,      // within the contract, but no implementation here takes it
  kNotCompiled = 3,      // this build lacks the backend
  kOutOfMemory = 4,
  kDeviceError = 5,
  kIoError = 6,      // the operating system refused: permission, disk full, missing file
  kCorruptFile = 7,  // a file breaks its format's rules
  kInterrupted = 8,  // stopped on request, nothing half-written is left
  kInternal = 9,     // a defect in Pestle
};

std::string_view code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
inline Status unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }

// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return value_; }
  const T& value() const { return value_; }

 private:
  Status status_;
  T value_{};
};

}  // namespace pestle

// Returns the status of `expr` to the caller unless it is ok.
#define PESTLE_TRY(expr)                                                  \
  do {                                                                    \
    if (::pestle::Status status_ = (expr); !status_.ok()) return status_; \
  } while (0)
