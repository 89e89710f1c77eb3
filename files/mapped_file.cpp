#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace pestle::files {
namespace {

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

}  // namespace

Status io_error(const std::string& path, const std::string& verb, int error_number) {
  return {Code::kIoError, path + ": cannot " + verb + ": " + std::strerror(error_number) + "; " +
                              next_step(error_number)};
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::swap(MappedFile& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK so that a named pipe is refused below rather than waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error(path, "open", errno);
  struct stat info = {};
  MappedFile file;
  file.path_ = path;
  Status status;
  if (fstat(fd, &info) != 0) {
    status = io_error(path, "read", errno);
  } else if (!S_ISREG(info.st_mode)) {
    status = {Code::kIoError, path + ": not a regular file; name a file"};
  } else if (info.st_size > 0) {
    file.size_ = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      status = io_error(path, "map", errno);
    } else {
      file.data_ = static_cast<const std::byte*>(data);
    }
  }
  ::close(fd);
  if (!status.ok()) return status;
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  file.identity_ = std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) + ":" +
                   std::to_string(info.st_size) + ":" + std::to_string(info.st_mtim.tv_sec) + "." +
                   std::to_string(info.st_mtim.tv_nsec);
  return file;
}

void prefetch_pages(std::span<const std::byte> range) {
  if (range.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(range.data()) & ~(page - 1);
  const auto last = reinterpret_cast<uintptr_t>(range.data()) + range.size();
#ifdef MADV_POPULATE_READ
  if (madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_READ) == 0) return;
#endif
  madvise(reinterpret_cast<void*>(first), last - first, MADV_WILLNEED);
}

void release_pages(std::span<const std::byte> range) {
  if (range.empty()) return;
  madvise(const_cast<std::byte*>(range.data()), range.size(), MADV_DONTNEED);
}

}  // namespace pestle::files
