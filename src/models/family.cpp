#include "models/family.h"

#include <algorithm>
#include <cmath>

namespace gramian {
namespace {

constexpr const char* kTied = "tie_word_embeddings";
constexpr const char* kAttention = "self_attn.";
constexpr const char* kLinearAttention = "linear_attn.";

bool has_mixture(const DecoderSpec& spec, int64_t index) {
  return !spec.mixture.empty() && spec.mixture[static_cast<size_t>(index)].router.experts > 0;
}

bool is_recurrent(const DecoderSpec& spec, int64_t index) {
  return !spec.recurrent.empty() && spec.recurrent[static_cast<size_t>(index)];
}

std::string mlp_name(const DecoderSpec& spec, int64_t index) {
  return has_mixture(spec, index) && !spec.mixture_name.empty() ? spec.mixture_name : spec.mlp_name;
}

// A multimodal file may declare a tied head at its top or inside, and some declare it at one place only.
void unite_tied(const ConfigReader& config, const ConfigReader& text, nlohmann::ordered_json& merged) {
  if (config.has(kTied) || text.has(kTied))
    merged[kTied] = config.boolean_or(kTied, false) || text.boolean_or(kTied, false);
}

}  // namespace

DecoderSpec Family::describe(const ConfigReader& config) const {
  const ConfigReader text = text_config(config);
  nlohmann::ordered_json merged = nlohmann::ordered_json::parse(defaults);
  // A nested configuration holds only what differs from its class; a model's own holds all of its sizes.
  if (!config.has("text_config")) {
    for (const char* size :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"})
      merged.erase(size);
  }
  merged.update(text.json());
  unite_tied(config, text, merged);
  return read({merged, text.where()});
}

Family Family::with_tree(std::initializer_list<const char*> parts) && {
  std::string children;
  for (const char* part : parts) children += (children.empty() ? "" : ", ") + std::string(part);
  tree = LayerTree::parse(nlohmann::ordered_json::parse(R"(["model", "layers", "#", {)" + children + "}]"),
                          model_type);
  verified = true;
  return std::move(*this);
}

bool Family::shares_inputs(const ConfigReader& config) const {
  return verified && config.text_or("model_type", "") == model_type;
}

DecoderSpec describe_sizes(const ConfigReader& config) {
  DecoderSpec spec;
  spec.hidden = config.integer("hidden_size");
  spec.vocab = config.integer("vocab_size");
  spec.norms.spec.eps = config.number_or("rms_norm_eps", 1e-6);
  if (spec.norms.spec.eps < 0) config.fail("rms_norm_eps", "must not be negative");
  spec.tied = config.boolean_or("tie_word_embeddings", false);
  spec.mtp_layers = config.integer_or("num_nextn_predict_layers", 0, 0, 1 << 16);

  AttentionSpec attention;
  attention.hidden = spec.hidden;
  attention.heads = config.integer("num_attention_heads");
  attention.kv_heads = config.integer_or("num_key_value_heads", attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.fail("num_key_value_heads",
                str("(", attention.kv_heads, ") must divide num_attention_heads (", attention.heads, ")"));
  }
  if (!config.has("head_dim") && spec.hidden % attention.heads != 0) {
    config.fail("num_attention_heads",
                str("must divide hidden_size ", spec.hidden, " when head_dim is not given"));
  }
  attention.head_dim = config.integer_or("head_dim", spec.hidden / attention.heads);
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  spec.attention.assign(static_cast<size_t>(config.integer("num_hidden_layers", 1, 1 << 16)), attention);
  spec.mlp.hidden = spec.hidden;
  spec.mlp.intermediate = config.integer("intermediate_size");
  return spec;
}

DecoderSpec describe_dense(const ConfigReader& config) {
  DecoderSpec spec = describe_sizes(config);
  spec.ropes = {read_rope(config, spec.attention[0].head_dim)};
  spec.mlp.activation = read_activation(config);
  return spec;
}

double read_eps(const ConfigReader& config, const std::string& key) {
  const double eps = config.number(key);
  if (eps < 0) config.fail(key, "must not be negative");
  return eps;
}

void read_top_k(const ConfigReader& config, RouterSpec& router) {
  router.top_k = config.integer("num_experts_per_tok");
  if (router.experts > 0 && router.top_k > router.experts)
    config.fail("num_experts_per_tok", str("must not exceed the ", router.experts, " experts"));
}

std::vector<std::string> read_layer_types(const ConfigReader& config, int64_t layers,
                                          const std::vector<std::string>& known,
                                          const std::function<std::string(int64_t)>& otherwise) {
  std::vector<std::string> found;
  if (!config.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) found.push_back(otherwise(i));
    return found;
  }
  const auto& types = config.json().at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    config.fail("layer_types", "must name the kind of every layer");
  std::string all;
  for (const std::string& kind : known) all += (all.empty() ? "" : ", ") + kind;
  for (const auto& type : types) {
    if (!type.is_string()) config.fail("layer_types", "must name the kind of every layer");
    found.push_back(type.get<std::string>());
    if (std::find(known.begin(), known.end(), found.back()) == known.end()) {
      throw Error(ErrorKind::unsupported, config.where(), str("layer type '", found.back(), "'"),
                  "known: " + all);
    }
  }
  return found;
}

std::vector<bool> read_sliding_layers(const ConfigReader& config, int64_t layers,
                                      const std::function<bool(int64_t)>& otherwise) {
  const std::string kFull = "full_attention", kSliding = "sliding_attention";
  std::vector<bool> sliding;
  for (const std::string& type : read_layer_types(config, layers, {kFull, kSliding}, [&](int64_t layer) {
         return otherwise(layer) ? kSliding : kFull;
       }))
    sliding.push_back(type == kSliding);
  return sliding;
}

void read_attention_bias(const ConfigReader& config, DecoderSpec& spec) {
  const bool bias = config.boolean_or("attention_bias", false);
  for (AttentionSpec& attention : spec.attention) attention.qkv_bias = attention.o_bias = bias;
}

double read_softcap(const ConfigReader& config, const std::string& key) {
  if (!config.has(key)) return 0;
  const double softcap = config.number(key);
  if (!(softcap > 0)) config.fail(key, "must be positive");
  return softcap;
}

void read_qwen_windows(const ConfigReader& config, DecoderSpec& spec) {
  // A null sliding_window stands for none, a missing one for the default.
  const bool none = config.json().contains("sliding_window") && !config.has("sliding_window");
  if (none || !config.boolean_or("use_sliding_window", false)) return;
  const int64_t full = config.integer_or("max_window_layers", 28, 0);
  const std::vector<bool> sliding =
      read_sliding_layers(config, spec.layers(), [&](int64_t layer) { return layer >= full; });
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) spec.attention[i].window = config.integer_or("sliding_window", 4096);
  }
}

