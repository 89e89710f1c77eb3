// A file that is only read, by offset. Nothing of it is mapped: a file that is cut short or whose
// disk goes away while it is read gives an error in words, where a mapping would end the host's
// process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle::files {

class InputFile {
 public:
  InputFile() = default;
  InputFile(InputFile&& other) noexcept { swap(other); }
  InputFile& operator=(InputFile&& other) noexcept {
    swap(other);
    return *this;
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  static Result<InputFile> open(const std::string& path);

  // From any thread. kIoError when the file is shorter now than when it was opened.
  Status read_at(uint64_t offset, std::span<std::byte> to) const;
  // kIoError when size or time of change are not those of open() any more.
  Status check_unchanged() const;

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // What tells this version of the file from another: device, inode, size, time of change.
  const std::string& identity() const { return identity_; }

 private:
  void swap(InputFile& other) noexcept;

  int fd_ = -1;
  uint64_t size_ = 0;
  std::string path_;
  std::string identity_;
};

// Bytes of a file that outlives this.
class FileRange {
 public:
  FileRange() = default;
  FileRange(const InputFile& file, uint64_t offset, uint64_t size)
      : file_(&file), offset_(offset), size_(size) {}

  uint64_t size() const { return size_; }
  FileRange first(uint64_t bytes) const { return {*file_, offset_, bytes}; }
  // `at` and what is read lie within the range.
  Status read(uint64_t at, std::span<std::byte> to) const;

 private:
  const InputFile* file_ = nullptr;
  uint64_t offset_ = 0;
  uint64_t size_ = 0;
};

// A small file whole, without the byte order mark that some editors put first.
Result<std::string> read_text_file(const std::string& path);

// "PATH: cannot VERB: TEXT OF ERRNO; NEXT STEP"
Status io_error(const std::string& path, const std::string& verb, int error_number);

}  // namespace pestle::files
