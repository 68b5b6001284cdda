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
  std::filesystem::path adapter =
      {};                  // a PEFT folder of LoRA adapters for the model's linear layers; empty: none
  bool head_only = false;  // no layers: logits of states that were made before
};

// One per layer.
using LayerStates = std::vector<std::unique_ptr<MixerState>>;

class ResidentModel {
 public:
  // Opens a model folder and materializes every layer: QQQ modules as int8 weights with dynamic int8 activations,
  // everything else in the chosen type. `pool` runs the quantized products and the attention of single tokens.
  ResidentModel(const std::filesystem::path& folder, const OpenOptions& options,
                std::shared_ptr<ThreadPool> pool);

  const Model& model() const noexcept { return model_; }
  // Rows -> states after the final norm, packed [tokens, hidden]. Not thread-safe.
  at::Tensor states(const std::vector<TokenRow>& rows);
  // An empty state for each layer, of one run of rows that will hold `tokens_max` tokens each.
  LayerStates make_states(int64_t tokens_max) const;
  // A batch through all layers: ids i64 [tokens] -> hidden [tokens, hidden] before the final norm. Without `states` its rows
  // stand alone; with them it is one run, whose `past` tokens they hold, and they take up its tokens too. Not thread-safe.
  at::Tensor forward(const at::Tensor& ids, BatchContext& context, const LayerStates& states);
  // f32 [tokens, vocab] of states.
  at::Tensor logits(const at::Tensor& states) const { return model_.logits(states, pool_.get()); }
  int64_t linear_multiplications() const noexcept { return multiplications_; }

 private:
  std::shared_ptr<ThreadPool> pool_;
  Model model_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  int64_t multiplications_ = 0;
};

}  // namespace gramian
