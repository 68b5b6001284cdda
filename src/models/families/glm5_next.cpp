// GLM 5.3, the text part of a multimodal file: Kimi delta attention with a bounded decay, in every fourth layer latent
// attention over the keys that an indexer picks; mixtures routed like those of DeepSeek-V3; hyper-connections for a residual.
#include <algorithm>

#include "models/families/delta_rule_layers.h"
#include "models/families/grouped_moe.h"
#include "models/families/registry.h"
#include "models/families/stream_layers.h"
#include "models/families/trees.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDefaults[] = R"({
  "vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 45,
  "num_attention_heads": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 1048576,
  "moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8, "n_shared_experts": 1,
  "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "first_k_dense_replace": 3, "swiglu_limit": 10.0,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
  "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
  "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
  "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 16})";

// The settings under the names that other families have for them.
Json renamed(const ConfigReader& config) {
  Json json = with_kimi_delta_sizes(config);
  const ConfigReader nested = config.object("linear_attn_config");
  if (nested.has("gate_lower_bound")) json["linear_lower_bound"] = nested.json().at("gate_lower_bound");
  json["layer_types"] = with_plain_layer_types(config).value("layer_types", Json());
  json["head_dim"] = config.integer("qk_nope_head_dim");
  // transformers wants as many as heads, and files that leave them out have as many.
  json["num_key_value_heads"] = config.integer("num_attention_heads");
  return json;
}

// Whether each layer takes over the keys of an earlier one: indexer_types, or the older keys that they are made of.
std::vector<bool> read_shared_index(const ConfigReader& config, int64_t layers) {
  std::vector<bool> shared;
  if (config.has("indexer_types") || config.has("index_topk_pattern")) {
    const char* key = config.has("indexer_types") ? "indexer_types" : "index_topk_pattern";
    Json types = config.json().at(key);
    if (types.is_string()) {
      const auto letters = types.get<std::string>();
      types = Json::array();
      for (const char letter : letters) types.push_back(std::string(1, letter));
    }
    if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
      config.fail(key, "must name the kind of every layer's indexer");
    for (const auto& type : types) {
      if (type != "full" && type != "F" && type != "shared" && type != "S")
        config.fail(key, "holds " + type.dump() + ", known: full, shared");
      shared.push_back(type == "shared" || type == "S");
    }
    return shared;
  }
  const int64_t every = config.integer_or("index_topk_freq", 1);
  const int64_t offset = config.integer_or("index_skip_topk_offset", 2, 0);
  for (int64_t i = 0; i < layers; ++i) shared.push_back(std::max<int64_t>(i - offset + 1, 0) % every != 0);
  return shared;
}

LatentAttentionSpec read_attention(const ConfigReader& config, const DecoderSpec& spec) {
  LatentAttentionSpec latent = read_latent_attention(config, spec);
  if (latent.rope_dim > 0) config.fail("qk_rope_head_dim", "must be 0: these heads know no positions");
  if (latent.q_rank == 0) config.fail("q_lora_rank", "is missing, which the indexer reads");
  latent.norm = spec.norms.spec;
  latent.rope.reset();
  KeyIndexerSpec index{
      .kind = KeyIndexerSpec::Kind::weighted, .hidden = spec.hidden, .latent = latent.q_rank};
  index.heads = config.integer("index_n_heads");
  index.dim = config.integer("index_head_dim");
  index.norm = {.kind = NormKind::layer, .eps = 1e-6, .bias = true};
  read_pools(config, "index_kpool", "index_topk", index);
  if (!config.boolean_or("index_kpool_always_select_tail", true)) {
    throw Error(ErrorKind::unsupported, config.where(), "index_kpool_always_select_tail: false",
                "the first tokens of a row would read no key");
  }
  latent.index = index;
  return latent;
}

DecoderSpec read(const ConfigReader& original) {
  const Json json = renamed(original);
  const ConfigReader config(json, original.where());
  DecoderSpec spec = describe_sizes(config);
  spec.mlp.activation = read_activation(config);
  spec.mlp.limit = config.number("swiglu_limit");
  if (!(spec.mlp.limit > 0)) config.fail("swiglu_limit", "must be positive");
  spec.latent = read_attention(config, spec);
  spec.shared_index = read_shared_index(config, spec.layers());
  read_recurrent_layers(config, spec, "full_attention", [](int64_t layer) { return layer % 4 != 3; });
  spec.kimi_delta = KimiDeltaSpec{.sizes = read_delta_sizes(config, spec.hidden),
                                  .lower_bound = {},
                                  .norm = {.eps = spec.norms.spec.eps, .gate = Gate::sigmoid}};
  if (config.has("linear_lower_bound")) {
    spec.kimi_delta->lower_bound = config.number("linear_lower_bound");
    if (!(*spec.kimi_delta->lower_bound < 0)) config.fail("linear_lower_bound", "must be negative");
  }
  read_grouped_mixture(config, spec);
  spec.streams = StreamSpec{.kind = StreamSpec::Kind::hyper,
                            .hidden = spec.hidden,
                            .count = config.integer("hc_mult", 1, 64),
                            .norm = spec.norms.spec,
                            .floor = read_eps(config, "hc_eps"),
                            .rounds = config.integer("hc_sinkhorn_iters", 1, 1000)};
  return spec;
}

std::unique_ptr<DecoderLayer> layer(const DecoderSpec& spec, const Weights& weights,
                                    const std::string& prefix, int64_t index) {
  return stream_layer(spec, weights, prefix, index,
                      {"hc_attn", "hc_ffn", spec.norms.before_attention, spec.norms.before_mlp});
}

}  // namespace

Family glm5_next() {
  return Family{"glm5_next_text", "Glm5NextForConditionalGeneration", kDefaults, read, layer, layer_modules,
                {"glm5_next"}}
      .with_tree({trees::kLatentAttention, trees::kGroupedMixture});
}

}  // namespace gramian
