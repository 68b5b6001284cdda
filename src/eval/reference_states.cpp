#include "eval/reference_states.h"

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "formats/gguf/model_reader.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kStates = "states";
constexpr const char* kIdentity = "identity";  // u8, the text of a JSON object

std::vector<fs::path> paths_of(const fs::path& model) {
  std::vector<fs::path> paths;
  if (!fs::is_directory(model)) {
    paths = gguf::part_paths(model);
    // What is missing is said when the model is opened.
    std::erase_if(paths, [](const fs::path& path) { return !fs::exists(path); });
    return paths;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && (name == "config.json" || name.ends_with(".safetensors")))
      paths.push_back(entry.path());
  }
  return paths;
}

Json files_of(const fs::path& model) {
  std::map<std::string, Json> files;
  for (const fs::path& path : paths_of(model)) {
    const auto time =
        std::chrono::duration_cast<std::chrono::nanoseconds>(fs::last_write_time(path).time_since_epoch());
    files[path.filename().string()] = {{"bytes", fs::file_size(path)}, {"time", time.count()}};
  }
  return files;
}

std::string digest_of(const std::vector<TokenRow>& rows) {
  std::vector<int64_t> all;
  for (const TokenRow& row : rows) {
    all.push_back(static_cast<int64_t>(row.size()));
    all.insert(all.end(), row.begin(), row.end());
  }
  return digest(std::as_bytes(std::span(all)));
}

}  // namespace

ReferenceStates::ReferenceStates(fs::path file, const fs::path& model, const std::string& dtype,
                                 const std::vector<TokenRow>& rows)
    : file_(std::move(file)) {
  const Json identity{{"model", files_of(model)}, {"dtype", dtype}, {"rows", digest_of(rows)}};
  identity_ = identity.dump();
  if (!fs::exists(file_)) return;
  const SafetensorsFile found(file_);
  if (!found.contains(kStates) || !found.contains(kIdentity) || found.tensor(kIdentity).dtype != DType::u8)
    throw Error(ErrorKind::corrupt_data, file_.string(), "holds no states of a reference",
                "name another file");
  const auto bytes = found.tensor(kIdentity).bytes;
  const Json stored = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file_.string());
  for (const auto& [key, what] :
       {std::pair("model", "files of another model, or changed ones"),
        std::pair("dtype", "another type of forward"), std::pair("rows", "other rows")}) {
    if (stored.is_object() && stored.contains(key) && stored.at(key) == identity.at(key)) continue;
    throw Error(ErrorKind::invalid_argument, file_.string(), str("was made from ", what),
                "remove it, or name another file");
  }
  states_ = found.load(kStates);
  int64_t tokens = 0;
  for (const TokenRow& row : rows) tokens += static_cast<int64_t>(row.size());
  if (states_.dim() != 2 || states_.size(0) != tokens || !states_.is_floating_point())
    throw Error(ErrorKind::corrupt_data, file_.string(),
                gramian::str("states ", states_.sizes(), " for ", tokens, " tokens"), "remove it");
  stored_ = true;
}

at::Tensor ReferenceStates::next(int64_t tokens) {
  at_ += tokens;
  return states_.narrow(0, at_ - tokens, tokens);
}

void ReferenceStates::add(const at::Tensor& states) { made_.push_back(states); }

void ReferenceStates::save() const {
  if (stored_) return;
  const at::Tensor identity =
      tensor::wrap(identity_.data(), {static_cast<int64_t>(identity_.size())}, at::kByte, nullptr);
  save_safetensors(file_, {{kStates, tensor::cat(made_, 0).contiguous()}, {kIdentity, identity}});
}

}  // namespace gramian
