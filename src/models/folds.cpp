#include "models/folds.h"

#include "base/format.h"

namespace gramian {
namespace {

// Why no factor can move into or through the mixer; empty when one can.
std::string attention_obstacle(const DecoderSpec& spec, size_t layer) {
  if (!spec.recurrent.empty() && spec.recurrent[layer]) return "a delta rule";
  if (spec.latent) return "latent attention";
  if (spec.attention[layer].index) return "an indexer reads beside it";
  return "";
}

std::string mlp_obstacle(const DecoderSpec& spec, size_t layer) {
  const bool mixture = !spec.mixture.empty() && spec.mixture[layer].router.experts > 0;
  return mixture ? "a mixture of experts" : "";
}

}  // namespace

LayerFolds channel_folds(const DecoderSpec& spec, int64_t index) {
  const auto layer = static_cast<size_t>(index);
  LayerFolds result;
  if (spec.streams || spec.ngrams) {
    result.left_alone.emplace_back("several residual streams");
    return result;
  }
  const std::string no_attention = attention_obstacle(spec, layer), no_mlp = mlp_obstacle(spec, layer);
  const auto left_alone = [&](const char* what, const std::string& why) {
    if (!why.empty()) result.left_alone.push_back(str(what, ": ", why));
  };
  left_alone("attention", no_attention);
  left_alone("MLP", no_mlp);
  const ModuleTree mixer = mixer_modules(spec, index), mlp_tree = mlp_modules(spec, index);
  const auto norm = [&](const std::string& name, std::vector<std::string> readers) {
    result.folds.push_back({.giver = name,
                            .norm = spec.norms.spec.kind,
                            .channels = spec.hidden,
                            .readers = std::move(readers)});
  };
  const std::string& before_attention = spec.norms.before_attention;
  const std::string& before_mlp = spec.residual.parallel ? before_attention : spec.norms.before_mlp;
  if (before_attention.empty()) left_alone("attention", "no norm in front of it");
  if (before_mlp.empty()) left_alone("MLP", "no norm in front of it");
  if (spec.residual.parallel) {  // one norm: all of its readers, or none
    std::vector<std::string> readers = mixer[0];
    readers.insert(readers.end(), mlp_tree[0].begin(), mlp_tree[0].end());
    if (no_attention.empty() && no_mlp.empty() && !before_mlp.empty()) norm(before_mlp, readers);
  } else {
    if (no_attention.empty() && !before_attention.empty()) norm(before_attention, mixer[0]);
    if (no_mlp.empty() && !before_mlp.empty()) norm(before_mlp, mlp_tree[0]);
  }
  if (no_attention.empty()) {
    const AttentionSpec& attention = spec.attention[layer];
    const int64_t d = attention.head_dim;
    result.folds.push_back({.giver = mixer[0].back(),
                            .norm = {},
                            .first_row = attention.fused ? (attention.heads + attention.kv_heads) * d : 0,
                            .channels = attention.kv_heads * d,
                            .readers = mixer[1],
                            .head = d,
                            .repeat = attention.heads / attention.kv_heads});
  }
  if (no_mlp.empty()) {
    const MlpSpec& mlp = spec.mlp;
    if (mlp.limit > 0 || mlp.up_offset != 0) {
      left_alone(mlp.down.c_str(), "what it reads is cut or shifted");
    } else {
      result.folds.push_back({.giver = mlp_tree[0].back(),
                              .norm = {},
                              .first_row = mlp.fused ? mlp.intermediate : 0,
                              .channels = mlp.intermediate,
                              .readers = mlp_tree[1]});
    }
  }
  return result;
}

}  // namespace gramian
