#include "files/quantize_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <mutex>

#include "backends/cpu/parallel.h"
#include "core/json_text.h"
#include "files/comfy_detection.h"
#include "files/encode_layer.h"
#include "files/error_histogram.h"
#include "files/finite.h"
#include "files/layer_descriptions.h"
#include "files/output_set.h"
#include "files/piece_hash.h"
#include "files/plan.h"
#include "files/progress_meter.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr uint64_t kCopyBytes = uint64_t{4} << 20;
constexpr size_t kHistogramLayers = 6;

// One finished layer, as a line of notes that a resumed run reads.
std::string note_of(size_t index, uint64_t hash, const EncodeResult& result) {
  nlohmann::json note = {{"layer", index},
                         {"hash", hash},
                         {"signal", result.sums.signal},
                         {"noise", result.sums.noise},
                         {"max_error", result.sums.max_error},
                         {"elements", result.sums.elements},
                         {"clipped", result.sums.clipped}};
  if (result.amax_noise) note["amax_noise"] = *result.amax_noise;
  return print_json(note);
}

struct FoundLayer {
  uint64_t hash = 0;
  EncodeResult result;
};

std::map<size_t, FoundLayer> read_notes(const std::vector<std::string>& lines) {
  std::map<size_t, FoundLayer> found;
  for (const std::string& line : lines) {
    const auto note = parse_json(line);
    if (!note.is_object()) continue;
    const auto number = [&](const char* key) { return note.value(key, 0.0); };
    FoundLayer layer;
    layer.hash = note.value("hash", uint64_t{0});
    layer.result.sums = {number("signal"), number("noise"), static_cast<float>(number("max_error")),
                         note.value("elements", uint64_t{0}), note.value("clipped", uint64_t{0})};
    if (note.contains("amax_noise")) layer.result.amax_noise = number("amax_noise");
    found[note.value("layer", size_t{0})] = layer;
  }
  return found;
}

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, Model model)
      : options_(options), model_(std::move(model)), meter_(options, model_.bytes()) {}

  Result<QuantizeReport> run();

 private:
  Status check_input() const;
  Status check_paths() const;
  Status check_something_to_do() const;
  Status keep_non_finite();
  Status choose_formats();
  Status choose_format(PlannedLayer& planned, LayerReport& report);
  Status lay_out();
  std::vector<OutputTensor> tensors_of(const PlannedLayer& planned) const;
  std::map<std::string, std::string> metadata() const;
  std::string fingerprint(const std::string& plan) const;
  Status write_all();
  Status finish_output();
  Status write_layer(size_t index);
  void start_writeback(std::string field);
  Status copy_tensor(const ModelTensor& tensor);
  Status copy_piece(const ModelTensor& tensor, uint64_t offset);
  bool is_intact(const PlannedLayer& planned, uint64_t hash) const;
  Status write_constants(const PlannedLayer& planned);
  void fill_report(double seconds);
  Status add_histograms();

  std::string field_name(const PlannedLayer& planned, size_t field) const {
    return planned.layer + "." + std::string(planned.target->fields[field].suffix);
  }

  const QuantizeOptions& options_;
  Model model_;
  Plan plan_;
  QuantizeReport report_;
  std::unique_ptr<OutputSet> output_;
  std::map<size_t, FoundLayer> found_;
  ProgressMeter meter_;
  std::future<void> writeback_;  // last, so that it ends before what it uses
};

Status Quantizer::check_input() const {
  if (model_.is_gguf()) {
    return invalid_argument(options_.input +
                            ": is GGUF, whose weights are quantised already; turn it into "
                            "safetensors with pestle dequantize first");
  }
  return check_descriptions(model_);
}

// Twice: with the names that are known before formats are chosen, which may take minutes, and with
// all.
Status Quantizer::check_paths() const {
  std::vector<std::string> inputs = model_.paths();
  inputs.insert(inputs.end(), options_.also_read.begin(), options_.also_read.end());
  std::vector<WrittenPath> outputs;
  if (output_ != nullptr) {
    outputs = output_->written_paths("output");
  } else if (!options_.output.empty()) {
    // With shards this name itself may never be written.
    const bool may_replace = options_.overwrite || options_.max_shard_bytes > 0;
    outputs.push_back({"output", options_.output, 0, may_replace, false});
  }
  for (WrittenPath& output : outputs) output.is_planned_only = options_.dry_run;
  outputs.insert(outputs.end(), options_.reports.begin(), options_.reports.end());
  return check_outputs(inputs, outputs);
}