void turn_whole_heads(const ConfigReader& config, DecoderSpec& spec) {
  const int64_t head_dim = spec.attention[0].head_dim;
  for (RopeSpec& rope : spec.ropes) {
    if (rope.rotary_dim == head_dim) continue;
    if (rope.type != "default") {
      throw Error(ErrorKind::unsupported, config.where(),
                  str("partial_rotary_factor with rope type '", rope.type, "' in this model type"),
                  "only plain rotary positions are known for it");
    }
    rope.rotary_dim = head_dim;
  }
}

void name_experts(DecoderSpec& spec, const std::string& gate, const std::string& up,
                  const std::string& down) {
  for (MixtureSpec& mixture : spec.mixture) {
    mixture.expert.gate = gate;
    mixture.expert.up = up;
    mixture.expert.down = down;
  }
}

bool any_layer_has(const DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix,
                   const std::string& rest) {
  for (int64_t i = 0; i < spec.layers(); ++i) {
    if (checkpoint.contains(str(prefix, "layers.", i, ".", rest))) return true;
  }
  return false;
}

std::unique_ptr<Mixer> make_mixer(const DecoderSpec& spec, const Weights& weights, const std::string& prefix,
                                  int64_t index) {
  if (is_recurrent(spec, index)) {
    if (spec.delta_net)
      return std::make_unique<GatedDeltaNet>(weights, prefix + kLinearAttention, *spec.delta_net);
    return std::make_unique<KimiDeltaAttention>(weights, prefix + kAttention, *spec.kimi_delta);
  }
  if (spec.latent) {
    LatentAttentionSpec latent = *spec.latent;
    latent.shares_index = !spec.shared_index.empty() && spec.shared_index[static_cast<size_t>(index)];
    return std::make_unique<LatentAttention>(weights, prefix + kAttention, latent);
  }
  return std::make_unique<Attention>(weights, prefix + kAttention,
                                     spec.attention[static_cast<size_t>(index)]);
}

ModuleTree mixer_modules(const DecoderSpec& spec, int64_t index) {
  if (is_recurrent(spec, index)) {
    return spec.delta_net ? gated_delta_net_modules(kLinearAttention, *spec.delta_net)
                          : kimi_delta_attention_modules(kAttention);
  }
  return spec.latent ? latent_attention_modules(kAttention, *spec.latent)
                     : attention_modules(kAttention, spec.attention[static_cast<size_t>(index)]);
}

std::unique_ptr<Mlp> make_mlp(const DecoderSpec& spec, const Weights& weights, const std::string& prefix,
                              int64_t index) {
  const std::string name = prefix + mlp_name(spec, index);
  if (has_mixture(spec, index))
    return std::make_unique<Mixture>(weights, name, spec.mixture[static_cast<size_t>(index)]);
  return std::make_unique<GatedMlp>(weights, name, spec.mlp);
}

ModuleTree mlp_modules(const DecoderSpec& spec, int64_t index) {
  const std::string name = mlp_name(spec, index);
  return has_mixture(spec, index) ? mixture_modules(name, spec.mixture[static_cast<size_t>(index)])
                                  : gated_mlp_modules(name, spec.mlp);
}

std::unique_ptr<DecoderLayer> residual_layer(const DecoderSpec& spec, const Weights& weights,
                                             const std::string& prefix, int64_t index) {
  const bool own_norms = is_recurrent(spec, index) && spec.recurrent_norms;
  return std::make_unique<ResidualLayer>(
      weights, prefix, spec.hidden, own_norms ? *spec.recurrent_norms : spec.norms,
      make_mixer(spec, weights, prefix, index), make_mlp(spec, weights, prefix, index), spec.residual);
}

ModuleTree layer_modules(const DecoderSpec& spec, int64_t index) {
  ModuleTree tree = mixer_modules(spec, index);
  for (auto& group : mlp_modules(spec, index)) tree.push_back(std::move(group));
  return tree;
}

}  // namespace gramian
