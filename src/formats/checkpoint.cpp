#include "formats/checkpoint.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/problems.h"
#include "formats/encoded_tensor.h"
#include "formats/gguf/model_reader.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSuffix = ".safetensors";
// Names listed in one message, except missing files, which are all listed.
constexpr size_t kListMax = 10;

// Tensor name -> shard file name, as the index says; empty without an index.
using WeightMap = std::map<std::string, std::string>;
struct Index {
  WeightMap map;
  Json total_size;  // null where it is not given
};

// Names of the regular files in a folder (links are followed), sorted.
std::vector<std::string> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) throw Error(ErrorKind::io, folder.string(), "cannot list the folder: " + error.message());
  for (const fs::directory_entry& entry : entries) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Json read_object(const fs::path& path) {
  Json json = parse_json(read_text(path), path.string());
  if (!json.is_object()) {
    throw Error(ErrorKind::corrupt_data, path.string(),
                str("expected a JSON object, found ", json.type_name()), "restore the file from its source");
  }
  return json;
}

void check_folder(const fs::path& folder) {
  const char* remedy = "pass a Hugging Face model folder (config.json and safetensors files) or a GGUF file";
  std::error_code ignored;
  if (!is_there(folder)) throw Error(ErrorKind::invalid_argument, folder.string(), "no such folder", remedy);
  if (!fs::is_directory(folder, ignored)) {
    throw Error(ErrorKind::invalid_argument, folder.string(),
                "expected a folder or a .gguf file, found another file", remedy);
  }
  if (!is_there(folder / kConfigName)) {
    throw Error(ErrorKind::invalid_argument, folder.string(), "no config.json in this folder", remedy);
  }
}

// Whether an index entry is a plain safetensors file name, and so stays inside the folder.
bool is_plain_name(const std::string& name) {
  return name.size() > std::string_view(kSuffix).size() && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Index read_index(const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::corrupt_data, path.string(), what, "restore the index from its source");
  };
  const Json json = read_object(path);
  const auto found = json.find("weight_map");
  if (found == json.end() || !found->is_object()) refuse("expected an object \"weight_map\"");
  Index index;
  for (const auto& [name, file] : found->items()) {
    if (!file.is_string()) {
      refuse(str("expected a file name for tensor ", quote_name(name), " in \"weight_map\", found ",
                 file.type_name()));
    }
    const auto& text = file.get_ref<const std::string&>();
    if (!is_plain_name(text)) {
      refuse(str("expected the name of a .safetensors file in the same folder for tensor ", quote_name(name),
                 ", found ", quote_name(text)));
    }
    index.map.emplace(name, text);
  }
  if (index.map.empty()) refuse("\"weight_map\" names no tensor");
  if (json.contains("metadata") && json.at("metadata").is_object())
    index.total_size = json.at("metadata").value("total_size", Json());
  return index;
}

// "-00002-of-00003.safetensors": 3; nothing for other names.
std::optional<int> shards_in_name(const std::string& name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string::npos || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string count = name.substr(of + 4, name.size() - std::string_view(kSuffix).size() - (of + 4));
  const bool digits =
      std::all_of(count.begin(), count.end(), [](unsigned char c) { return std::isdigit(c); });
  if (!digits || count.empty() || count.size() > 6) return std::nullopt;
  return std::stoi(count);
}

// The one weight file of a folder without an index.
std::string single_file(const fs::path& folder) {
  const std::vector<std::string> names = file_names(folder);
  if (is_there(folder / kSingleWeightsName)) return kSingleWeightsName;
  std::vector<std::string> weights;
  std::vector<std::string> pickles;
  for (const std::string& name : names) {
    const std::string extension = fs::path(name).extension().string();
    if (extension == kSuffix) weights.push_back(name);
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") pickles.push_back(name);
  }
  if (weights.size() == 1 && shards_in_name(weights[0]).value_or(1) == 1) return weights[0];
  if (!weights.empty()) {
    throw Error(ErrorKind::invalid_argument, folder.string(),
                str("no ", kIndexName, " for the shards here: ", quote_names(weights, kListMax)),
                "download the index and every shard that it names");
  }
  if (!pickles.empty()) {
    throw Error(ErrorKind::invalid_argument, folder.string(),
                "no safetensors file, only " + quote_names(pickles, kListMax) +
                    " (.bin, .pt and .pth are pickles, which can run code and are never loaded)",
                "convert the model to safetensors");
  }
  throw Error(ErrorKind::invalid_argument, folder.string(),
              "no safetensors file, found only " + quote_names(names, kListMax),
              "download the weights or convert them to safetensors");
}

