// Kimi Delta Attention (Kimi Linear, 2025): the delta rule with a decay for each key channel, from a projection of low rank.
//   o = delta rule over conv(q), conv(k), conv(v);   o_proj(norm(o) · sigmoid(g_b(g_a(x))))
//   f = f_b(f_a(x)) + dt_bias;   g = -exp(A_log) · softplus(f), or lower_bound · sigmoid(exp(A_log) · f);   β = sigmoid(b(x))
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/delta_memory.h"
#include "models/blocks/gated_norm.h"
#include "models/blocks/mixer.h"

namespace gramian {

struct KimiDeltaSpec {
  DeltaSizes sizes;                   // as many key heads as heads
  std::optional<double> lower_bound;  // of g; < 0
  GatedNormSpec norm{.eps = 1e-6, .gate = Gate::sigmoid};
};

// Pauses: {q, k, v}, {o}. The projections of b, f and g are small and stay as they are.
class KimiDeltaAttention final : public Mixer {
 public:
  KimiDeltaAttention(const Weights& weights, const std::string& prefix, const KimiDeltaSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  at::Tensor mix(std::vector<at::Tensor> qkv, const at::Tensor& low, const BatchContext& batch) const;
  // f [tokens, keys] -> f32 [tokens, heads, key_dim], <= 0.
  at::Tensor log_decay(const at::Tensor& f) const;
  KimiDeltaSpec spec_;
  Linear q_, k_, v_, o_;
  at::Tensor low_;        // [2 · value_dim + heads, hidden]: rows of f_a, g_a and b
  at::Tensor f_b_, g_b_;  // [keys or values, value_dim]
  at::Tensor decay_;      // f32 [heads, 1]: exp(A_log)
  at::Tensor dt_bias_;    // f32 [keys]
  GatedNorm norm_;
  DeltaMemory memory_;
};

ModuleTree kimi_delta_attention_modules(const std::string& prefix);

}  // namespace gramian
