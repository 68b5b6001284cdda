// Qwen 4 (experimental), text: gated delta nets, in every fourth layer gated attention over the keys that an indexer picks;
// mixtures with a shared expert; gated residual streams, to which some layers add hashed n-grams.
#include <algorithm>
#include <cmath>

#include "models/families/delta_rule_layers.h"
#include "models/families/qwen_moe.h"
#include "models/families/registry.h"
#include "models/families/stream_layers.h"
#include "models/families/trees.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDefaults[] = R"({
  "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
  "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
  "hc_count": 4, "hc_lowrank": 320, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
  "split_ngram_parts": 512})";

KeyIndexerSpec read_index(const ConfigReader& config, const DecoderSpec& spec) {
  if (config.integer("indexer_kv_heads") != 1) config.fail("indexer_kv_heads", "must be 1");
  KeyIndexerSpec index{.kind = KeyIndexerSpec::Kind::mean, .hidden = spec.hidden};
  index.heads = config.integer("indexer_n_heads");
  index.dim = config.integer("indexer_head_dim");
  index.norm = spec.norms.spec;
  read_pools(config, "indexer_compress_ratio", "indexer_budget", index);
  if (spec.ropes[0].rotary_dim > index.dim) {
    config.fail("indexer_head_dim",
                str("(", index.dim, ") must hold the ", spec.ropes[0].rotary_dim, " entries that turn"));
  }
  return index;
}

// The token that ends a text; a list's first.
int64_t read_eos(const ConfigReader& config) {
  if (!config.has("eos_token_id")) config.fail("eos_token_id", "is missing, which the n-grams need");
  Json json = config.json();
  const Json& eos = json.at("eos_token_id");
  if (eos.is_array() && !eos.empty()) json["eos_token_id"] = Json(eos[0]);
  return ConfigReader(json, config.where()).integer("eos_token_id", 0);
}

// ple_layer_ids counts from 1.
void read_ngrams(const ConfigReader& config, DecoderSpec& spec) {
  if (!config.has("ple_layer_ids")) return;
  const Json& ids = config.json().at("ple_layer_ids");
  if (!ids.is_array()) config.fail("ple_layer_ids", "must be a list of layer numbers");
  if (ids.empty()) return;
  spec.ngram_layers.assign(spec.attention.size(), false);
  for (const auto& id : ids) {
    if (!id.is_number_integer() || id < 1 || id > spec.layers())
      config.fail("ple_layer_ids", str("holds ", id.dump(), ", layers are 1 to ", spec.layers()));
    spec.ngram_layers[id.get<size_t>() - 1] = true;
  }
  NgramSpec ngrams{.streams = *spec.streams};
  ngrams.order = config.integer("ngram_size", 2, 64);
  ngrams.heads_per_order = config.integer("heads_per_ngram", 1, 1 << 12);
  ngrams.dim = config.integer_or("ple_embed_dim", spec.hidden);
  ngrams.kernel = config.integer("ple_conv_kernel_size", 1, 64);
  ngrams.shards = config.integer("split_ngram_parts", 1, 1 << 16);
  ngrams.eos = read_eos(config);
  if (ngrams.dim % ngrams.heads() != 0)
    config.fail("ple_embed_dim",
                str("(", ngrams.dim, ") must be a multiple of the ", ngrams.heads(), " heads"));
  spec.ngrams = ngrams;
}

DecoderSpec read(const ConfigReader& file) {
  const Json sized = with_intermediate_size(file);
  const Json json = with_plain_layer_types({sized, file.where()});
  const ConfigReader config(json, file.where());
  DecoderSpec spec = describe_qwen_hybrid(config, DeltaProjections::joined);
  const std::string gate = config.text_or("output_gate_type", "silu");
  if (gate != "silu" && gate != "sigmoid") {
    throw Error(ErrorKind::unsupported, config.where(), str("output_gate_type '", gate, "'"),
                "known: silu, sigmoid");
  }
  if (gate == "sigmoid") spec.delta_net->norm.gate = Gate::sigmoid;
  const KeyIndexerSpec index = read_index(config, spec);
  for (AttentionSpec& attention : spec.attention) attention.index = index;
  read_qwen_mixture(config, spec, true);
  spec.streams = StreamSpec{.kind = StreamSpec::Kind::gated,
                            .hidden = spec.hidden,
                            .count = config.integer("hc_count", 2, 64),
                            .norm = spec.norms.spec,
                            .rank = config.integer("hc_lowrank")};
  read_ngrams(config, spec);
  return spec;
}

std::unique_ptr<DecoderLayer> layer(const DecoderSpec& spec, const Weights& weights,
                                    const std::string& prefix, int64_t index) {
  return stream_layer(spec, weights, prefix, index, {"attn_hyper_connection", "mlp_hyper_connection"});
}

}  // namespace

Family qwen4_exp_text() {
  return Family{"qwen4_exp_text", "Qwen4ExpForCausalLM", kDefaults, read, layer, layer_modules, {"qwen4_exp"}}
      .with_tree({trees::kIndexedAttention, trees::kDeltaNet, trees::kQwenMixture, trees::kHyperConnections});
}

}  // namespace gramian
