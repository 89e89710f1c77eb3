// An output file that appears under its name complete or not at all.
//
// Bytes go to PATH.partial, beside PATH; commit() syncs and renames it. Any other end removes it.
// Only a killed process leaves PATH.partial behind: the next run continues it (resume) or starts
// over; a lock on it, which the kernel drops with the process, keeps two runs apart.
// Notes about finished work follow the data in the same file (so there is one thing to clean up)
// and are cut off by commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace pestle::files {

struct AtomicFileOptions {
  uint64_t bytes = 0;  // final size
  bool overwrite = false;
  bool resume = false;
  // One line that names input, plan and options: work is continued only when it is the same.
  std::string fingerprint = {};
};

// Where the bytes of an output of that name go before it is complete.
std::string partial_path(const std::string& path);
// kIoError when something lies under the name that may not be replaced. `role`: "output".
Status refuse_existing(const std::string& path, bool may_replace, std::string_view role);
Status disk_full(const std::string& path, uint64_t needed, uint64_t free);

class AtomicFile {
 public:
  static Result<std::unique_ptr<AtomicFile>> create(const std::string& path,
                                                    const AtomicFileOptions& options);
  ~AtomicFile() { discard(); }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // From any thread, at any offset below `bytes`.
  Status write_at(uint64_t offset, std::span<const std::byte> data);
  Status read_at(uint64_t offset, std::span<std::byte> data) const;
  // Asks the kernel to start writing a finished range to the disk, so that commit() waits less.
  void start_writeback(uint64_t offset, uint64_t bytes) const;

  // Appends one line (no newline in it) of notes; a torn last line is dropped by the next run.
  Status note(std::string_view line);
  // The lines that an interrupted run with the same fingerprint left.
  const std::vector<std::string>& notes_found() const { return notes_found_; }

  // fsync, rename, fsync of the folder. After an error the file is discarded.
  Status commit();
  // Removes the temporary file. No effect after commit().
  void discard();

 private:
  AtomicFile() = default;
  Status open_locked();
  Status start_or_resume(const AtomicFileOptions& options);
  Status refuse_overwrite() const;
  Status rename_into_place();

  std::string path_;
  std::string partial_;
  std::string folder_;
  uint64_t bytes_ = 0;
  bool overwrite_ = false;
  int fd_ = -1;
  std::mutex notes_mutex_;
  uint64_t notes_end_ = 0;
  std::vector<std::string> notes_found_;
};

}  // namespace pestle::files
