// A model written again with other values in some of its tensors; everything else stays byte for byte.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "models/model.h"

namespace gramian {

// Opens what is to be rewritten into `output`. Throws invalid_argument for an output that may not be replaced and for a quantized model,
// unsupported for stored codes.
std::unique_ptr<const Model> open_for_rewriting(const std::filesystem::path& source,
                                                const std::filesystem::path& output, bool force,
                                                at::ScalarType dtype);

class Rewriting {
 public:
  using Step = std::function<at::Tensor(const at::Tensor& values)>;  // f64 in and out, same shape

  // `remedy`: what helps when a new value leaves the tensor's type.
  Rewriting(const Checkpoint& source, std::string remedy);
  // Steps of one tensor run in the order in which they were added, those of its columns first.
  void columns(const std::string& tensor, Step step);  // gets some rows at a time
  void rows(const std::string& tensor, Step step);     // gets the whole tensor
  void replace(const std::string& tensor, at::Tensor values);
  // A new tensor that begins as a copy of another one.
  void add(const std::string& tensor, const std::string& like);
  nlohmann::ordered_json& config() { return config_; }
  // Makes the folder; returns the bytes of its weights. Values are rounded to the type they are stored in.
  uint64_t write(const std::filesystem::path& output, bool force) const;

 private:
  struct Change {
    std::vector<Step> columns, rows;
    at::Tensor instead;  // undefined: the source's values
  };
  at::Tensor changed(const std::string& name, const StoredTensor& stored) const;
  uint64_t write_into(const std::filesystem::path& folder) const;
  const Checkpoint& source_;
  std::string remedy_;
  nlohmann::ordered_json config_;
  std::map<std::string, Change> changes_;
  std::map<std::string, std::string> added_;  // name -> the one it is like
};

}  // namespace gramian