// The shards that the index names, in order.
std::vector<std::string> shard_names(const WeightMap& map) {
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  return {shards.begin(), shards.end()};
}

// Throws naming every shard that is not in the folder.
void refuse_missing(const fs::path& folder, const std::vector<std::string>& shards) {
  std::vector<std::string> missing;
  std::copy_if(shards.begin(), shards.end(), std::back_inserter(missing),
               [&](const std::string& shard) { return !is_there(folder / shard); });
  if (missing.empty()) return;
  throw Error(ErrorKind::invalid_argument, folder.string(),
              str(missing.size(), " of ", shards.size(), " files that ", kIndexName,
                  " names are missing: ", quote_names(missing, missing.size())),
              "download them");
}

// Opens every shard that is there; damage in several is reported together.
std::map<std::string, SafetensorsFile> open_shards(const fs::path& folder,
                                                   const std::vector<std::string>& names) {
  std::map<std::string, SafetensorsFile> files;
  std::vector<Error> faults;
  for (const std::string& name : names) {
    if (!is_there(folder / name)) continue;
    try {
      files.emplace(name, SafetensorsFile(folder / name));
    } catch (const Error& error) {
      faults.push_back(error);
    }
  }
  if (faults.size() == 1) throw faults[0];
  if (!faults.empty()) {
    std::string all = str(faults.size(), " of ", names.size(), " weight files cannot be read: ");
    for (size_t i = 0; i < std::min(faults.size(), kListMax); ++i)
      all += str(i == 0 ? "" : " | ", faults[i].what());
    if (faults.size() > kListMax) all += str(" | and ", faults.size() - kListMax, " more");
    throw Error(faults[0].kind(), folder.string(), all);
  }
  return files;
}

// All tensors of all shards; throws when one stands twice, or not where the index says.
std::map<std::string, StoredTensor> merge(const fs::path& folder,
                                          const std::map<std::string, SafetensorsFile>& files,
                                          const WeightMap& map) {
  std::map<std::string, StoredTensor> tensors;
  std::vector<std::string> twice;
  for (const auto& [file_name, file] : files) {
    for (const auto& [name, stored] : file.tensors()) {
      if (!tensors.emplace(name, stored).second) twice.push_back(name);
    }
  }
  std::sort(twice.begin(), twice.end());
  twice.erase(std::unique(twice.begin(), twice.end()), twice.end());
  std::vector<std::string> absent;
  for (const auto& [name, shard] : map) {
    const auto file = files.find(shard);
    if (file == files.end() || !file->second.contains(name)) absent.push_back(name);
  }
  std::string faults;
  if (!twice.empty())
    faults = str(twice.size(), " tensors stand in two shards: ", quote_names(twice, kListMax));
  if (!absent.empty()) {
    faults += str(faults.empty() ? "" : "; ", absent.size(), " tensors are not in the shard that ",
                  kIndexName, " names for them: ", quote_names(absent, kListMax));
  }
  if (!faults.empty()) {
    throw Error(ErrorKind::corrupt_data, folder.string(), faults,
                "download index and shards of the same revision again");
  }
  return tensors;
}

// Whether a file at the top of a model's folder holds weights, or is the index of such files.
bool is_weight_file(const std::string& name) {
  constexpr std::array<std::string_view, 7> kSuffixes{
      ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// Adds what lies in `folder` / `below`; `written` are the names at the top that an output has in a form of its own.
void collect_side_files(const fs::path& folder, const fs::path& below, const std::set<std::string>& written,
                        SideFiles& side) {
  const bool top = below.empty();
  std::error_code error, ignored;
  fs::directory_iterator entries(folder / below, error);
  if (error)
    throw Error(ErrorKind::io, (folder / below).string(), "cannot list the folder: " + error.message());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (top && written.contains(name)) continue;
    const bool folder_here = entry.is_directory(ignored) && !entry.is_symlink(ignored);
    if (name.starts_with('.') || (top && is_weight_file(name)) ||
        (folder_here ? is_there(entry.path() / kReportName) || name.ends_with(kJournalSuffix)
                     : !entry.is_regular_file(ignored))) {
      side.left_out.push_back(below / name);
    } else if (folder_here) {
      collect_side_files(folder, below / name, written, side);
    } else {
      side.files.push_back(below / name);
    }
  }
}

}  // namespace

