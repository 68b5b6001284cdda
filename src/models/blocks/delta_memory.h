// What gated delta nets and KDA share: a short convolution over q, k and v, and the delta rule over each row.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "models/batch.h"
#include "models/blocks/delta_rule.h"
#include "models/weights.h"

namespace gramian {

struct DeltaSizes {
  int64_t hidden = 0;
  int64_t key_heads = 0;  // heads % key_heads == 0
  int64_t heads = 0;
  int64_t key_dim = 0;    // of a head
  int64_t value_dim = 0;  // of a head
  int64_t kernel = 0;     // tokens that a convolution sees, the present one included
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return heads * value_dim; }
};

// silu(y) with y_t = Σ_j weight_j x_{t-(K-1-j)·step}, each channel on its own (K tokens). x [rows, T, channels], weight f32
// [channels, K], `tail` [rows, (K - 1)·step, channels] the inputs before x, and afterwards the last ones; undefined: zeros.
// Summed in f32, returned in x's type.
at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, at::Tensor& tail,
                            int64_t step = 1);

class DeltaMemory {
 public:
  // Convolutions under PREFIXconv1d.weight [2·keys + values, 1, kernel], q's channels first, or one by one under
  // PREFIXq_conv1d.weight, k_conv1d and v_conv1d.
  DeltaMemory(const Weights& weights, const std::string& prefix, const DeltaSizes& sizes);

  // What a token brings: projections before their convolution, and the rates of forgetting and learning.
  struct Tokens {
    at::Tensor q, k;  // [tokens, keys]
    at::Tensor v;     // [tokens, values]
    at::Tensor g;     // f32 [tokens, heads] or [tokens, heads, key_dim], <= 0
    at::Tensor beta;  // f32 [tokens, heads]
  };
  // -> f32 [tokens, heads, value_dim]. Every row starts with an empty memory, or goes on with the batch's states.
  at::Tensor mix(const Tokens& tokens, const BatchContext& batch) const;
  std::unique_ptr<MixerState> make_state() const;

 private:
  DeltaSizes sizes_;
  std::array<at::Tensor, 3> conv_;  // q, k, v: f32 [channels, kernel]
};

}  // namespace gramian
