#include "core/tuned.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include "core/json_text.h"

#include "core/dispatch.h"

namespace pestle {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

std::vector<TunedReader>& readers() {
  static std::vector<TunedReader> all;  // filled at start-up, then immutable
  return all;
}

Status corrupt(const std::string& path, const std::string& what) {
  return {Code::kCorruptFile, path + ": " + what + "; `pestle tune` makes such files"};
}

Status io_error(const std::string& path, const char* what) {
  return {Code::kIoError, path + ": " + what + ": " + std::strerror(errno)};
}

template <class T>
bool take(const Json& json, const char* name, T* value) {
  const auto found = json.find(name);
  if (found == json.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else {
    if (!found->is_number()) return false;
  }
  *value = found->template get<T>();
  return true;
}

bool take_choice(const Json& json, TunedChoice* choice) {
  return json.is_object() && take(json, "key", &choice->key) && take(json, "way", &choice->way) &&
         take(json, "variant", &choice->variant) && take(json, "version", &choice->version) &&
         take(json, "us", &choice->us);
}

Status write_all(int fd, const std::string& path, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) return io_error(path, "write");
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
  return fsync(fd) == 0 ? Status() : io_error(path, "fsync");
}

}  // namespace

Result<TunedFile> read_tuned(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) return Status{Code::kIoError, path + ": cannot be read"};
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const Json json = parse_json<Json>(text);
  int format = 0;
  if (!json.is_object() || !take(json, "pestle_tuned", &format))
    return corrupt(path, "is no JSON object with \"pestle_tuned\"");
  if (format != kFormat)
    return corrupt(path, "has format " + std::to_string(format) + ", this build reads " +
                             std::to_string(kFormat));
  TunedFile file;
  if (!take(json, "gpu", &file.gpu) ||
      !take(json, "compute_capability", &file.compute_capability) ||
      !take(json, "multiprocessors", &file.multiprocessors))
    return corrupt(path, "does not say of which GPU it is");
  if (!json.contains("choices") || !json["choices"].is_array())
    return corrupt(path, "has no list \"choices\"");
  for (const Json& one : json["choices"]) {
    TunedChoice choice;
    if (!take_choice(one, &choice))
      return corrupt(path, "choice " + std::to_string(file.choices.size()) +
                               " lacks key, way, variant, version or us");
    file.choices.push_back(std::move(choice));
  }
  return file;
}

Status write_tuned(const std::string& path, const TunedFile& file) {
  Json json = {{"pestle_tuned", kFormat},
               {"gpu", file.gpu},
               {"compute_capability", file.compute_capability},
               {"multiprocessors", file.multiprocessors},
               {"choices", Json::array()}};
  for (const TunedChoice& choice : file.choices) {
    json["choices"].push_back({{"key", choice.key},
                               {"way", choice.way},
                               {"variant", choice.variant},
                               {"version", choice.version},
                               {"us", choice.us}});
  }
  const std::string partial = path + ".partial." + std::to_string(getpid());
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(partial, "open");
  Status status = write_all(fd, partial, print_json(json, 1) + "\n");
  close(fd);
  if (status.ok() && rename(partial.c_str(), path.c_str()) != 0) status = io_error(path, "rename");
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

Status merge_tuned(TunedFile& file, const TunedFile& more) {
  if (file.gpu != more.gpu || file.compute_capability != more.compute_capability ||
      file.multiprocessors != more.multiprocessors) {
    return invalid_argument("choices of '" + more.gpu + "' do not belong to a file of '" +
                            file.gpu + "'; name another file");
  }
  for (const TunedChoice& choice : more.choices) {
    TunedChoice* known = nullptr;
    for (TunedChoice& one : file.choices) known = one.key == choice.key ? &one : known;
    if (known != nullptr)
      *known = choice;
    else
      file.choices.push_back(choice);
  }
  return {};
}

bool add_tuned_reader(const TunedReader& reader) {
  readers().push_back(reader);
  return true;
}

Status use_tuned(const TunedFile& file) {
  for (const TunedReader& reader : readers()) PESTLE_TRY(reader.check(file));
  for (const TunedReader& reader : readers()) reader.use(file);
  forget_choices();
  return {};
}

Status load_tuned(const std::string& path) {
  auto file = read_tuned(path);
  PESTLE_TRY(file.status());
  const Status used = use_tuned(file.value());
  return used.ok() ? used : Status{used.code(), path + ": " + used.message()};
}

}  // namespace pestle
