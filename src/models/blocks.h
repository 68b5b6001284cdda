// Blocks that decoder families are built of. Blocks that read linear layers are tasks; the others are plain functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/batch.h"
#include "models/task.h"
#include "models/weights.h"

namespace gramian {

// x · rsqrt(mean(x²) + eps) · weight over the last dimension (Zhang & Sennrich 2019). The quotient is taken in
// f32 and rounded to x's type before it meets the weight, as transformers' llama and qwen2 do: rounding only once
// gives other last bits in f16 and bf16, and other codes from the same calibration rows.
struct RmsNorm {
  at::Tensor weight;  // f32 [hidden]
  double eps = 1e-6;
  at::Tensor operator()(const at::Tensor& x) const;
};
RmsNorm load_rms_norm(const Weights& weights, const std::string& name, int64_t size, double eps);

struct AttentionSpec {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // heads % kv_heads == 0
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool o_bias = false;
  double scale = 1.0;              // of q·k
  std::optional<size_t> rope = 0;  // index into DecoderSpec::ropes; none: no position coding
  int64_t window = 0;              // key j is visible to query i when i - window < j <= i; 0: every j <= i
};

// Grouped-query attention with the spec's rotary positions. Pauses: {q, k, v}, {o}.
class Attention {
 public:
  Attention(const Weights& weights, const std::string& prefix, const AttentionSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch);

 private:
  // q [tokens, heads·d], k and v [tokens, kv_heads·d] -> [tokens, heads·d].
  at::Tensor attend(std::vector<at::Tensor> qkv, const BatchContext& batch) const;
  AttentionSpec spec_;
  Linear q_, k_, v_, o_;
};

enum class Activation { silu, gelu, gelu_tanh };
// From config.json's hidden_act; throws unsupported for another name.
Activation read_activation(const ConfigReader& config);

struct MlpSpec {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::silu;
  bool bias = false;
};

// down(act(gate(x)) · up(x)) (Shazeer 2020). Pauses: {gate, up}, {down}.
class GatedMlp {
 public:
  GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec);
  Task<at::Tensor> forward(at::Tensor x);

 private:
  at::Tensor gated(std::vector<at::Tensor> gate_up) const;
  MlpSpec spec_;
  Linear gate_, up_, down_;
};

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  // hidden [tokens, hidden] -> same shape. `batch` and the layer must outlive the task.
  virtual Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) = 0;
};

// x + attention(norm(x)), then x + mlp(norm(x)).
class PreNormLayer final : public DecoderLayer {
 public:
  PreNormLayer(const Weights& weights, const std::string& prefix, const AttentionSpec& attention,
               const MlpSpec& mlp, double norm_eps);
  Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) override;

 private:
  RmsNorm input_norm_, post_attention_norm_;
  Attention attention_;
  GatedMlp mlp_;
};

}  // namespace gramian
