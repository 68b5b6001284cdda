// A model with all its layers in memory, plain or QQQ, ready to run rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "models/model.h"

namespace gramian {

struct OpenOptions {
  std::string dtype = "auto";  // see parse_dtype()
  bool treat_as_tied = false;
};

class ResidentModel {
 public:
  // Opens a model folder and materializes every layer: QQQ modules as int8 weights with dynamic int8 activations,
  // everything else in the chosen type. `pool` runs the quantized products.
  ResidentModel(const std::filesystem::path& folder, const OpenOptions& options,
                std::shared_ptr<ThreadPool> pool);

  const Model& model() const noexcept { return model_; }
  // Rows -> states after the final norm, packed [tokens, hidden]. Not thread-safe.
  at::Tensor states(const std::vector<TokenRow>& rows);
  // f32 [tokens, vocab] of states.
  at::Tensor logits(const at::Tensor& states) const { return model_.logits(states); }
  int64_t linear_multiplications() const noexcept { return multiplications_; }

 private:
  Model model_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  int64_t multiplications_ = 0;
};

}  // namespace gramian
