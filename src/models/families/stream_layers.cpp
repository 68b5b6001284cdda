#include "models/families/stream_layers.h"

namespace gramian {

nlohmann::ordered_json with_plain_layer_types(const ConfigReader& config) {
  nlohmann::ordered_json json = config.json();
  if (!config.has("layer_types") || !json.at("layer_types").is_array()) return json;
  for (auto& type : json.at("layer_types")) {
    if (type == "indexed_attention") type = "full_attention";
  }
  return json;
}

std::unique_ptr<DecoderLayer> stream_layer(const DecoderSpec& spec, const Weights& weights,
                                           const std::string& prefix, int64_t index,
                                           const StreamNames& names) {
  std::unique_ptr<NgramEmbedding> ngrams;
  if (spec.ngrams && spec.ngram_layers[static_cast<size_t>(index)])
    ngrams = std::make_unique<NgramEmbedding>(weights, prefix + "ple.", *spec.ngrams);
  return std::make_unique<StreamLayer>(weights, prefix, *spec.streams, names, spec.norms.spec,
                                       make_mixer(spec, weights, prefix, index),
                                       make_mlp(spec, weights, prefix, index), std::move(ngrams));
}

void read_pools(const ConfigReader& config, const std::string& pool_key, const std::string& tokens_key,
                KeyIndexerSpec& index) {
  index.pool = config.integer(pool_key);
  const int64_t tokens = config.integer(tokens_key);
  if (tokens % index.pool != 0)
    config.fail(tokens_key, str("(", tokens, ") must be a multiple of ", pool_key, " (", index.pool, ")"));
  index.pools_max = tokens / index.pool;
}

}  // namespace gramian
