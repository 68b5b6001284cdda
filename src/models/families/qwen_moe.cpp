#include "models/families/qwen_moe.h"

#include <algorithm>

namespace gramian {
void read_qwen_mixture(const ConfigReader& config, DecoderSpec& spec, bool norm_top_k) {
  MixtureSpec mixture;
  mixture.router.experts =
      config.has("num_experts") ? config.integer("num_experts", 0) : config.integer("num_local_experts", 0);
  mixture.router.norm_top_k = config.boolean_or("norm_topk_prob", norm_top_k);
  read_top_k(config, mixture.router);
  mixture.expert = spec.mlp;
  mixture.expert.intermediate = config.integer("moe_intermediate_size");
  if (config.has("shared_expert_intermediate_size")) {
    mixture.shared = "shared_expert";
    mixture.shared_gate = true;
    mixture.shared_expert = spec.mlp;
    mixture.shared_expert.intermediate = config.integer("shared_expert_intermediate_size");
  }
  const int64_t step = config.integer_or("decoder_sparse_step", 1);
  const auto dense = config.integers("mlp_only_layers", "layer numbers").value_or(std::vector<int64_t>());
  for (int64_t i = 0; i < spec.layers(); ++i) {
    const bool mixed = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
    spec.mixture.push_back(mixed ? mixture : MixtureSpec{});
  }
}

}  // namespace gramian
