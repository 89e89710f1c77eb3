#include "harness/sweep_case.h"

#include <algorithm>

#include "backends/cpu/parallel.h"
#include "core/dispatch.h"
#include "harness/ceiling.h"
#include "harness/test_tensor.h"

namespace pestle::harness {
namespace {

constexpr int64_t kAligned = 256;
constexpr int64_t kSampleBytes = int64_t{256} << 20;  // that the sets of a case have in all, about
constexpr int64_t kMostSets = 64;
constexpr uint8_t kPoison = 0x5A;
constexpr uint64_t kSeed = 1;

int64_t padded(int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

Status no_memory() { return {Code::kOutOfMemory, "no memory for the sweep's tensors"}; }

}  // namespace

uint8_t* Arena::take(int64_t bytes) {
  bytes = std::max(bytes, kAligned);
  if (bytes <= bytes_) return data_;
  memory_.release(data_, bytes_);
  bytes_ = bytes;
  data_ = static_cast<uint8_t*>(memory_.allocate(bytes));
  if (data_ == nullptr) bytes_ = 0;
  return data_;
}

DataPool::~DataPool() {
  for (auto& [key, entry] : entries_) memory_.release(entry.data, entry.bytes);
}

Result<DataPool::Entry*> DataPool::entry(DType dtype, Meaning meaning, Values values,
                                         size_t place) {
  // What is no value is the same for every kind of data.
  if (meaning != Meaning::kValues) values = Values::kNormal;
  Entry& entry = entries_[{dtype, meaning, values, place}];
  if (entry.data != nullptr) return &entry;
  entry.bytes = kPeriod * dtype_bytes(dtype);
  entry.data = memory_.allocate(entry.bytes);
  if (entry.data == nullptr) return no_memory();
  std::vector<uint8_t> host(static_cast<size_t>(entry.bytes));
  if (meaning == Meaning::kValues)
    entry.amax = fill_values(host.data(), dtype, kPeriod, values, kSeed + place);
  else
    harness::fill(host.data(), dtype, kPeriod, meaning, Dist::kNormal, kSeed + place);
  memory_.to_device(entry.data, host.data(), entry.bytes);
  return &entry;
}

Status DataPool::write(void* to, DType dtype, int64_t count, Meaning meaning, Values values,
                       size_t place) {
  auto found = entry(dtype, meaning, values, place);
  PESTLE_TRY(found.status());
  const int64_t bytes = count * dtype_bytes(dtype);
  auto* start = static_cast<uint8_t*>(to);
  memory_.copy(start, found.value()->data, std::min(bytes, found.value()->bytes));
  // Whole periods, so that each copy doubles what is there.
  for (int64_t done = found.value()->bytes; done < bytes; done *= 2) {
    memory_.copy(start + done, start, std::min(done, bytes - done));
  }
  return {};
}

Result<float> DataPool::amax(DType dtype, Values values, size_t place) {
  auto found = entry(dtype, Meaning::kValues, values, place);
  PESTLE_TRY(found.status());
  return found.value()->amax;
}

Result<std::unique_ptr<SweepCase>> SweepCase::make(const Op& op, const std::string& text,
                                                   Memory& memory, Arenas& arenas, DataPool& pool) {
  auto one = std::make_unique<SweepCase>();
  one->op_ = &op;
  one->memory_ = &memory;
  one->pool_ = &pool;
  auto call = call_from_text(op, text, memory.device().type);
  PESTLE_TRY(call.status());
  one->call_ = std::move(call.value());
  auto bytes = op.contract.bytes(one->call_.scope);
  PESTLE_TRY(bytes.status());
  one->bytes_ = bytes.value();
  one->slots_ = slots_of(*op.spec, one->call_.values);
  PESTLE_TRY(one->place_sets(arenas));
  auto choice = choose(op, one->sets_[0].call);
  PESTLE_TRY(choice.status());
  one->impl_ = choice.value().impl;
  const int64_t workspace = choice.value().workspace_bytes;
  uint8_t* memory_of_all = arenas.workspace.take(workspace);
  if (memory_of_all == nullptr) return no_memory();
  for (Set& set : one->sets_) {
    set.call.workspace = memory_of_all;
    set.call.workspace_bytes = workspace;
  }
  return one;
}

Status SweepCase::place_sets(Arenas& arenas) {
  const auto is_output = [&](const Slot& slot) {
    return op_->spec->args[slot.arg].role == Role::kOutput;
  };
  for (const Slot& slot : slots_) {
    const int64_t bytes = size_bytes(tensor_at(call_.values, slot));
    (is_output(slot) ? output_step_ : input_step_) += padded(bytes);
    if (is_output(slot)) write_bytes_ += bytes;
  }
  const auto count = static_cast<size_t>(
      std::clamp<int64_t>(kSampleBytes / std::max<int64_t>(1, bytes_), 2, kMostSets));
  inputs_ = arenas.inputs.take(input_step_ * static_cast<int64_t>(count));
  outputs_ = arenas.outputs.take(output_step_ * static_cast<int64_t>(count));
  if (inputs_ == nullptr || outputs_ == nullptr) return no_memory();
  memory_->fill(outputs_, kPoison, output_step_ * static_cast<int64_t>(count));
  sets_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    uint8_t* input = inputs_ + input_step_ * static_cast<int64_t>(i);
    uint8_t* output = outputs_ + output_step_ * static_cast<int64_t>(i);
    sets_[i].values = OwnValues(call_.values);
    for (const Slot& slot : slots_) {
      TensorView& view = sets_[i].values.at(slot);
      uint8_t*& at = is_output(slot) ? output : input;
      view.data = at;
      view.device = memory_->device();
      at += padded(size_bytes(view));
    }
    sets_[i].call = call_.call;
    sets_[i].call.args = sets_[i].values.span();
  }
  return {};
}

// e4m3 and the like say it themselves; two 4-bit codes a byte with a scale of the whole tensor have
// block scales of up to 448 on codes of up to 6.
float SweepCase::largest_code(const Slot& scale) const {
  for (const Slot& slot : slots_) {
    const Arg& arg = op_->spec->args[slot.arg];
    const DType dtype = tensor_at(call_.values, slot).dtype;
    if (arg.role != Role::kOutput || meaning_of(arg, dtype) != Meaning::kCodes) continue;
    switch (dtype) {
      case DType::kE4M3: return 448;
      case DType::kE5M2: return 57344;
      case DType::kI8: return 127;
      case DType::kU8: return tensor_at(call_.values, scale).rank <= 1 ? 448.0f * 6 : 0;
      default: break;
    }
  }
  return 0;
}

Result<float> SweepCase::given_scale(const Slot& slot, Values values) const {
  const TensorView& view = tensor_at(call_.values, slot);
  const Arg& scale = op_->spec->args[slot.arg];
  if (view.dtype != DType::kF32 || meaning_of(scale, view.dtype) != Meaning::kScales) return 0.0f;
  const float code = largest_code(slot);
  const Slot& first = slots_[0];
  const DType dtype = tensor_at(call_.values, first).dtype;
  if (code == 0 || meaning_of(op_->spec->args[first.arg], dtype) != Meaning::kValues) return 0.0f;
  // What is normalised first is near to normal values, whatever it was.
  const bool normalised =
      std::any_of(op_->spec->args.begin(), op_->spec->args.end(),
                  [](const Arg& arg) { return std::string_view(arg.name) == "eps"; });
  auto amax = pool_->amax(dtype, normalised ? Values::kNormal : values, 0);
  PESTLE_TRY(amax.status());
  return amax.value() / code;
}

Status SweepCase::fill(Values values) {
  size_t place = 0;
  for (const Slot& slot : slots_) {
    const Arg& arg = op_->spec->args[slot.arg];
    if (arg.role != Role::kInput) continue;
    const TensorView& view = sets_[0].values.at(slot);
    auto scale = given_scale(slot, values);
    PESTLE_TRY(scale.status());
    if (scale.value() > 0) {
      const std::vector<float> all(static_cast<size_t>(numel(view)), scale.value());
      memory_->to_device(view.data, all.data(), size_bytes(view));
    } else {
      PESTLE_TRY(pool_->write(view.data, view.dtype, numel(view), meaning_of(arg, view.dtype),
                              values, place % 4));
    }
    ++place;
  }
  // The other sets are copies; each copy doubles them.
  const int64_t all = input_step_ * sets();
  for (int64_t done = input_step_; done < all; done *= 2) {
    memory_->copy(inputs_ + done, inputs_, std::min(done, all - done));
  }
  memory_->synchronize();
  return {};
}

std::vector<Values> SweepCase::kinds() const {
  const Slot& first = slots_[0];
  const DType dtype = tensor_at(call_.values, first).dtype;
  if (meaning_of(op_->spec->args[first.arg], dtype) != Meaning::kValues) return {Values::kNormal};
  std::vector<Values> all;
  for (int i = 0; i < kValuesKinds; ++i) all.push_back(static_cast<Values>(i));
  return all;
}

Status SweepCase::queue(void* stream) {
  Set& set = sets_[next_];
  next_ = next_ + 1 == sets_.size() ? 0 : next_ + 1;
  set.call.stream = stream;
  return impl_->run(set.call);
}

bool SweepCase::results_agree() const {
  if (output_step_ == 0) return true;
  return memory_->hash(outputs_, output_step_) ==
         memory_->hash(outputs_ + output_step_, output_step_);
}

bool SweepBench::is_call(const SweepForm& form, const std::string& text) const {
  const auto call = call_from_text(*form.op, text, memory_.device().type);
  if (!call.ok()) return false;
  const auto bytes = form.op->contract.bytes(call.value().scope);
  return bytes.ok() && bytes.value() > 0 && bytes.value() <= options_.largest_bytes;
}

Result<SweepPoint> SweepBench::measure(const SweepForm& form, const std::string& text) {
  memory_.set_context(std::string(form.op->spec->name) + " '" + text + "'");
  auto made = SweepCase::make(*form.op, text, memory_, arenas_, pool_);
  PESTLE_TRY(made.status());
  SweepCase& one = *made.value();
  SweepPoint point;
  point.op = form.op->spec->name;
  point.form = form.text;
  point.case_text = text;
  point.impl = one.impl().id;
  point.bound_class = sweep_class(*form.op, one.text_call());
  point.bytes = one.bytes();
  for (Values values : one.kinds()) {
    PESTLE_TRY(one.fill(values));
    PESTLE_TRY(time(one, point.us.empty(), point, std::string(values_name(values))));
  }
  memory_.synchronize();
  point.results_agree = one.results_agree();
  return point;
}

namespace {

class CpuSweepBench final : public SweepBench {
 public:
  CpuSweepBench(const SweepOptions& options, std::unique_ptr<CopyCeiling> ceiling)
      : SweepBench(options, host_memory()), ceiling_(std::move(ceiling)) {}

