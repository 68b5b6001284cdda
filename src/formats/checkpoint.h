// A Hugging Face model folder: config.json, one safetensors file or an index with shards, and side files.
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

class Checkpoint {
 public:
  // Opens and checks the whole folder: config.json is JSON with an object at the top; all shards that the
  // index names exist (else one message lists every missing one); every tensor that the index names stands in
  // the shard it names; no tensor stands in two shards. Throws invalid_argument or corrupt_data.
  explicit Checkpoint(const std::filesystem::path& folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;

  const std::filesystem::path& folder() const noexcept;
  // config.json with its keys in file order.
  const nlohmann::ordered_json& config() const noexcept;
  const std::map<std::string, StoredTensor>& tensors() const noexcept;
  bool contains(const std::string& name) const;
  // Throws corrupt_data naming the folder and the tensor.
  const StoredTensor& tensor(const std::string& name) const;
  // Like tensor(), and the shape must be `shape` (else corrupt_data with both shapes).
  const StoredTensor& tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  // Regular files of the folder that are neither weights (safetensors, their index, .bin, .pt, .pth, .gguf),
  // config.json nor a quantizer's own configuration (quantize_config.json, quant_config.json). Sorted by
  // name.
  std::vector<std::filesystem::path> side_files() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gramian
