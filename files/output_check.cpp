#include "files/output_check.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "files/atomic_file.h"
#include "files/input_file.h"

namespace pestle::files {
namespace {

namespace fs = std::filesystem;

// The file that a path leads to, links followed, whether or not it exists.
fs::path real_path(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? fs::path(path) : real;
}

// Two paths have the same key if they are the same file, by another spelling, a link or a hard
// link.
std::string file_key(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0) {
    return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  }
  return real_path(path).string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = real_path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

class Checker {
 public:
  Status add_input(const std::string& path) {
    seen_.emplace(file_key(path), "input");
    return {};
  }

  Status add_output(const WrittenPath& output) {
    PESTLE_TRY(add_distinct(output.path, output.role, output.path));
    return add_distinct(partial_path(output.path), "unfinished " + output.role, output.path);
  }

 private:
  Status add_distinct(const std::string& path, const std::string& role, const std::string& named) {
    const auto [other, is_new] = seen_.emplace(file_key(path), role);
    if (is_new) return {};
    return invalid_argument(named + ": " + role + " and " + other->second +
                            " are the same file; name another " +
                            (role.starts_with("unfinished ") ? role.substr(11) : role));
  }

  std::map<std::string, std::string> seen_;  // key of a file -> what it is
};

Status check_writable(const WrittenPath& output) {
  PESTLE_TRY(refuse_existing(output.path, output.may_replace, output.role));
  struct stat info = {};
  const std::string folder = folder_of(output.path);
  if (stat(folder.c_str(), &info) != 0) return io_error(output.path, "create", errno);
  if (access(folder.c_str(), W_OK | X_OK) != 0) return io_error(output.path, "create", errno);
  return {};
}

// All outputs of one disk together; what a killed run left is overwritten or continued.
Status check_room(const std::vector<WrittenPath>& outputs) {
  struct Disk {
    uint64_t needed = 0;
    uint64_t free = 0;
    std::string path;
  };
  std::map<dev_t, Disk> disks;
  for (const WrittenPath& output : outputs) {
    if (output.is_planned_only || output.bytes == 0) continue;
    const std::string folder = folder_of(output.path);
    struct stat info = {};
    struct statvfs space = {};
    if (stat(folder.c_str(), &info) != 0 || statvfs(folder.c_str(), &space) != 0) continue;
    Disk& disk = disks[info.st_dev];
    if (disk.path.empty()) {
      disk.free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
      disk.path = output.path;
    }
    disk.needed += output.bytes;
    if (stat(partial_path(output.path).c_str(), &info) == 0)
      disk.free += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  for (const auto& [device, disk] : disks) {
    if (disk.needed <= disk.free) continue;
    return disk_full(disk.path, disk.needed, disk.free);
  }
  return {};
}

}  // namespace

Status check_outputs(const std::vector<std::string>& inputs,
                     const std::vector<WrittenPath>& outputs) {
  Checker checker;
  for (const std::string& input : inputs) PESTLE_TRY(checker.add_input(input));
  for (const WrittenPath& output : outputs) PESTLE_TRY(checker.add_output(output));
  for (const WrittenPath& output : outputs) {
    if (!output.is_planned_only) PESTLE_TRY(check_writable(output));
  }
  return check_room(outputs);
}

}  // namespace pestle::files
