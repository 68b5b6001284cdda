#include "models/rotations.h"

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace gramian {
namespace {

std::string layer_obstacle(const DecoderSpec& spec, int64_t index) {
  const LayerFolds folds = channel_folds(spec, index);
  size_t norms = 0;
  for (const ChannelFold& fold : folds.folds) norms += fold.norm.has_value() ? 1 : 0;
  if (norms < (spec.residual.parallel ? 1 : 2))
    return listed(folds.left_alone, [](const std::string& line) { return line; });
  return "";
}

}  // namespace

std::string residual_obstacle(const Model& model) {
  const DecoderSpec& spec = model.spec();
  if (spec.norms.spec.kind == NormKind::layer)
    return "its norms subtract the mean of the channels (LayerNorm)";
  if (!spec.norms.after_attention.empty() || !spec.norms.after_mlp.empty())
    return "norms stand between the linear layers and the residual stream";
  if (spec.mtp_layers > 0) return "its layers for multi-token prediction read the stream, too";
  if (model.checkpoint().config().contains("text_config"))
    return "other parts of the model read and write the stream";
  for (int64_t i = 0; i < spec.layers(); ++i) {
    const std::string why = layer_obstacle(spec, i);
    if (!why.empty()) return str(model.layer_prefix(i), " ", why);
  }
  return "";
}

ResidualPorts residual_ports(const DecoderSpec& spec, int64_t layer) {
  ResidualPorts ports;
  for (ChannelFold& fold : channel_folds(spec, layer).folds) {
    if (fold.norm) ports.norms.push_back(std::move(fold));
  }
  for (const ModuleTree& tree : {mixer_modules(spec, layer), mlp_modules(spec, layer)})
    ports.writers.insert(ports.writers.end(), tree.back().begin(), tree.back().end());
  return ports;
}

LayerFolds head_turns(const DecoderSpec& spec, int64_t layer) {
  LayerFolds all = channel_folds(spec, layer), heads;
  for (ChannelFold& fold : all.folds) {
    if (fold.head == 0) continue;
    if (spec.attention[static_cast<size_t>(layer)].gated) {
      heads.left_alone.emplace_back("attention: a gate stands between v and o");
    } else {
      heads.folds.push_back(std::move(fold));
    }
  }
  if (heads.folds.empty() && heads.left_alone.empty()) {
    for (std::string& line : all.left_alone) {
      if (!line.starts_with("MLP")) heads.left_alone.push_back(std::move(line));
    }
  }
  return heads;
}

}  // namespace gramian
