// A decoder layer: a mixer and an MLP around the residual stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "models/blocks/mixer.h"
#include "models/blocks/norm.h"
#include "models/experts.h"

namespace gramian {

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  // hidden [tokens, width] -> what the next layer reads. `batch` and the layer must outlive the task.
  virtual Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) = 0;
  // An empty state of the mixer, as Mixer::make_state says.
  virtual std::unique_ptr<MixerState> make_state(int64_t tokens_max) const = 0;
};

// The norms of a layer under their stored names, empty for none: on what mixer and MLP read, and on what they give before it
// is added to the residual. The default is that of llama.
struct LayerNorms {
  NormSpec spec;
  std::string before_attention = "input_layernorm";
  std::string after_attention = "";
  std::string before_mlp = "post_attention_layernorm";
  std::string after_mlp = "";
};

struct ResidualSpec {
  double scale = 1.0;     // of what is added to the residual
  bool parallel = false;  // the MLP reads what the mixer reads
};

// x + norm(mixer(norm(x))), then x + norm(mlp(norm(x))); parallel: n = norm(x), x + mixer(n) + mlp(n).
class ResidualLayer final : public DecoderLayer {
 public:
  ResidualLayer(const Weights& weights, const std::string& prefix, int64_t hidden, const LayerNorms& norms,
                std::unique_ptr<Mixer> mixer, std::unique_ptr<Mlp> mlp, const ResidualSpec& residual = {});
  Task<at::Tensor> forward(at::Tensor hidden, const BatchContext& batch) override;
  std::unique_ptr<MixerState> make_state(int64_t tokens_max) const override {
    return mixer_->make_state(tokens_max);
  }

 private:
  at::Tensor added(const at::Tensor& hidden, const at::Tensor& part) const;
  ResidualSpec residual_;
  Norm before_attention_, after_attention_, before_mlp_, after_mlp_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Mlp> mlp_;
};

}  // namespace gramian
