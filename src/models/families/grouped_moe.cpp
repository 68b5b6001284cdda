#include "models/families/grouped_moe.h"

#include <cmath>

namespace gramian {
namespace {

RouterSpec read_router(const ConfigReader& config) {
  RouterSpec router{.rule = RouterSpec::Rule::sigmoid};
  router.experts = config.integer("n_routed_experts");
  router.norm_top_k = config.boolean_or("norm_topk_prob", true);
  router.scale = config.number("routed_scaling_factor");
  router.groups = config.integer("n_group");
  router.top_groups = config.integer("topk_group");
  // A group is scored by its two best experts.
  if (router.experts % router.groups != 0 || router.experts / router.groups < 2)
    config.fail("n_group", str("must divide the ", router.experts, " experts into groups of two or more"));
  if (router.top_groups > router.groups)
    config.fail("topk_group", str("must not exceed n_group (", router.groups, ")"));
  read_top_k(config, router);
  if (router.top_k > router.experts / router.groups * router.top_groups)
    config.fail("num_experts_per_tok", "must not exceed the experts of topk_group groups");
  return router;
}

// Whether each layer's MLP is dense.
std::vector<bool> read_dense_layers(const ConfigReader& config, int64_t layers) {
  std::vector<bool> dense;
  if (!config.has("mlp_layer_types")) {
    const int64_t first = config.integer("first_k_dense_replace", 0);
    for (int64_t i = 0; i < layers; ++i) dense.push_back(i < first);
    return dense;
  }
  const auto& types = config.json().at("mlp_layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    config.fail("mlp_layer_types", "must name the kind of every layer's MLP");
  for (const auto& type : types) {
    if (type != "dense" && type != "sparse")
      config.fail("mlp_layer_types", "holds " + type.dump() + ", known: dense, sparse");
    dense.push_back(type == "dense");
  }
  return dense;
}

}  // namespace

LatentAttentionSpec read_latent_attention(const ConfigReader& config, const DecoderSpec& spec) {
  LatentAttentionSpec latent;
  latent.hidden = spec.hidden;
  latent.heads = spec.attention[0].heads;
  latent.q_rank = config.has("q_lora_rank") ? config.integer("q_lora_rank") : 0;
  latent.kv_rank = config.integer("kv_lora_rank");
  latent.nope_dim = config.integer("qk_nope_head_dim");
  latent.rope_dim = config.integer("qk_rope_head_dim", 0);
  latent.v_dim = config.integer("v_head_dim");
  latent.bias = config.boolean_or("attention_bias", false);
  latent.scale = 1 / std::sqrt(static_cast<double>(latent.head_dim()));
  return latent;
}

void read_grouped_mixture(const ConfigReader& config, DecoderSpec& spec) {
  MixtureSpec mixture{.router = read_router(config), .expert = spec.mlp};
  mixture.expert.intermediate = config.integer("moe_intermediate_size");
  const int64_t shared = config.integer("n_shared_experts", 0, 1 << 16);
  if (shared > 0) {
    mixture.shared = "shared_experts";
    mixture.shared_expert = mixture.expert;
    mixture.shared_expert.intermediate *= shared;
  }
  for (const bool dense : read_dense_layers(config, spec.layers()))
    spec.mixture.push_back(dense ? MixtureSpec{} : mixture);
}

}  // namespace gramian
