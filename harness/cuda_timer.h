// Times what queues on a stream of a CUDA device: for benches and sweeps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backends/cuda/host/runtime.h"
#include "harness/memory.h"

namespace pestle::harness {

// Shorter calls than this are timed in a graph: queued one by one they wait for one another.
inline constexpr double kShortUs = 20;
inline constexpr int64_t kMostCalls = 200;     // a sample
inline constexpr int64_t kMostLaunches = 800;  // of a sample: more than 1,024 wait for the device

struct Allocation {
  Allocation(Memory& memory, int64_t size)
      : owner(memory), bytes(size), data(static_cast<uint8_t*>(memory.allocate(size))) {}
  ~Allocation() { owner.release(data, bytes); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  Memory& owner;
  int64_t bytes;
  uint8_t* data;
};

// Times what is queued on its stream. Errors are kept, since contenders can only return numbers.
class Timer {
 public:
  explicit Timer(Memory& memory) : memory_(memory), device_(memory.device().index) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  Status start();
  // Microseconds of `work`, which queues on the stream that it is given; it starts when all of it
  // is queued and the L2 holds nothing of it, unless it is `sustained`.
  double sample(const std::function<Status(void* stream)>& work, bool sustained);

  void* stream() const { return stream_; }
  int device() const { return device_; }
  const Status& status() const { return status_; }

 private:
  Memory& memory_;
  int device_;
  void* stream_ = nullptr;
  void* events_[2] = {};
  cuda::Gate gate_;
  std::unique_ptr<Allocation> flush_;
  Status status_;
};

// Several calls a sample, one by one or as a graph.
class Contender {
 public:
  Contender(Timer& timer, int64_t calls, std::function<Status(void* stream)> queue_one,
            bool sustained = false)
      : timer_(timer), calls_(calls), queue_one_(std::move(queue_one)), sustained_(sustained) {}
  ~Contender() { drop_graph(); }
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  Status use_graph();
  double sample();
  // Of the same work, not counted.
  void load_for(double us);
  double best_of(int samples);

 private:
  Status queue(void* stream);
  void drop_graph();
  Timer& timer_;
  int64_t calls_;
  std::function<Status(void* stream)> queue_one_;
  bool sustained_;
  void* graph_ = nullptr;
};

}  // namespace pestle::harness
