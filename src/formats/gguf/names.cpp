#include "formats/gguf/names.h"

#include <charconv>

#include "base/error.h"

namespace gramian::gguf {
namespace {

struct Rule {
  std::string_view from, to;
};

constexpr Rule kOutside[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Rule kInLayer[] = {{"input_layernorm", "attn_norm"},
                             {"self_attn.q_proj", "attn_q"},
                             {"self_attn.k_proj", "attn_k"},
                             {"self_attn.v_proj", "attn_v"},
                             {"self_attn.o_proj", "attn_output"},
                             {"self_attn.q_norm", "attn_q_norm"},
                             {"self_attn.k_norm", "attn_k_norm"},
                             {"post_attention_layernorm", "ffn_norm"},
                             {"mlp.gate_proj", "ffn_gate"},
                             {"mlp.up_proj", "ffn_up"},
                             {"mlp.down_proj", "ffn_down"},
                             {"mlp.gate", "ffn_gate_inp"},
                             {"block_sparse_moe.gate", "ffn_gate_inp"}};
constexpr Rule kGemma[] = {{"post_attention_layernorm", "post_attention_norm"},
                           {"pre_feedforward_layernorm", "ffn_norm"},
                           {"post_feedforward_layernorm", "post_ffw_norm"}};
// Behind "experts.E.".
constexpr Rule kInExpert[] = {{"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"},
                              {"down_proj", "ffn_down_exps"}, {"w1", "ffn_gate_exps"},
                              {"w3", "ffn_up_exps"},          {"w2", "ffn_down_exps"}};
constexpr std::string_view kExpertsIn[] = {"mlp.experts.", "block_sparse_moe.experts."};

template <size_t N>
std::string_view find(const Rule (&rules)[N], std::string_view name) {
  for (const Rule& rule : rules) {
    if (rule.from == name) return rule.to;
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
  std::string_view part;
  for (const std::string_view ending : {".weight", ".bias"}) {
    if (name.ends_with(ending)) part = ending;
  }
  if (part.empty()) return std::nullopt;
  name.remove_suffix(part.size());
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
    const auto inside = expert ? find(kInExpert, name) : std::string_view();
    if (inside.empty()) return std::nullopt;
    return MappedName{str(block, inside, part), *expert};
  }
  const bool gemma = model_type.starts_with("gemma2") || model_type.starts_with("gemma3");
  auto inside = gemma ? find(kGemma, name) : std::string_view();
  if (inside.empty()) inside = find(kInLayer, name);
  if (inside.empty()) return std::nullopt;
  return MappedName{str(block, inside, part)};
}

}  // namespace gramian::gguf
