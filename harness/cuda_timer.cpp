#include "harness/cuda_timer.h"

#include <algorithm>
#include <cmath>

namespace pestle::harness {
namespace {

constexpr int64_t kFlushTimesL2 = 4;

}  // namespace

Timer::~Timer() {
  if (stream_ != nullptr) cuda::destroy_stream(device_, stream_);
  for (void* event : events_) {
    if (event != nullptr) cuda::destroy_event(device_, event);
  }
}

Status Timer::start() {
  auto info = cuda::device_info(device_);
  PESTLE_TRY(info.status());
  auto stream = cuda::make_stream(device_);
  PESTLE_TRY(stream.status());
  stream_ = stream.value();
  for (void*& event : events_) {
    auto made = cuda::make_event(device_);
    PESTLE_TRY(made.status());
    event = made.value();
  }
  auto gate = cuda::Gate::make(device_);
  PESTLE_TRY(gate.status());
  gate_ = std::move(gate.value());
  flush_ = std::make_unique<Allocation>(memory_, kFlushTimesL2 * info.value().l2_bytes);
  if (flush_->data == nullptr) return {Code::kOutOfMemory, "no memory to flush L2 with"};
  memory_.fill(flush_->data, 0x5C, flush_->bytes);
  memory_.synchronize();
  return {};
}

double Timer::sample(const std::function<Status(void* stream)>& work, bool sustained) {
  double us = NAN;
  const auto run = [&]() -> Status {
    if (!sustained) {
      PESTLE_TRY(cuda::flush_l2(device_, flush_->data, flush_->bytes, stream_));
      PESTLE_TRY(gate_.close(stream_));
    }
    PESTLE_TRY(cuda::record_event(device_, events_[0], stream_));
    const Status queued = work(stream_);
    const Status recorded = cuda::record_event(device_, events_[1], stream_);
    if (!sustained) gate_.open();
    PESTLE_TRY(queued);
    PESTLE_TRY(recorded);
    auto elapsed = cuda::elapsed_us(device_, events_[0], events_[1]);
    PESTLE_TRY(elapsed.status());
    if (!sustained && gate_.timed_out()) return {Code::kInternal, "a call waits for the device"};
    us = elapsed.value();
    return {};
  };
  const Status status = run();
  if (status_.ok()) status_ = status;
  return status.ok() ? us : 1e9;
}

Status Contender::use_graph() {
  drop_graph();
  auto made =
      cuda::capture_graph(timer_.device(), timer_.stream(), [&] { return queue(timer_.stream()); });
  PESTLE_TRY(made.status());
  graph_ = made.value();
  return {};
}

double Contender::sample() {
  const auto work = [&](void* stream) {
    return graph_ != nullptr ? cuda::launch_graph(timer_.device(), graph_, stream) : queue(stream);
  };
  const double us = timer_.sample(work, sustained_);
  return us / static_cast<double>(calls_);
}

void Contender::load_for(double us) {
  for (double passed = 0; passed < us;) passed += sample() * static_cast<double>(calls_);
}

double Contender::best_of(int samples) {
  double best = sample();
  for (int i = 1; i < samples; ++i) best = std::min(best, sample());
  return best;
}

Status Contender::queue(void* stream) {
  for (int64_t i = 0; i < calls_; ++i) PESTLE_TRY(queue_one_(stream));
  return {};
}

void Contender::drop_graph() {
  if (graph_ != nullptr) cuda::destroy_graph(timer_.device(), graph_);
  graph_ = nullptr;
}

}  // namespace pestle::harness
