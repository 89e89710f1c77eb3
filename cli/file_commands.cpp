#include "cli/file_commands.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "files/text.h"

namespace pestle::cli {
namespace {

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) { g_stop.store(true); }

struct Bar {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::string stage;
};

void draw(Bar& bar, const files::Progress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (bar.stage != progress.stage) {
    bar.stage = progress.stage;
    bar.start = now;
  }
  const double seconds = std::chrono::duration<double>(now - bar.start).count();
  const auto done = static_cast<double>(progress.bytes_done);
  const double share =
      progress.bytes_total == 0 ? 1 : done / static_cast<double>(progress.bytes_total);
  const double rate = seconds > 0 ? done / seconds : 0;
  const double left = rate > 0 ? (static_cast<double>(progress.bytes_total) - done) / rate : 0;
  constexpr int kWidth = 28;
  const int filled = static_cast<int>(share * kWidth);
  std::fprintf(stderr, "\r%s [%.*s%.*s] %3.0f %%  %s/s  %.0f s left   ", bar.stage.c_str(), filled,
               "############################", kWidth - filled, "............................",
               share * 100, files::human_bytes(static_cast<uint64_t>(rate)).c_str(), left);
  if (progress.bytes_done >= progress.bytes_total) std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace

const std::atomic<bool>& stop_requested() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // a second Ctrl-C ends the process at once
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  return g_stop;
}

std::function<void(const files::Progress&)> progress_bar(bool quiet) {
  if (quiet || isatty(STDERR_FILENO) == 0) return nullptr;
  return [bar = std::make_shared<Bar>()](const files::Progress& progress) { draw(*bar, progress); };
}

}  // namespace pestle::cli
