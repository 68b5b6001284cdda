// Residual streams behind gates of low rank, as Qwen 4 has them. With x the streams of a token, each normed on its own:
//   a part reads mean_i(sigmoid(up(silu(down(x) / count)))_i ∘ x_i);   its output goes to stream i times
//   2 · sigmoid(inject(x) / count)_i, and each stream stays what it is besides.
#pragma once

#include <string>

#include "models/blocks/residual_streams.h"

namespace gramian {

// The streams as one. Tensors NAME.hc_norm, NAME.input_mix_weight_down [rank, count · hidden], NAME.input_mix_weight_up
// [count · hidden, rank].
class StreamGate {
 public:
  StreamGate(const Weights& weights, const std::string& name, const StreamSpec& spec);
  // streams [tokens, count · hidden], both.
  at::Tensor normed(const at::Tensor& streams) const;
  // -> [tokens, hidden].
  at::Tensor mixed(const at::Tensor& normed) const;

 private:
  StreamSpec spec_;
  Norm norm_;
  at::Tensor down_, up_;
};

// A gate and NAME.block_inject_weight [count, count · hidden].
class GatedStreams final : public StreamReader {
 public:
  GatedStreams(const Weights& weights, const std::string& name, const StreamSpec& spec);
  StreamPart read(const at::Tensor& streams) const override;

 private:
  StreamGate gate_;
  at::Tensor inject_;
};

}  // namespace gramian
