// What a quantization job will do and write, decided from headers and options alone, before any work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/linear_format.h"
#include "models/model.h"

namespace gramian {

struct PlannedModule {
  Linear linear;         // name and shape; no `op`
  bool quantize = true;  // false: left as it is (--skip-unfit)
  std::string skip_reason;
  SolveOptions solve = {};  // as the format settles them
  LinearShape shape() const { return {linear.out_features, linear.in_features, linear.has_bias, dtype}; }
  DType dtype = DType::bf16;  // of the source's weight, bf16 where that is encoded
};

uint64_t bytes_of(const PlannedTensor& tensor);

struct QuantizePlan {
  const LinearFormat* format = nullptr;
  SolveOptions solve;                              // of modules with no rule of their own
  std::vector<std::vector<PlannedModule>> layers;  // in the order of the forward's pauses
  std::vector<PlannedTensor> tensors;              // of the output, sorted by name
  std::vector<std::string> copied;                 // source tensors that are copied byte for byte
  // Source tensors whose encoding the output's configuration cannot speak of beside its own (formats/encoded_tensor.h); their
  // values are written in bf16.
  std::vector<std::string> decoded;
  // The module called `name`, of one layer or of any; or nullptr.
  const PlannedModule* find(size_t layer, const std::string& name) const;
  const PlannedModule* find(const std::string& name) const;
  std::vector<std::string> skipped() const;
  // Modules with a matrix called .weight that is no linear layer of a decoder layer.
  std::vector<std::string> plain_matrices(const Checkpoint& source) const;
  int64_t quantized_weights() const;  // entries of all quantized weight matrices
  uint64_t packed_bits() const;       // of what is stored for them
};

// Throws unsupported listing every linear layer whose shape the format refuses; `where` is the model's folder.
void refuse_unfit(const std::string& where, const std::vector<std::vector<Linear>>& layers,
                  const LinearFormat& format, const GridOptions& grid);

// Throws what refuse_unfit() does, unless `skip_unfit`, and unsupported when nothing fits; corrupt_data for what
// Model::survey() finds.
QuantizePlan make_plan(const Model& model, const LinearFormat& format, const SolveOptions& solve,
                       bool skip_unfit);

}  // namespace gramian
