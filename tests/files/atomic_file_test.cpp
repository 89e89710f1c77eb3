#include "files/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace pestle::files {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pestle-atomic-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/out.bin";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<AtomicFile> create(AtomicFileOptions options) {
    if (options.fingerprint.empty()) options.fingerprint = "f";
    auto file = AtomicFile::create(path_, options);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(file.value());
  }
  static Status put(AtomicFile& file, uint64_t offset, const std::string& text) {
    return file.write_at(offset, std::as_bytes(std::span(text)));
  }
  std::string contents(const std::string& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  // Leaves the temporary file as a kill does: a copy of it survives, the lock does not.
  void kill(std::unique_ptr<AtomicFile> file) {
    fs::copy_file(path_ + ".partial", folder_ + "/copy");
    file.reset();
    fs::rename(folder_ + "/copy", path_ + ".partial");
  }

  std::string folder_;
  std::string path_;
};

TEST_F(AtomicFileTest, AppearsOnlyAtCommit) {
  auto file = create({.bytes = 6});
  ASSERT_TRUE(put(*file, 3, "def").ok());
  ASSERT_TRUE(put(*file, 0, "abc").ok());
  ASSERT_TRUE(file->note("done 1").ok());
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(contents(path_), "abcdef");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, DiscardLeavesNothing) {
  { auto file = create({.bytes = 6}); }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(AtomicFileTest, DiscardKeepsTheOldFile) {
  std::ofstream(path_) << "old";
  { auto file = create({.bytes = 6, .overwrite = true}); }
  EXPECT_EQ(contents(path_), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, RefusesToOverwriteWithoutForce) {
  std::ofstream(path_) << "old";
  const auto file = AtomicFile::create(path_, {.bytes = 1});
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("--force"), std::string::npos);
  EXPECT_EQ(contents(path_), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, RefusesANameTakenDuringTheRun) {
  auto file = create({.bytes = 3});
  std::ofstream(path_) << "other";
  EXPECT_FALSE(file->commit().ok());
  EXPECT_EQ(contents(path_), "other");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, ForceReplacesAndKeepsPermissions) {
  std::ofstream(path_) << "old";
  fs::permissions(path_, fs::perms(0600));
  auto file = create({.bytes = 3, .overwrite = true});
  ASSERT_TRUE(put(*file, 0, "new").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(contents(path_), "new");
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AtomicFileTest, ResumeFindsNotesAndData) {
  auto file = create({.bytes = 6});
  ASSERT_TRUE(put(*file, 0, "abc").ok());
  ASSERT_TRUE(file->note("one").ok());
  ASSERT_TRUE(file->note("two").ok());
  kill(std::move(file));
  file = create({.bytes = 6, .resume = true});
  EXPECT_EQ(file->notes_found(), (std::vector<std::string>{"one", "two"}));
  std::string data(3, ' ');
  ASSERT_TRUE(file->read_at(0, std::as_writable_bytes(std::span(data))).ok());
  EXPECT_EQ(data, "abc");
  ASSERT_TRUE(put(*file, 3, "def").ok());
  ASSERT_TRUE(file->note("three").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(contents(path_), "abcdef");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, TornLastNoteIsDropped) {
  auto file = create({.bytes = 2});
  ASSERT_TRUE(file->note("one").ok());
  kill(std::move(file));
  std::ofstream(path_ + ".partial", std::ios::app | std::ios::binary) << "tw";
  file = create({.bytes = 2, .resume = true});
  EXPECT_EQ(file->notes_found(), (std::vector<std::string>{"one"}));
  ASSERT_TRUE(file->note("three").ok());
  kill(std::move(file));
  file = create({.bytes = 2, .resume = true});
  EXPECT_EQ(file->notes_found(), (std::vector<std::string>{"one", "three"}));
}

TEST_F(AtomicFileTest, OtherFingerprintOrNoResumeStartsOver) {
  auto file = create({.bytes = 2});
  ASSERT_TRUE(file->note("one").ok());
  kill(std::move(file));
  file = create({.bytes = 2, .resume = true, .fingerprint = "other"});
  EXPECT_TRUE(file->notes_found().empty());
  kill(std::move(file));
  file = create({.bytes = 2, .resume = false, .fingerprint = "other"});
  EXPECT_TRUE(file->notes_found().empty());
  file.reset();
  EXPECT_EQ(entries(), 0u);
}

TEST_F(AtomicFileTest, TwoRunsAtOnceAreKeptApart) {
  auto file = create({.bytes = 2});
  const auto second = AtomicFile::create(path_, {.bytes = 2});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("another run"), std::string::npos);
  EXPECT_TRUE(file->commit().ok());
}

TEST_F(AtomicFileTest, WritesThroughALink) {
  fs::create_directory(folder_ + "/real");
  std::ofstream(folder_ + "/real/out.bin") << "old";
  fs::create_symlink("real/out.bin", path_);
  auto file = create({.bytes = 3, .overwrite = true});
  EXPECT_TRUE(fs::exists(folder_ + "/real/out.bin.partial"));
  ASSERT_TRUE(put(*file, 0, "new").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(contents(folder_ + "/real/out.bin"), "new");
}

TEST_F(AtomicFileTest, MissingFolderAndOddTargets) {
  const auto missing = AtomicFile::create(folder_ + "/no/out", {.bytes = 1});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kIoError);
  EXPECT_NE(missing.status().message().find("No such file"), std::string::npos);
  const auto folder = AtomicFile::create(folder_, {.bytes = 1, .overwrite = true});
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("no regular file"), std::string::npos);
}

TEST_F(AtomicFileTest, MoreThanTheDiskHoldsIsRefusedAtOnce) {
  const auto file = AtomicFile::create(path_, {.bytes = uint64_t{1} << 58});
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("disk full"), std::string::npos);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(AtomicFileTest, WritePastTheEndIsADefect) {
  auto file = create({.bytes = 2});
  EXPECT_EQ(put(*file, 1, "ab").code(), Code::kInternal);
  EXPECT_EQ(put(*file, 3, "").code(), Code::kInternal);
}

}  // namespace
}  // namespace pestle::files
