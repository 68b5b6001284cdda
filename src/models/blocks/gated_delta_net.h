// Gated DeltaNet (Yang et al. 2024) as Qwen 3 Next, Qwen 3.5, Qwen 4 and OLMo Hybrid build it:
//   o = delta rule over conv(q), conv(k), conv(v);   out(norm(o) · act(z))
// with, for each head, g = -exp(A_log) · softplus(a + dt_bias) and β = beta_max · sigmoid(b).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/blocks/delta_memory.h"
#include "models/blocks/gated_norm.h"
#include "models/blocks/mixer.h"

namespace gramian {

// How the projections of q, k, v, z, b and a are stored.
enum class DeltaProjections {
  by_key_head,  // in_proj_qkvz: for each key head [q; k; v of its heads; z of them]; in_proj_ba: [b; a] of its heads
  joined,    // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  separate,  // q_proj, k_proj, v_proj, g_proj (for z), b_proj, a_proj; o_proj and o_norm for out_proj and norm
};

struct GatedDeltaNetSpec {
  DeltaSizes sizes;
  DeltaProjections projections = DeltaProjections::joined;
  double beta_max = 1.0;  // 2: the state's eigenvalues may be negative
  GatedNormSpec norm;     // of each head's output
};

// Projections of q, k, v and z pause together, and out_proj; those of b and a are small and stay as they are.
class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(const Weights& weights, const std::string& prefix, const GatedDeltaNetSpec& spec);
  Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override;

 private:
  at::Tensor mix(std::vector<at::Tensor> projected, const at::Tensor& rates, const BatchContext& batch) const;
  GatedDeltaNetSpec spec_;
  std::vector<Linear> in_;
  Linear out_;
  at::Tensor rates_;            // [2 · heads, hidden]: rows of b, then of a
  at::Tensor decay_, dt_bias_;  // f32 [heads]: exp(A_log), dt_bias
  GatedNorm norm_;
  DeltaMemory memory_;
};

ModuleTree gated_delta_net_modules(const std::string& prefix, const GatedDeltaNetSpec& spec);

}  // namespace gramian
