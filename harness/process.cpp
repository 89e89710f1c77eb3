#include "harness/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

extern char** environ;

namespace pestle::harness {
namespace {

std::vector<char*> c_argv(const std::vector<std::string>& argv) {
  std::vector<char*> result;
  for (const std::string& word : argv) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

Status cannot_start(const std::vector<std::string>& argv, int error) {
  return {Code::kIoError, "'" + argv[0] + "' cannot be started: " + std::strerror(error)};
}

int64_t private_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::strtoll(line.c_str() + 8, nullptr, 10) * 1024;
  }
  return 0;
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Result<ProcessRun> run_process(const std::vector<std::string>& argv, bool watch_memory) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  ProcessRun run;
  pid_t pid = 0;
  const auto start = std::chrono::steady_clock::now();
  const int error =
      posix_spawnp(&pid, argv[0].c_str(), &actions, nullptr, c_argv(argv).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return cannot_start(argv, error);
  std::atomic<bool> done{false};
  std::thread watcher;
  if (watch_memory) {
    watcher = std::thread([&] {
      while (!done) {
        run.peak_private_bytes = std::max(run.peak_private_bytes, private_bytes(pid));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  done = true;
  if (watcher.joinable()) watcher.join();
  run.exit_code = exit_code(status);
  return run;
}

Status LineWorker::start(const std::vector<std::string>& argv) {
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
    return {Code::kIoError, std::string("no pipe: ") + std::strerror(errno)};
  }
  // A worker that died shows as a failed write, not as the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const int error =
      posix_spawnp(&pid_, argv[0].c_str(), &actions, nullptr, c_argv(argv).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  if (error == 0) return {};
  pid_ = -1;
  return cannot_start(argv, error);
}

Result<std::string> LineWorker::ask(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t n = write(to_, text.data() + sent, text.size() - sent);
    if (n <= 0) return Status{Code::kIoError, "the peer program has ended"};
    sent += static_cast<size_t>(n);
  }
  for (;;) {
    const size_t end = rest_.find('\n');
    if (end != std::string::npos) {
      std::string answer = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return answer;
    }
    char buffer[65536];
    const ssize_t n = read(from_, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status{Code::kIoError, "the peer program ended without an answer"};
    rest_.append(buffer, static_cast<size_t>(n));
  }
}

LineWorker::~LineWorker() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);  // its input has ended, so it does
}

std::string own_executable() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "pestle";
}

}  // namespace pestle::harness