Status Quantizer::check_something_to_do() const {
  std::map<std::string, int> reasons;
  for (const PlannedLayer& planned : plan_.layers) {
    if (planned.target) return {};
    ++reasons[planned.reason];
  }
  std::string why;
  for (const auto& [reason, count] : reasons) {
    why += (why.empty() ? ": " : "; ") + std::to_string(count) + " tensors " + reason;
  }
  return invalid_argument(options_.input + ": nothing would be quantised" + why);
}

// Where that is allowed, tensors with a NaN or an infinity are kept, which must be known before the
// output is laid out.
Status Quantizer::keep_non_finite() {
  meter_.restart("looking for NaN");
  for (PlannedLayer& planned : plan_.layers) {
    if (options_.cancel != nullptr && options_.cancel->load()) return interrupted();
    meter_.advance(planned.tensor->data.size());
    if (!planned.target && !planned.wants_choice) continue;
    const Status status = check_finite(*planned.tensor);
    if (status.ok()) continue;
    if (status.code() != Code::kCorruptFile) return status;
    planned.target.reset();
    planned.wants_choice = false;
    planned.reason = "holds NaN or an infinity (--allow-non-finite)";
  }
  return {};
}

Status Quantizer::choose_formats() {
  meter_.restart("choosing formats");
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    PlannedLayer& planned = plan_.layers[i];
    if (planned.wants_choice) PESTLE_TRY(choose_format(planned, report_.layers[i]));
    meter_.advance(planned.tensor->data.size());
  }
  return {};
}

Status Quantizer::choose_format(PlannedLayer& planned, LayerReport& report) {
  EncodeHooks hooks;
  hooks.cancel = options_.cancel;
  const auto& shape = planned.tensor->shape;
  for (const formats::FormatInfo* format : formats_by_size(plan_.layout)) {
    Result<LayerLayout> target =
        loadable_layout(planned.layer, *format, plan_.layout, shape[0], shape[1]);
    if (!target.ok()) {
      report.candidates.push_back(target.status().message());
      continue;
    }
    const auto result = encode_layer(*planned.tensor, target.value(), options_.mse_scales, hooks);
    PESTLE_TRY(result.status());
    LayerReport measured;
    measured.sums = result.value().sums;
    const double error = measured.relative_error();
    report.candidates.push_back(std::string(format->name) + " " + shortest(error));
    if (error > *options_.target_error) continue;
    planned.target = std::move(target.value());
    return {};
  }
  planned.reason = "no format keeps the relative error under " + shortest(*options_.target_error);
  return {};
}

std::vector<OutputTensor> Quantizer::tensors_of(const PlannedLayer& planned) const {
  const ModelTensor& source = *planned.tensor;
  if (!planned.target) return {{source.name, source.file_dtype, source.shape}};
  std::vector<OutputTensor> tensors;
  for (size_t i = 0; i < planned.target->fields.size(); ++i) {
    const StoredField& field = planned.target->fields[i];
    tensors.push_back({field_name(planned, i), file_dtype_of(field.dtype), field.shape});
  }
  if (!planned.target->comfy_quant.empty()) {
    const auto length = static_cast<int64_t>(planned.target->comfy_quant.size());
    tensors.push_back({planned.layer + ".comfy_quant", file_dtype_of(DType::kU8), {length}});
  }
  return tensors;
}

// The source's own entries, ComfyUI's description of the layers, and ours, which also has the sizes
// before padding. Layers that were quantised before keep what the source says of them.
std::map<std::string, std::string> Quantizer::metadata() const {
  std::map<std::string, std::string> metadata = model_.metadata();
  std::set<std::string> made;
  for (const PlannedLayer& planned : plan_.layers) {
    if (planned.target) made.insert(planned.layer);
  }
  std::string comfy = comfy_descriptions(model_, made);
  std::string ours = pestle_descriptions(model_, made, plan_.layout);
  for (const PlannedLayer& planned : plan_.layers) {
    if (!planned.target) continue;
    const LayerLayout& target = *planned.target;
    const std::string name = json_string(planned.layer) + ":";
    if (!target.comfy_quant.empty())
      comfy += (comfy.empty() ? "" : ",") + name + target.comfy_quant;
    ours += (ours.empty() ? "" : ",") + name + "{\"format\":\"" + std::string(target.format->name) +
            "\",\"shape\":[" + std::to_string(target.n) + "," + std::to_string(target.k) +
            "],\"dtype\":\"" + std::string(planned.tensor->dtype_name) + "\"}";
  }
  if (!comfy.empty()) {
    metadata["_quantization_metadata"] = "{\"format_version\":\"1.0\",\"layers\":{" + comfy + "}}";
  }
  metadata["pestle"] = "{\"version\":1,\"layout\":\"" + std::string(layout_name(plan_.layout)) +
                       "\",\"layers\":{" + ours + "}}";
  return metadata;
}

