#include "formats/gguf/names.h"

#include <charconv>
#include <span>
#include <vector>

#include "base/error.h"

namespace gramian::gguf {
namespace {

struct Rule {
  std::string_view from, to;
};

// In this order both ways: the first that fits.
constexpr Rule kOutside[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Rule kInLayer[] = {{"input_layernorm", "attn_norm"},
                             {"self_attn.q_proj", "attn_q"},
                             {"self_attn.k_proj", "attn_k"},
                             {"self_attn.v_proj", "attn_v"},
                             {"self_attn.qkv_proj", "attn_qkv"},
                             {"self_attn.o_proj", "attn_output"},
                             {"self_attn.q_norm", "attn_q_norm"},
                             {"self_attn.k_norm", "attn_k_norm"},
                             {"post_attention_layernorm", "ffn_norm"},
                             {"mlp.gate_proj", "ffn_gate"},
                             {"mlp.up_proj", "ffn_up"},
                             {"mlp.down_proj", "ffn_down"}};
constexpr Rule kMixture[] = {{"mlp.gate", "ffn_gate_inp"},
                             {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                             {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                             {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                             {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}};
constexpr Rule kMixtral[] = {{"block_sparse_moe.gate", "ffn_gate_inp"}};
constexpr Rule kGemma[] = {{"post_attention_layernorm", "post_attention_norm"},
                           {"pre_feedforward_layernorm", "ffn_norm"},
                           {"post_feedforward_layernorm", "post_ffw_norm"}};
constexpr Rule kPhi[] = {{"mlp.gate_up_proj", "ffn_up"}};
// Behind "experts.E.".
constexpr Rule kInExpert[] = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"}};
constexpr Rule kInMixtralExpert[] = {{"w1", "ffn_gate_exps"}, {"w3", "ffn_up_exps"}, {"w2", "ffn_down_exps"}};
constexpr std::string_view kExpertsIn[] = {"mlp.experts.", "block_sparse_moe.experts."};

// The tables of a family's layers, the most particular first.
std::vector<std::span<const Rule>> layer_rules(std::string_view model_type) {
  if (model_type == "mixtral") return {kMixtral, kMixture, kInLayer};
  if (model_type.starts_with("gemma2") || model_type.starts_with("gemma3")) return {kGemma, kInLayer};
  if (model_type == "phi3") return {kPhi, kInLayer};
  return {kMixture, kInLayer};
}

std::string_view find(std::span<const Rule> rules, std::string_view name, bool back = false) {
  for (const Rule& rule : rules) {
    if ((back ? rule.to : rule.from) == name) return back ? rule.from : rule.to;
  }
  return {};
}

std::string_view find(const std::vector<std::span<const Rule>>& tables, std::string_view name,
                      bool back = false) {
  for (const auto& rules : tables) {
    if (const auto found = find(rules, name, back); !found.empty()) return found;
  }
  return {};
}

std::string_view take_part(std::string_view& name) {
  for (const std::string_view ending : {".weight", ".bias"}) {
    if (!name.ends_with(ending)) continue;
    name.remove_suffix(ending.size());
    return ending;
  }
  return {};
}

// Takes "12." off the front of `text`; nothing where no number stands there.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end == text.data() + text.size() || *end != '.')
    return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return number;
}

}  // namespace

std::optional<MappedName> mapped_name(std::string_view name, std::string_view model_type) {
  const std::string_view part = take_part(name);
  if (part.empty()) return std::nullopt;
  if (const auto outside = find(kOutside, name); !outside.empty()) return MappedName{str(outside, part)};
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const auto layer = take_number(name);
  if (!layer) return std::nullopt;
  const std::string block = str("blk.", *layer, ".");
  for (const std::string_view experts : kExpertsIn) {
    if (!name.starts_with(experts)) continue;
    name.remove_prefix(experts.size());
    const auto expert = take_number(name);
    auto inside = expert ? find(kInExpert, name) : std::string_view();
    if (expert && inside.empty()) inside = find(kInMixtralExpert, name);
    if (inside.empty()) return std::nullopt;
    return MappedName{str(block, inside, part), *expert};
  }
  const auto inside = find(layer_rules(model_type), name);
  if (inside.empty()) return std::nullopt;
  return MappedName{str(block, inside, part)};
}

std::optional<std::string> checkpoint_name(std::string_view name, std::string_view model_type,
                                           int64_t expert) {
  const std::string_view part = take_part(name);
  if (part.empty()) return std::nullopt;
  if (const auto outside = find(kOutside, name, true); !outside.empty()) return str(outside, part);
  constexpr std::string_view kBlocks = "blk.";
  if (!name.starts_with(kBlocks)) return std::nullopt;
  name.remove_prefix(kBlocks.size());
  const auto layer = take_number(name);
  if (!layer) return std::nullopt;
  const std::string prefix = str("model.layers.", *layer, ".");
  if (expert >= 0) {
    const bool mixtral = model_type == "mixtral";
    const auto inside = mixtral ? find(kInMixtralExpert, name, true) : find(kInExpert, name, true);
    if (inside.empty()) return std::nullopt;
    return str(prefix, kExpertsIn[mixtral ? 1 : 0], expert, ".", inside, part);
  }
  const auto inside = find(layer_rules(model_type), name, true);
  if (inside.empty()) return std::nullopt;
  return str(prefix, inside, part);
}

}  // namespace gramian::gguf
