// Low-rank adapters (LoRA, Hu et al. 2022) as a PEFT folder stores them: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace gramian {

// A module's output y becomes y + scale · (x Aᵀ) Bᵀ.
struct LowRank {
  at::Tensor a;  // f32 [rank, in]
  at::Tensor b;  // f32 [out, rank]
  double scale = 1;
};

struct LoraAdapter {
  std::filesystem::path weights;           // the file, for messages
  std::map<std::string, LowRank> modules;  // by full module name
};

// scale = lora_alpha / rank, with use_rslora / √rank; ranks and alphas of single modules by rank_pattern and alpha_pattern. Throws
// invalid_argument for a folder that is none; corrupt_data, with the tensor, where parts are missing or do not fit one another;
// unsupported for what is more than a product of two matrices (DoRA, trained biases, modules saved whole, embeddings).
LoraAdapter read_lora_adapter(const std::filesystem::path& folder);

}  // namespace gramian
