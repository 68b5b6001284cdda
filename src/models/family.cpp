#include "models/family.h"

#include <cmath>

#include "models/mixture.h"

namespace gramian {
namespace {

constexpr const char* kTied = "tie_word_embeddings";

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

std::vector<bool> read_sliding_layers(const ConfigReader& config, int64_t layers,
                                      const std::function<bool(int64_t)>& otherwise) {
  std::vector<bool> sliding;
  if (!config.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) sliding.push_back(otherwise(i));
    return sliding;
  }
  const auto& types = config.json().at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    config.fail("layer_types", "must name the kind of every layer");
  for (const auto& type : types) {
    if (!type.is_string()) config.fail("layer_types", "must name the kind of every layer");
    sliding.push_back(type == "sliding_attention");
    if (type != "sliding_attention" && type != "full_attention") {
      throw Error(ErrorKind::unsupported, config.where(), str("layer type '", type.get<std::string>(), "'"),
                  "known: full_attention, sliding_attention");
    }
  }
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

namespace {

// The mixture of layer `index`; 0 experts where it has an MLP.
MixtureSpec mixture_of(const DecoderSpec& spec, int64_t index) {
  return spec.mixture.empty() ? MixtureSpec{} : spec.mixture[static_cast<size_t>(index)];
}

}  // namespace

std::unique_ptr<DecoderLayer> residual_layer(const DecoderSpec& spec, const Weights& weights,
                                             const std::string& prefix, int64_t index) {
  const AttentionSpec& attention = spec.attention[static_cast<size_t>(index)];
  const MixtureSpec mixture = mixture_of(spec, index);
  std::unique_ptr<Mlp> mlp;
  if (mixture.experts > 0) {
    MlpSpec expert = spec.mlp;
    expert.intermediate = mixture.intermediate;
    mlp = std::make_unique<Mixture>(weights, prefix + "mlp.", expert, mixture);
  } else {
    mlp = std::make_unique<GatedMlp>(weights, prefix + "mlp.", spec.mlp);
  }
  return std::make_unique<ResidualLayer>(weights, prefix, attention, std::move(mlp), spec.norms);
}

ModuleTree dense_modules(const DecoderSpec& spec, int64_t index) {
  ModuleTree tree{{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {"self_attn.o_proj"}};
  const auto add_mlp = [&](const std::string& prefix) {
    tree.push_back({prefix + "gate_proj", prefix + "up_proj"});
    tree.push_back({prefix + "down_proj"});
  };
  const MixtureSpec mixture = mixture_of(spec, index);
  if (mixture.experts == 0) add_mlp("mlp.");
  for (int64_t e = 0; e < mixture.experts; ++e) add_mlp(str("mlp.experts.", e, "."));
  return tree;
}

}  // namespace gramian
