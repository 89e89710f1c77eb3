#include "files/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "files/input_file.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr std::string_view kNotesMagic = "pestle notes 1 ";

Status write_all(int fd, const std::string& path, uint64_t offset,
                 std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return io_error(path, "write", errno);
    }
    if (written == 0) return io_error(path, "write", ENOSPC);
    offset += static_cast<uint64_t>(written);
    data = data.subspan(static_cast<size_t>(written));
  }
  return {};
}

// A link is written through, so that the temporary file lies beside the real one.
std::string resolve(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const auto target = std::filesystem::weakly_canonical(path, error);
  return error ? path : target.string();
}

Status check_space(int fd, const std::string& path, uint64_t needed) {
  struct statvfs info = {};
  struct stat file = {};
  if (fstatvfs(fd, &info) != 0 || fstat(fd, &file) != 0) return {};  // the write itself will tell
  const uint64_t free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  const uint64_t have = static_cast<uint64_t>(file.st_blocks) * 512;
  if (needed <= free + have) return {};
  return disk_full(path, needed, free);
}

std::vector<std::string> full_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t end = 0; (end = text.find('\n')) != std::string_view::npos;) {
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

std::string partial_path(const std::string& path) { return resolve(path) + ".partial"; }

Status refuse_existing(const std::string& path, bool may_replace, std::string_view role) {
  const std::string another = "name another " + std::string(role);
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode)) {
    return {Code::kIoError, path + ": exists and is no regular file; " + another};
  }
  if (may_replace) return {};
  return {Code::kIoError, path + ": exists; pass --force to replace it or " + another};
}

Status disk_full(const std::string& path, uint64_t needed, uint64_t free) {
  return {Code::kIoError, path + ": disk full: the output takes " + human_bytes(needed) +
                              ", only " + human_bytes(free) +
                              " are free; free some space or write to another disk"};
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::create(const std::string& path,
                                                       const AtomicFileOptions& options) {
  std::unique_ptr<AtomicFile> file(new AtomicFile);
  file->path_ = resolve(path);
  file->partial_ = partial_path(path);
  file->folder_ = std::filesystem::path(file->path_).parent_path().string();
  if (file->folder_.empty()) file->folder_ = ".";
  file->bytes_ = options.bytes;
  file->overwrite_ = options.overwrite;
  PESTLE_TRY(file->refuse_overwrite());
  PESTLE_TRY(file->open_locked());
  if (Status status = file->start_or_resume(options); !status.ok()) {
    file->discard();
    return status;
  }
  return file;
}

Status AtomicFile::refuse_overwrite() const { return refuse_existing(path_, overwrite_, "output"); }

Status AtomicFile::open_locked() {
  // Another run may rename or remove the file between open and lock: then try again.
  for (int attempt = 0; attempt < 100; ++attempt) {
    fd_ = open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) return io_error(partial_, "create", errno);
    struct stat opened = {};
    struct stat named = {};
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      fd_ = -1;
      return {Code::kIoError, partial_ + ": another run is writing it; wait for that one to end"};
    }
    if (fstat(fd_, &opened) == 0 && stat(partial_.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
      return {};
    }
    close(fd_);
    fd_ = -1;
  }
  return {Code::kIoError, partial_ + ": keeps changing under this run; name another output"};
}

Status AtomicFile::start_or_resume(const AtomicFileOptions& options) {
  const std::string first_line = std::string(kNotesMagic) + options.fingerprint;
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return io_error(partial_, "read", errno);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (options.resume && size > bytes_) {
    std::string text(size - bytes_, '\0');
    PESTLE_TRY(read_at(bytes_, std::as_writable_bytes(std::span(text))));
    std::vector<std::string> lines = full_lines(text);
    if (!lines.empty() && lines[0] == first_line) {
      notes_end_ = bytes_;
      for (const std::string& line : lines) notes_end_ += line.size() + 1;
      lines.erase(lines.begin());
      notes_found_ = std::move(lines);
      if (ftruncate(fd_, static_cast<off_t>(notes_end_)) != 0) {
        return io_error(partial_, "shorten", errno);
      }
      return {};
    }
  }
  if (ftruncate(fd_, 0) != 0) return io_error(partial_, "empty", errno);
  PESTLE_TRY(check_space(fd_, partial_, bytes_));
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) return io_error(partial_, "size", errno);
  notes_end_ = bytes_;
  return note(first_line);
}

Status AtomicFile::write_at(uint64_t offset, std::span<const std::byte> data) {
  if (offset > bytes_ || data.size() > bytes_ - offset) {
    return {Code::kInternal, partial_ + ": write past the planned end; please report this"};
  }
  return write_all(fd_, partial_, offset, data);
}

Status AtomicFile::read_at(uint64_t offset, std::span<std::byte> data) const {
  while (!data.empty()) {
    const ssize_t got = pread(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return io_error(partial_, "read", got < 0 ? errno : EIO);
    offset += static_cast<uint64_t>(got);
    data = data.subspan(static_cast<size_t>(got));
  }
  return {};
}

void AtomicFile::start_writeback(uint64_t offset, uint64_t bytes) const {
  sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  SYNC_FILE_RANGE_WRITE);
}

Status AtomicFile::note(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  const std::lock_guard lock(notes_mutex_);
  PESTLE_TRY(write_all(fd_, partial_, notes_end_, std::as_bytes(std::span(text))));
  notes_end_ += text.size();
  return {};
}

Status AtomicFile::commit() {
  Status status;
  struct stat old = {};
  if (stat(path_.c_str(), &old) == 0 && fchmod(fd_, old.st_mode & 0777) != 0) {
    status = io_error(partial_, "set the permissions of", errno);
  }
  if (status.ok() && ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
    status = io_error(partial_, "shorten", errno);
  }
  if (status.ok() && fsync(fd_) != 0) status = io_error(partial_, "sync", errno);
  if (status.ok()) status = rename_into_place();
  if (!status.ok()) {
    discard();
    return status;
  }
  close(fd_);
  fd_ = -1;
  // The rename is done; a folder that can't be synced (some network disks) can't undo it.
  const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

Status AtomicFile::rename_into_place() {
  if (!overwrite_) {
    // The name may have been taken since create(); this rename refuses, where disks know it.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) {
      return {};
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EEXIST) {
      return io_error(partial_, "rename", errno);
    }
    PESTLE_TRY(refuse_overwrite());
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) return io_error(partial_, "rename", errno);
  return {};
}

void AtomicFile::discard() {
  if (fd_ < 0) return;
  unlink(partial_.c_str());
  close(fd_);  // after unlink: the lock guards the name until it is gone
  fd_ = -1;
}

}  // namespace pestle::files
