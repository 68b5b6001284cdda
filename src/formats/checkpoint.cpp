#include "formats/checkpoint.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kSuffix = ".safetensors";
// Names listed in one message, except missing files, which are all listed.
constexpr size_t kListMax = 10;

// Tensor name -> shard file name, as the index says; empty without an index.
using WeightMap = std::map<std::string, std::string>;

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
  const char* remedy = "pass a Hugging Face model folder (config.json and safetensors files)";
  std::error_code ignored;
  if (!is_there(folder)) throw Error(ErrorKind::invalid_argument, folder.string(), "no such folder", remedy);
  if (!fs::is_directory(folder, ignored)) {
    throw Error(ErrorKind::invalid_argument, folder.string(), "expected a folder, found a file", remedy);
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

WeightMap read_index(const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::corrupt_data, path.string(), what, "restore the index from its source");
  };
  const Json index = read_object(path);
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) refuse("expected an object \"weight_map\"");
  WeightMap map;
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
    map.emplace(name, text);
  }
  if (map.empty()) refuse("\"weight_map\" names no tensor");
  return map;
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
  if (is_there(folder / kSingleName)) return kSingleName;
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

// Shard names in order; throws naming every one that is not in the folder.
std::vector<std::string> present_shards(const fs::path& folder, const WeightMap& map) {
  std::set<std::string> shards;
  for (const auto& [name, shard] : map) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    if (!is_there(folder / shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::invalid_argument, folder.string(),
                str(missing.size(), " of ", shards.size(), " files that ", kIndexName,
                    " names are missing: ", quote_names(missing, missing.size())),
                "download them");
  }
  return {shards.begin(), shards.end()};
}

// Opens every shard; damage in several is reported together.
std::map<std::string, SafetensorsFile> open_shards(const fs::path& folder,
                                                   const std::vector<std::string>& names) {
  std::map<std::string, SafetensorsFile> files;
  std::vector<Error> faults;
  for (const std::string& name : names) {
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
    if (!files.at(shard).contains(name)) absent.push_back(name);
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

}  // namespace

struct Checkpoint::State {
  fs::path folder;
  Json config;
  std::map<std::string, StoredTensor> tensors;
};

Checkpoint::Checkpoint(const fs::path& folder) : state_(std::make_unique<State>()) {
  check_folder(folder);
  state_->folder = folder;
  state_->config = read_object(folder / kConfigName);
  WeightMap map;
  std::vector<std::string> names;
  if (is_there(folder / kIndexName)) {
    map = read_index(folder / kIndexName);
    names = present_shards(folder, map);
  } else {
    names = {single_file(folder)};
  }
  state_->tensors = merge(folder, open_shards(folder, names), map);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;

const fs::path& Checkpoint::folder() const noexcept { return state_->folder; }
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
        ErrorKind::corrupt_data, found.file->path().string(),
        str("tensor ", quote_name(name), " has shape ", text(found.shape), ", expected ", text(shape)),
        "check that config.json and the weights belong together");
  }
  return found;
}

std::vector<fs::path> Checkpoint::side_files() const {
  constexpr std::array<std::string_view, 7> kSuffixes{
      ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"};
  constexpr std::array<std::string_view, 3> kNames{kConfigName, "quantize_config.json", "quant_config.json"};
  std::vector<fs::path> files;
  for (const std::string& name : file_names(state_->folder)) {
    const bool weights = std::any_of(kSuffixes.begin(), kSuffixes.end(),
                                     [&](std::string_view suffix) { return name.ends_with(suffix); });
    const bool known = std::find(kNames.begin(), kNames.end(), name) != kNames.end();
    if (!weights && !known) files.push_back(state_->folder / name);
  }
  return files;
}

}  // namespace gramian