struct Checkpoint::State {
  fs::path folder, side_folder;
  Json config;
  Index index;
  std::vector<std::string> weight_files;
  std::map<std::string, StoredTensor> stored;   // as the files name them
  std::map<std::string, StoredTensor> tensors;  // values
};

Checkpoint::Checkpoint(const fs::path& folder) : state_(std::make_unique<State>()) {
  state_->folder = state_->side_folder = folder;
  if (gguf::is_model_file(folder)) {
    gguf::ModelFile model = gguf::open_model(folder);
    state_->config = std::move(model.config);
    state_->tensors = std::move(model.tensors);
    return;
  }
  check_folder(folder);
  Problems problems;
  problems.check([&] { state_->config = read_object(folder / kConfigName); });
  problems.check([&] {
    if (is_there(folder / kIndexName)) {
      state_->index = read_index(folder / kIndexName);
      state_->weight_files = shard_names(state_->index.map);
      refuse_missing(folder, state_->weight_files);
    } else {
      state_->weight_files = {single_file(folder)};
    }
  });
  std::map<std::string, SafetensorsFile> files;
  problems.check([&] { files = open_shards(folder, state_->weight_files); });
  problems.refuse();
  state_->stored = merge(folder, files, state_->index.map);
  state_->tensors = state_->stored;
  fold_encoded(state_->tensors, state_->config, folder.string());
}

Checkpoint::Checkpoint(const std::string& name, const Json& config,
                       std::map<std::string, StoredTensor> tensors, const fs::path& side_folder)
    : state_(std::make_unique<State>()) {
  if (!config.is_object())
    throw Error(ErrorKind::invalid_argument, name, "its configuration is no JSON object", "pass an object");
  state_->folder = name;
  state_->side_folder = side_folder;
  state_->config = config;
  state_->stored = tensors;
  state_->tensors = std::move(tensors);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;

const fs::path& Checkpoint::folder() const noexcept { return state_->folder; }
const fs::path& Checkpoint::side_folder() const noexcept { return state_->side_folder; }
const Json& Checkpoint::config() const noexcept { return state_->config; }
const std::map<std::string, StoredTensor>& Checkpoint::tensors() const noexcept { return state_->tensors; }
bool Checkpoint::contains(const std::string& name) const { return state_->tensors.contains(name); }

const StoredTensor& Checkpoint::tensor(const std::string& name) const {
  const auto found = state_->tensors.find(name);
  if (found == state_->tensors.end()) {
    throw Error(ErrorKind::corrupt_data, state_->folder.string(),
                str("no tensor ", quote_name(name), " among the ", state_->tensors.size(), " of this model"),
                "check that config.json and the weights belong together");
  }
  return found->second;
}

const StoredTensor& Checkpoint::tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto text = [](const std::vector<int64_t>& dims) {
    std::string out = "[";
    for (size_t i = 0; i < dims.size(); ++i) out += str(i == 0 ? "" : ", ", dims[i]);
    return out + "]";
  };
  const StoredTensor& found = tensor(name);
  if (found.shape != shape) {
    throw Error(
        ErrorKind::corrupt_data, found.path().string(),
        str("tensor ", quote_name(name), " has shape ", text(found.shape), ", expected ", text(shape)),
        "check that config.json and the weights belong together");
  }
  return found;
}

std::vector<std::string> Checkpoint::index_faults() const {
  std::vector<std::string> faults;
  const Index& index = state_->index;
  if (index.map.empty()) return faults;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : state_->stored) {
    bytes += tensor.bytes.size();
    if (!index.map.contains(name)) {
      faults.push_back(str(kIndexName, ": does not name tensor ", quote_name(name), " of ",
                           tensor.path().filename().string()));
    }
  }
  if (!index.total_size.is_null() && index.total_size != Json(bytes)) {
    faults.push_back(
        str(kIndexName, ": total_size is ", index.total_size.dump(), ", the tensors have ", bytes, " bytes"));
  }
  return faults;
}

SideFiles Checkpoint::side_files() const {
  SideFiles side;
  if (state_->side_folder.empty() || gguf::is_model_file(state_->side_folder)) return side;
  std::set<std::string> written{kConfigName, kIndexName, "quantize_config.json", "quant_config.json"};
  written.insert(state_->weight_files.begin(), state_->weight_files.end());
  collect_side_files(state_->side_folder, "", written, side);
  std::sort(side.files.begin(), side.files.end());
  std::sort(side.left_out.begin(), side.left_out.end());
  return side;
}

}  // namespace gramian
