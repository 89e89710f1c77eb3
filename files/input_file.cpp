#include "files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace pestle::files {
namespace {

constexpr uint64_t kMaxTextBytes = 100'000'000;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string next_step(int error_number) {
  switch (error_number) {
    case ENOENT: return "check the path";
    case EACCES:
    case EPERM: return "check the permissions of the file and of its folder";
    case ENOSPC:
    case EDQUOT: return "free some space or write to another disk";
    case EROFS: return "write to another disk";
    default: return "check the disk and the path";
  }
}

std::string identity_of(const struct stat& info) {
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) + ":" +
         std::to_string(info.st_size) + ":" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

}  // namespace

Status io_error(const std::string& path, const std::string& verb, int error_number) {
  return {Code::kIoError, path + ": cannot " + verb + ": " + std::strerror(error_number) + "; " +
                              next_step(error_number)};
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::swap(InputFile& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
}

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  // O_NONBLOCK so that a named pipe is refused below rather than waited for.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return io_error(path, "open", errno);
  struct stat info = {};
  if (fstat(file.fd_, &info) != 0) return io_error(path, "read", errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kIoError, path + ": not a regular file; name a file");
  }
  file.size_ = static_cast<uint64_t>(info.st_size);
  file.identity_ = identity_of(info);
  return file;
}

Status InputFile::read_at(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path_, "read", errno);
    if (got == 0) {
      return {Code::kIoError, path_ + ": ends at byte " + std::to_string(offset) + ", but had " +
                                  std::to_string(size_) +
                                  " bytes when it was opened; it was cut short while it was read, "
                                  "so get it again"};
    }
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status InputFile::check_unchanged() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return io_error(path_, "read", errno);
  if (identity_of(info) == identity_) return {};
  return {Code::kIoError, path_ +
                              ": was changed while it was read, so the result would mix two "
                              "versions; run the command again when nothing writes the file"};
}

Status FileRange::read(uint64_t at, std::span<std::byte> to) const {
  if (to.empty()) return {};
  if (at > size_ || to.size() > size_ - at) {
    return {Code::kInternal, file_->path() + ": read past the end of a tensor; please report this"};
  }
  return file_->read_at(offset_ + at, to);
}

Result<std::string> read_text_file(const std::string& path) {
  const Result<InputFile> file = InputFile::open(path);
  PESTLE_TRY(file.status());
  if (file.value().size() > kMaxTextBytes) {
    return Status(Code::kCorruptFile, path + ": has " + std::to_string(file.value().size()) +
                                          " bytes, too many for a text; check the path");
  }
  std::string text(file.value().size(), '\0');
  PESTLE_TRY(file.value().read_at(0, std::as_writable_bytes(std::span(text))));
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return text;
}

}  // namespace pestle::files
