// Blocks that decoder families are built of. Blocks that read linear layers are tasks; the others are plain functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/batch.h"
#include "models/experts.h"
#include "models/weights.h"

namespace gramian {

// n = x · rsqrt(mean(x²) + eps) over the last dimension, taken in f32 (Zhang & Sennrich 2019). When it is rounded to x's
// type follows transformers: another order gives other last bits in f16 and bf16, and other codes from the same
// calibration rows.
enum class NormKind {
  rms,         // n is rounded before it meets the weight (llama, qwen)
  rms_offset,  // n · (1 + weight) is rounded once (gemma)
};
struct NormSpec {
  NormKind kind = NormKind::rms;
  double eps = 1e-6;
};
// Without a weight it gives x as it is.
struct Norm {
  at::Tensor weight;  // f32 [size]
  NormSpec spec;
  at::Tensor operator()(const at::Tensor& x) const;
};
// No weight where `name` is empty.
Norm load_norm(const Weights& weights, const std::string& name, int64_t size, const NormSpec& spec);

struct AttentionSpec {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // heads % kv_heads == 0
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  std::optional<NormSpec> qk_norm;  // of every head of q and k before it turns: q_norm, k_norm [head_dim]
  double scale = 1.0;               // of q·k
  double softcap = 0;               // scores become softcap · tanh(score / softcap); 0: none
  std::optional<size_t> rope = 0;   // index into DecoderSpec::ropes; none: no position coding
  int64_t window = 0;               // key j is visible to query i when i - window < j <= i; 0: every j <= i
};

// Grouped-query attention with the spec's rotary positions. Pauses: {q, k, v}, {o}.
class Attention {
 public:
  Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch);
  // For one run of rows that will hold `tokens_max` tokens each.
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const;

 private:
  // q [tokens, heads·d], k and v [tokens, kv_heads·d] -> [tokens, heads·d].
  at::Tensor attend(std::vector<at::Tensor> qkv, const BatchContext& batch) const;
  AttentionSpec spec_;
  Linear q_, k_, v_, o_;
  Norm q_norm_, k_norm_;
};

enum class Activation { silu, gelu, gelu_tanh };
// From config.json's `key`; throws unsupported for another name.
Activation read_activation(const ConfigReader& config, const std::string& key = "hidden_act");

struct MlpSpec {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::silu;
  bool bias = false;
};

// One expert's weights inside stacked tensors.
struct StackedExpert {
  StoredWeight gate_up;  // gate's rows first
  StoredWeight down;
};

// down(act(gate(x)) · up(x)) (Shazeer 2020). Pauses: {gate, up}, {down}.
class GatedMlp final : public Expert {
 public:
  GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec,
           const std::optional<StackedExpert>& stacked = std::nullopt);
  Task<at::Tensor> forward(at::Tensor x) override;
  std::vector<std::vector<Linear*>> pauses() override { return {{&gate_, &up_}, {&down_}}; }

 private:
  at::Tensor gated(std::vector<at::Tensor> gate_up) const;
  MlpSpec spec_;
  Linear gate_, up_, down_;
};

// Of a layer whose MLP is a mixture of experts (models/mixture.h).
struct MixtureSpec {
  int64_t experts = 0;  // 0: none
  int64_t top_k = 0;
  int64_t intermediate = 0;  // of one expert
  bool norm_top_k = false;   // a token's weights are divided by their sum
};

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  // hidden [tokens, hidden] -> same shape. `batch` and the layer must outlive the task.
  virtual Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) = 0;
  // An empty state of the mixer for BatchContext::states: for one run whose rows will hold `tokens_max` tokens each. Throws
  // unsupported where the layer has none.
  virtual std::unique_ptr<MixerState> make_state(int64_t tokens_max) const;
};

// The norms of a layer under their stored names, empty for none: on what attention and MLP read, and on what they give
// before it is added to the residual. The default is that of llama.
struct LayerNorms {
  NormSpec spec;
  std::string before_attention = "input_layernorm";
  std::string after_attention = "";
  std::string before_mlp = "post_attention_layernorm";
  std::string after_mlp = "";
};

// x + norm(attention(norm(x))), then x + norm(mlp(norm(x))).
class ResidualLayer final : public DecoderLayer {
 public:
  ResidualLayer(const Weights& weights, const std::string& prefix, const AttentionSpec& attention,
                std::unique_ptr<Mlp> mlp, const LayerNorms& norms);
  Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  Norm before_attention_, after_attention_, before_mlp_, after_mlp_;
  Attention attention_;
  std::unique_ptr<Mlp> mlp_;
};

}  // namespace gramian
