// What a model family declares: how its config.json reads, how a layer is built of shared blocks, and which linear layers
// share an input. One file a family under families/, one line in families/registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/attention.h"
#include "models/blocks/gated_delta_net.h"
#include "models/blocks/kimi_delta_attention.h"
#include "models/blocks/latent_attention.h"
#include "models/blocks/layer.h"
#include "models/blocks/mixture.h"
#include "models/blocks/ngram_embedding.h"
#include "models/blocks/residual_streams.h"
#include "models/config.h"
#include "models/sharing/layer_tree.h"

namespace gramian {

struct DecoderSpec {
  int64_t hidden = 0;
  int64_t vocab = 0;
  bool tied = false;                   // the head is the embedding
  int64_t mtp_layers = 0;              // stored behind the last layer for multi-token prediction; not run
  double embedding_scale = 1.0;        // of the embedding's rows
  bool round_embedding_scale = false;  // to the model's dtype, first
  double logit_scale = 1.0;            // of the logits
  double logit_softcap = 0;            // logits become softcap · tanh(logit / softcap); 0: none
  LayerNorms norms;                    // their spec is the final norm's too
  ResidualSpec residual;
  std::vector<RopeSpec> ropes;                // rotary kinds, which the layers' attention chooses from
  std::vector<AttentionSpec> attention;       // one per layer
  std::optional<LatentAttentionSpec> latent;  // stands for them in every layer
  std::vector<bool> shared_index;  // layers that take over an earlier one's choice of keys; empty: none
  // Layers whose mixer is a delta rule, of one of the two kinds; one entry per layer, empty: none.
  std::vector<bool> recurrent;
  std::optional<GatedDeltaNetSpec> delta_net;  // under `linear_attn`
  std::optional<KimiDeltaSpec> kimi_delta;     // under `self_attn`
  std::optional<LayerNorms> recurrent_norms;   // where these layers have others
  std::optional<StreamSpec>
      streams;                      // instead of one residual stream; gated ones have a gate for a final norm
  std::optional<NgramSpec> ngrams;  // under `ple`
  std::vector<bool> ngram_layers;   // one entry per layer, empty: none
  MlpSpec mlp;
  std::string mlp_name = "mlp.";
  std::string mixture_name = "";     // of a mixture, where it differs
  std::vector<MixtureSpec> mixture;  // one per layer, without experts: the MLP; empty: MLPs everywhere
  int64_t layers() const { return static_cast<int64_t>(attention.size()); }
};

struct Family {
  std::string model_type;    // config.json's "model_type"
  std::string architecture;  // config.json's "architectures"
  // A JSON object: what the configuration class of transformers 5.23 takes for a missing key. A null in a file is not
  // missing.
  const char* defaults;
  DecoderSpec (*read)(const ConfigReader& config);
  std::unique_ptr<DecoderLayer> (*layer)(const DecoderSpec& spec, const Weights& weights,
                                         const std::string& prefix, int64_t index);
  // Of one layer; names are relative to it.
  ModuleTree (*modules)(const DecoderSpec& spec, int64_t index);
  std::vector<std::string> other_types = {};  // further values of "model_type"
  // Fits the spec to the names that a checkpoint has, where those of a family differ. `prefix` begins those of the decoder.
  void (*match_names)(DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix) = nullptr;
  // Which modules of a layer are calibrated together, and which of them read one input.
  LayerTree tree = {};
  // Inputs are shared only in models whose own type is `model_type`, never one of `other_types`, and only once `gramian probe`
  // has found the tree true for every kind of layer of that type.
  bool verified = false;

  // Itself with the tree of these parts (families/trees.h), verified.
  Family with_tree(std::initializer_list<const char*> parts) &&;
  // Of the whole config.json: a text part inside another model is another type.
  bool shares_inputs(const ConfigReader& config) const;

  // The spec that a config.json gives, its text_config if it has one.
  DecoderSpec describe(const ConfigReader& config) const;
};

// The family of a config.json, by model_type, else by architecture, of its text_config if it has one. Throws unsupported listing the known types.
const Family& find_family(const ConfigReader& config);
std::vector<const Family*> all_families();

// Shared by the dense families: sizes, heads, norm epsilon and the MLP's shape under their usual keys...
DecoderSpec describe_sizes(const ConfigReader& config);
// ...and with them one kind of rotary positions and hidden_act.
DecoderSpec describe_dense(const ConfigReader& config);
// An epsilon under `key`; throws corrupt_data for a missing or negative one.
double read_eps(const ConfigReader& config, const std::string& key);
// num_experts_per_tok, at most router.experts where there are any.
void read_top_k(const ConfigReader& config, RouterSpec& router);
// The kind of each layer: by layer_types, or where it is not given by `otherwise`. Throws unsupported for a kind that is not
// among `known`.
std::vector<std::string> read_layer_types(const ConfigReader& config, int64_t layers,
                                          const std::vector<std::string>& known,
                                          const std::function<std::string(int64_t layer)>& otherwise);
// Whether each layer has a sliding window: by layer_types, or where it is not given by `otherwise`. Throws unsupported
// for another kind of layer.
std::vector<bool> read_sliding_layers(const ConfigReader& config, int64_t layers,
                                      const std::function<bool(int64_t layer)>& otherwise);
// attention_bias: of q, k, v and o.
void read_attention_bias(const ConfigReader& config, DecoderSpec& spec);
// A softcap under `key`, positive; null is none (0).
double read_softcap(const ConfigReader& config, const std::string& key);
// The windows of Qwen: sliding_window where use_sliding_window is set, in layer_types' sliding layers or from
// max_window_layers on.
void read_qwen_windows(const ConfigReader& config, DecoderSpec& spec);
// For families whose reference turns whole heads: partial_rotary_factor counts for nothing under plain rotary
// positions, and is refused (unsupported) under the scaled kinds, which the reference cannot run with it.
void turn_whole_heads(const ConfigReader& config, DecoderSpec& spec);
// Names of the modules of every mixture's experts.
void name_experts(DecoderSpec& spec, const std::string& gate, const std::string& up, const std::string& down);
// Whether a tensor of any decoder layer is called `rest` behind the layer's number.
bool any_layer_has(const DecoderSpec& spec, const Checkpoint& checkpoint, const std::string& prefix,
                   const std::string& rest);
// The mixer of layer `index`, whose names begin with `prefix`.
std::unique_ptr<Mixer> make_mixer(const DecoderSpec& spec, const Weights& weights, const std::string& prefix,
                                  int64_t index);
ModuleTree mixer_modules(const DecoderSpec& spec, int64_t index);
// The MLP or mixture of layer `index`, whose names begin with `prefix`.
std::unique_ptr<Mlp> make_mlp(const DecoderSpec& spec, const Weights& weights, const std::string& prefix,
                              int64_t index);
ModuleTree mlp_modules(const DecoderSpec& spec, int64_t index);
// One ResidualLayer from the spec.
std::unique_ptr<DecoderLayer> residual_layer(const DecoderSpec& spec, const Weights& weights,
                                             const std::string& prefix, int64_t index);
ModuleTree layer_modules(const DecoderSpec& spec, int64_t index);

}  // namespace gramian
