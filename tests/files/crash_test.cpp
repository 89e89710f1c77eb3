// The command line killed at any moment, or on a full disk: the old file stays, a resumed run gives
// the same bytes, nothing but the named .partial is ever beside the output.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/files/test_models.h"

namespace pestle::files {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKills = 60;

std::string binary() {
  const char* path = std::getenv("PESTLE_BIN");
  return path != nullptr ? path : "build/bin/pestle";
}

pid_t start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  static std::string program;
  program = binary();
  argv.push_back(program.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return child;
}

// Exit code, or -signal.
int finish(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int run(const std::vector<std::string>& arguments) { return finish(start(arguments)); }

class CrashTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<TestTensor> tensors = {weight("embed.weight", {64, 256})};
    for (int i = 0; i < 12; ++i) {
      tensors.push_back(weight("blocks." + std::to_string(i) + ".fc.weight", {512, 512}));
    }
    save_model(in_, tensors);
    ASSERT_EQ(run(arguments({"--force"}, expected_)), 0) << "is PESTLE_BIN set?";
  }
  std::vector<std::string> arguments(const std::vector<std::string>& more, const std::string& out) {
    std::vector<std::string> all = {"quantize", in_, out, "--format", "nvfp4", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  double seconds_of_a_run() {
    const auto begin = Clock::now();
    EXPECT_EQ(run(arguments({"--force"}, out_)), 0);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  TempFolder folder_;
  std::string in_ = folder_ / "in.safetensors";
  std::string expected_ = folder_ / "expected.safetensors";
  std::string out_ = folder_ / "out.safetensors";
};

TEST_F(CrashTest, KilledAtRandomMoments) {
  const double whole = seconds_of_a_run();
  const std::string wanted = contents(expected_);
  ASSERT_EQ(contents(out_), wanted);
  std::mt19937 random(20261121);
  std::uniform_real_distribution<double> moment(0, whole);
  int killed = 0;
  int resumable = 0;
  for (int i = 0; i < kKills || killed < 50; ++i) {
    ASSERT_LT(i, 10 * kKills) << "the runs end before they are killed";
    std::ofstream(out_, std::ios::trunc) << "old";
    // Every third run is itself a resumed one.
    const pid_t child = start(arguments({"--force", i % 3 == 2 ? "--resume" : "--force"}, out_));
    std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    kill(child, SIGKILL);
    const int code = finish(child);
    if (code == 0) {
      ASSERT_EQ(contents(out_), wanted);
      continue;
    }
    ASSERT_EQ(code, -SIGKILL);
    ++killed;
    const std::string now = contents(out_);
    ASSERT_TRUE(now == "old" || now == wanted) << "half-written output";
    std::vector<std::string> names = folder_.names();
    const bool partial = std::erase(names, "out.safetensors.partial") == 1;
    resumable += partial;
    ASSERT_EQ(names, (std::vector<std::string>{"expected.safetensors", "in.safetensors",
                                               "out.safetensors"}));
    if (i % 3 == 1) continue;  // leave it for the next run to resume or to start over
    ASSERT_EQ(run(arguments({"--force", "--resume"}, out_)), 0);
    ASSERT_EQ(contents(out_), wanted);
    ASSERT_EQ(folder_.names().size(), 3u);
  }
  EXPECT_GT(resumable, 5) << "too few kills hit a run that was writing";
}

TEST_F(CrashTest, InterruptLeavesNothing) {
  // Spread over a run's time: under a sanitizer on a busy machine much of it is the start.
  constexpr int kMoments = 40;
  const double apart = seconds_of_a_run() / kMoments;
  int interrupted = 0;
  for (int i = 0; i < kMoments; ++i) {
    std::ofstream(out_, std::ios::trunc) << "old";
    const pid_t child = start(arguments({"--force"}, out_));
    std::this_thread::sleep_for(std::chrono::duration<double>(apart * i));
    kill(child, i % 2 == 0 ? SIGINT : SIGTERM);
    const int code = finish(child);
    ASSERT_EQ(folder_.names().size(), 3u);
    if (code == 0) continue;
    // Before its handler is set the process just ends; then 18 is "interrupted".
    ASSERT_TRUE(code == 18 || code == -SIGINT || code == -SIGTERM) << code;
    interrupted += code == 18;
    ASSERT_EQ(contents(out_), "old");
  }
  EXPECT_GT(interrupted, 0);
}

// Runs `script` with a tmpfs of 2 MiB at $DISK, as root or in a user namespace.
int on_small_disk(const std::string& script, const std::string& folder) {
  const std::string disk = folder + "/disk";
  std::filesystem::create_directory(disk);
  const std::string inner = "export DISK=" + disk +
                            "; mount -t tmpfs -o size=2m tmpfs $DISK || exit 99; (" + script +
                            "); code=$?; umount $DISK; exit $code";
  const std::string mode = geteuid() == 0 ? "--mount" : "--map-root-user --mount";
  const int status = std::system(("unshare " + mode + " sh -c '" + inner + "'").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(CrashTest, DiskFullFromTheStart) {
  save_model(in_, {weight("a.weight", {1024, 2048})});
  const std::string script =
      "echo old > $DISK/out; head -c 1500000 /dev/zero > $DISK/filler; " + binary() + " quantize " +
      in_ + " $DISK/out --format nvfp4 --force -q 2> " + (folder_ / "message") +
      "; [ $? = 16 ] && [ \"$(cat $DISK/out)\" = old ] && [ \"$(ls $DISK | wc -l)\" = 2 ]";
  EXPECT_EQ(on_small_disk(script, folder_.path()), 0) << contents(folder_ / "message");
  EXPECT_NE(contents(folder_ / "message").find("disk full"), std::string::npos);
}

TEST_F(CrashTest, DiskThatFillsDuringTheRun) {
  // Another process takes all space as soon as the run has started to write. On a busy machine the
  // run may be over before that one looks: then once more.
  constexpr int kTooLate = 77;
  const std::string over = folder_ / "over";
  const std::string script =
      "rm -f " + over +
      "; echo old > $DISK/out; "
      "(while [ ! -e $DISK/out.partial ] && [ ! -e " +
      over +
      " ]; do :; done; "
      "cat /dev/zero > $DISK/filler 2>/dev/null) & " +
      binary() + " quantize " + in_ + " $DISK/out --format nvfp4 --force -q 2> " +
      (folder_ / "message") + "; code=$?; touch " + over + "; wait; [ $code != 0 ] || exit " +
      std::to_string(kTooLate) +
      "; [ $code = 16 ] && [ \"$(cat $DISK/out)\" = old ] && [ \"$(ls $DISK | wc -l)\" = 2 ]";
  int code = kTooLate;
  for (int i = 0; i < 20 && code == kTooLate; ++i) code = on_small_disk(script, folder_.path());
  EXPECT_EQ(code, 0) << contents(folder_ / "message");
  // By the system while writing, or by the look at the disk before, if that came after the other.
  const std::string message = contents(folder_ / "message");
  EXPECT_TRUE(message.find("No space left") != std::string::npos ||
              message.find("disk full") != std::string::npos)
      << message;
}

TEST_F(CrashTest, ExitCodesOfErrors) {
  std::ofstream(folder_ / "text") << "this is not a model at all";
  EXPECT_EQ(run({"quantize", folder_ / "text", out_, "--format", "fp8"}), 17);
  EXPECT_EQ(run({"quantize", folder_ / "none", out_, "--format", "fp8"}), 16);
  EXPECT_EQ(run({"quantize", in_, out_, "--format", "fp9"}), 11);
  EXPECT_EQ(run({"quantize", in_, in_, "--format", "fp8", "--force"}), 11);
  EXPECT_EQ(run({"quantize", in_, out_, "--format", "fp8-row", "--layout", "comfy"}), 12);
  EXPECT_EQ(run({"quantize", in_, expected_, "--format", "fp8"}), 16);
  EXPECT_EQ(run({"quantize", in_, out_, "--no-such-option"}), 2);
  EXPECT_EQ(run({"inspect", in_}), 0);
  EXPECT_EQ(run({"diff", in_, expected_, "--max-error", "0.01"}), 1);
  EXPECT_EQ(run({"diff", in_, expected_, "--max-error", "0.2"}), 0);
}

}  // namespace
}  // namespace pestle::files