// `plan`: the metadata's own entry, which says what becomes of each layer.
std::string Quantizer::fingerprint(const std::string& plan) const {
  std::string text = options_.mse_scales ? "mse" : "amax";
  text += " shards of " + std::to_string(options_.max_shard_bytes);
  for (const auto& file : model_.files()) text += " " + file->identity();
  text += " " + std::to_string(piece_hash(0, 0, std::as_bytes(std::span(plan))));
  return text;
}

Status Quantizer::lay_out() {
  std::vector<std::vector<OutputTensor>> groups;
  for (const PlannedLayer& planned : plan_.layers) groups.push_back(tensors_of(planned));
  OutputOptions options;
  options.path = options_.output;
  options.max_shard_bytes = options_.max_shard_bytes;
  options.overwrite = options_.overwrite;
  options.resume = options_.resume;
  options.metadata = metadata();
  options.fingerprint = fingerprint(options.metadata["pestle"]);
  auto output = OutputSet::plan(groups, options);
  PESTLE_TRY(output.status());
  output_ = std::move(output.value());
  return {};
}

Status Quantizer::write_all() {
  meter_.restart("quantising");
  PESTLE_TRY(output_->create());
  found_ = read_notes(output_->notes_found());
  for (size_t i = 0; i < plan_.layers.size(); ++i) PESTLE_TRY(write_layer(i));
  if (writeback_.valid()) writeback_.get();
  PESTLE_TRY(model_.check_unchanged());
  PESTLE_TRY(finish_output());
  meter_.finish();
  return {};
}

// While the disk takes the last bytes there is time for the histograms.
Status Quantizer::finish_output() {
  Status committed;
  Status drawn;
  cpu::parallel_for(2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      if (task == 0) committed = output_->commit();
      if (task == 1) drawn = add_histograms();
    }
  });
  PESTLE_TRY(committed);
  return drawn;
}

// Beside the next layer: the call itself takes milliseconds. One at a time, in order.
void Quantizer::start_writeback(std::string field) {
  if (writeback_.valid()) writeback_.get();
  // Either policy: where no thread can be had, get() above makes the call.
  writeback_ = std::async(std::launch::async | std::launch::deferred,
                          [this, field = std::move(field)] { output_->start_writeback(field); });
}

Status Quantizer::write_layer(size_t index) {
  const PlannedLayer& planned = plan_.layers[index];
  if (!planned.target) return copy_tensor(*planned.tensor);
  LayerReport& report = report_.layers[index];
  PESTLE_TRY(write_constants(planned));
  const auto found = found_.find(index);
  if (found != found_.end() && is_intact(planned, found->second.hash)) {
    report.sums = found->second.result.sums;
    report.amax_noise = found->second.result.amax_noise;
    ++report_.layers_resumed;
    meter_.advance(planned.tensor->data.size());
    return {};
  }
  std::atomic<uint64_t> hash{0};
  EncodeHooks hooks;
  hooks.cancel = options_.cancel;
  hooks.advance = [this](uint64_t bytes) { meter_.advance(bytes); };
  hooks.sink = [&](int field, uint64_t offset, std::span<const std::byte> data) {
    hash += piece_hash(field, offset, data);
    return output_->write(field_name(planned, static_cast<size_t>(field)), offset, data);
  };
  const auto result = encode_layer(*planned.tensor, *planned.target, options_.mse_scales, hooks);
  PESTLE_TRY(result.status());
  report.sums = result.value().sums;
  report.amax_noise = result.value().amax_noise;
  start_writeback(field_name(planned, 0));
  return output_->note(note_of(index, hash, result.value()));
}

Status Quantizer::write_constants(const PlannedLayer& planned) {
  const std::string& json = planned.target->comfy_quant;
  if (json.empty()) return {};
  return output_->write(planned.layer + ".comfy_quant", 0, std::as_bytes(std::span(json)));
}

