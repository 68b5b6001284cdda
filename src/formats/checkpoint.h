// A model: a Hugging Face folder of config.json, one safetensors file or an index with shards, and side files; or a GGUF file, in the
// same form (formats/gguf/model_reader.h).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"

namespace gramian {

// The report that a job of this program leaves in its output folder.
inline constexpr const char* kReportName = "gramian-report.json";
// The folder of a job that is not finished is named like its output, with this behind it.
inline constexpr const char* kJournalSuffix = ".journal";

// Files beside the weights, as paths below the model's folder, sorted.
struct SideFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::filesystem::path> left_out;
};

class Checkpoint {
 public:
  // Opens and checks the whole folder: config.json is JSON with an object at the top; all shards that the
  // index names exist and can be read; every tensor that the index names stands in the shard it names; no
  // tensor stands in two shards. Throws invalid_argument or corrupt_data with everything that was found.
  explicit Checkpoint(const std::filesystem::path& folder);
  // The weights of a model that is in memory, called `name` in messages. `config`: an object. `side_folder`: a folder of side
  // files alone (a tokenizer), or empty.
  Checkpoint(const std::string& name, const nlohmann::ordered_json& config,
             std::map<std::string, StoredTensor> tensors, const std::filesystem::path& side_folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;

  // The path that was given: a folder or a GGUF file.
  const std::filesystem::path& folder() const noexcept;
  // config.json with its keys in file order.
  const nlohmann::ordered_json& config() const noexcept;
  // What the folder holds as values: codes and scales of an encoding (formats/encoded_tensor.h) are one entry. Throws
  // corrupt_data where they do not belong together.
  const std::map<std::string, StoredTensor>& tensors() const noexcept;
  bool contains(const std::string& name) const;
  // Throws corrupt_data naming the folder and the tensor.
  const StoredTensor& tensor(const std::string& name) const;
  // Like tensor(), and the shape must be `shape` (else corrupt_data with both shapes).
  const StoredTensor& tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  // What the index says that is wrong without keeping the tensors from being read: tensors that it does not name, a
  // total_size that is not the sum of the tensors' bytes. One line each; nothing without an index.
  std::vector<std::string> index_faults() const;
  // Everything that belongs to the model besides its weights and configuration: tokenizer, templates, code, whatever else,
  // and sub-folders with all that is in them. Links to files are followed. Left out: names that begin with a dot, links to
  // folders, what is no file (links to nothing too), folders that hold a report of this program (its outputs) or an unfinished job of it, and at the
  // top further weights (.safetensors, .bin, .pt, .pth, .gguf and their indexes). Neither: the model's own weights,
  // config.json and a quantizer's configuration (quantize_config.json, quant_config.json). Throws io.
  SideFiles side_files() const;
  // Where they lie, and what formats/model_files.h reads: folder(), but for a model in memory, where it may be empty.
  const std::filesystem::path& side_folder() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gramian