 protected:
  Status time(SweepCase& one, bool, SweepPoint& point, const std::string& kind) override {
    Status status;
    const auto all_sets = [&] {
      for (int64_t i = 0; i < one.sets() && status.ok(); ++i) status = one.queue(nullptr);
    };
    all_sets();
    PESTLE_TRY(status);
    const std::vector<Timing> timings = time_interleaved(
        {[&] { return memory_.time_us(all_sets) / static_cast<double>(one.sets()); },
         [&] { return ceiling_->sample(); }},
        options_.bench.timing);
    point.us[kind] = timings[0].median;
    point.copy_us[kind] = timings[1].median * static_cast<double>(one.bytes()) /
                          static_cast<double>(CopyCeiling::bytes_per_sample());
    return status;
  }

 private:
  std::unique_ptr<CopyCeiling> ceiling_;
};

}  // namespace

Result<std::unique_ptr<SweepBench>> SweepBench::make(const SweepOptions& options, Memory* memory) {
  if (memory != nullptr) return cuda_sweep_bench(options, *memory);
  auto ceiling = CopyCeiling::make();
  PESTLE_TRY(ceiling.status());
  return std::unique_ptr<SweepBench>(
      std::make_unique<CpuSweepBench>(options, std::move(ceiling.value())));
}

}  // namespace pestle::harness
