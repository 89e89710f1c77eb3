// A whole file mapped read-only. Its pages are the page cache's: they count as no private memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace pestle::files {

class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  static Result<MappedFile> open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // What tells this version of the file from another: device, inode, size, time of change.
  std::string identity() const { return identity_; }
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }

 private:
  void swap(MappedFile& other) noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  std::string path_;
  std::string identity_;
};

// Faults the pages of `range` in by one system call rather than one by one; a hint, never fails.
void prefetch_pages(std::span<const std::byte> range);
// Takes the pages of `range` out of this process; they stay cached and come back when read.
void release_pages(std::span<const std::byte> range);

// "PATH: cannot VERB: TEXT OF ERRNO; NEXT STEP"
Status io_error(const std::string& path, const std::string& verb, int error_number);

}  // namespace pestle::files