// Reads the layer back as the pieces it was written in and compares their hash.
bool Quantizer::is_intact(const PlannedLayer& planned, uint64_t hash) const {
  const Result<Codec> made = Codec::make(*planned.target, planned.tensor->dtype);
  if (!made.ok()) return false;
  const Codec& codec = made.value();
  const int64_t step = chunk_rows(codec);
  std::vector<std::byte> piece;
  uint64_t sum = 0;
  for (int64_t row = 0; row < planned.target->n; row += step) {
    const auto views = codec.piece_views(std::min(step, planned.target->n - row));
    if (!views.ok()) return false;
    for (size_t i = 0; i < planned.target->fields.size(); ++i) {
      const int field = static_cast<int>(i);
      if (codec.is_shared(field) && row > 0) continue;
      const uint64_t offset = codec.piece_offset(field, row);
      piece.resize(static_cast<size_t>(size_bytes(views.value()[i])));
      if (!output_->read(field_name(planned, i), offset, piece).ok()) return false;
      sum += piece_hash(field, offset, piece);
    }
  }
  return sum == hash;
}

Status Quantizer::copy_tensor(const ModelTensor& tensor) {
  const auto pieces = static_cast<int64_t>((tensor.data.size() + kCopyBytes - 1) / kCopyBytes);
  std::mutex mutex;
  Status first;
  cpu::parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      Status status = copy_piece(tensor, static_cast<uint64_t>(piece) * kCopyBytes);
      const std::lock_guard lock(mutex);
      if (first.ok()) first = std::move(status);
    }
  });
  return first;
}

Status Quantizer::copy_piece(const ModelTensor& tensor, uint64_t offset) {
  if (options_.cancel != nullptr && options_.cancel->load()) return interrupted();
  thread_local std::vector<std::byte> data;
  data.resize(std::min(kCopyBytes, tensor.data.size() - offset));
  PESTLE_TRY(tensor.data.read(offset, data));
  if (!options_.allow_non_finite) PESTLE_TRY(check_finite(tensor, offset, data));
  meter_.advance(data.size());
  return output_->write(tensor.name, offset, data);
}

void Quantizer::fill_report(double seconds) {
  report_.input = options_.input;
  report_.outputs = output_->paths();
  report_.layout = std::string(layout_name(plan_.layout));
  report_.dry_run = options_.dry_run;
  report_.seconds = seconds;
  report_.bytes_before = model_.bytes();
  report_.bytes_after = output_->bytes();
  report_.notes = plan_.notes;
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    const PlannedLayer& planned = plan_.layers[i];
    LayerReport& report = report_.layers[i];
    report.name = planned.target ? planned.layer : planned.tensor->name;
    report.shape = planned.tensor->shape;
    report.source_dtype = std::string(planned.tensor->dtype_name);
    report.reason = planned.reason;
    report.bytes_before = planned.tensor->data.size();
    report.bytes_after = planned.target ? planned.target->bytes() : report.bytes_before;
    if (!planned.target) continue;
    report.format = std::string(planned.target->format->name);
    const Result<Codec> codec = Codec::make(*planned.target, planned.tensor->dtype);
    report.counts_clipped = codec.ok() && codec.value().counts_clipped();
  }
}

Status Quantizer::add_histograms() {
  if (!options_.histograms) return {};
  std::vector<size_t> worst = report_.worst_first();
  worst.resize(std::min(worst.size(), kHistogramLayers));
  for (const size_t index : worst) {
    const PlannedLayer& planned = plan_.layers[index];
    PESTLE_TRY(error_histograms(*planned.tensor, *planned.target, options_.mse_scales,
                                report_.layers[index]));
  }
  return {};
}

Result<QuantizeReport> Quantizer::run() {
  const auto start = std::chrono::steady_clock::now();
  PESTLE_TRY(check_input());
  PESTLE_TRY(check_paths());
  Result<Plan> plan = make_plan(model_, options_);
  PESTLE_TRY(plan.status());
  plan_ = std::move(plan.value());
  report_.layers.resize(plan_.layers.size());
  if (options_.allow_non_finite) PESTLE_TRY(keep_non_finite());
  if (options_.target_error) PESTLE_TRY(choose_formats());
  PESTLE_TRY(check_something_to_do());
  PESTLE_TRY(lay_out());
  PESTLE_TRY(check_paths());
  if (!options_.dry_run) PESTLE_TRY(write_all());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fill_report(seconds.count());
  return std::move(report_);
}

}  // namespace

Result<QuantizeReport> quantize_file(const QuantizeOptions& options) {
  if (options.input.empty() || (options.output.empty() && !options.dry_run)) {
    return invalid_argument("quantize needs an input and an output");
  }
  Result<Model> model = Model::open(options.input);
  PESTLE_TRY(model.status());
  return Quantizer(options, std::move(model.value())).run();
}

}  // namespace pestle::files
