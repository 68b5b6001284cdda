// Gated MLPs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/experts.h"
#include "models/weights.h"

namespace gramian {

enum class Activation { silu, gelu, gelu_tanh };
// From config.json's `key`; throws unsupported for another name.
Activation read_activation(const ConfigReader& config, const std::string& key = "hidden_act");

struct MlpSpec {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::silu;
  bool bias = false;
  bool fused = false;     // one module gate_up_proj, gate's rows first
  double limit = 0;       // gate is cut at limit, up at ±limit; 0: neither
  double gate_slope = 1;  // silu becomes gate · sigmoid(gate_slope · gate)
  double up_offset = 0;   // added to up
  // Names of the modules.
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

// Where the weights lie when they are not tensors of their own.
struct GatedMlpWeights {
  StoredWeight gate, up, down;
};

// down(act(gate(x)) · (up(x) + up_offset)) (Shazeer 2020). Pauses: {gate, up} or {gate_up}, {down}.
class GatedMlp final : public Expert {
 public:
  GatedMlp(const Weights& weights, const std::string& prefix, const MlpSpec& spec,
           const GatedMlpWeights& stored = {});
  Task<at::Tensor> forward(at::Tensor x) override;
  std::vector<std::vector<Linear*>> pauses() override;

 private:
  at::Tensor gated(const std::vector<at::Tensor>& gate_up) const;
  at::Tensor activated(const at::Tensor& gate) const;
  MlpSpec spec_;
  std::vector<Linear> gate_up_;  // gate and up, or both as one
  Linear down_;
};

ModuleTree gated_mlp_modules(const std::string& prefix, const MlpSpec& spec);

}  // namespace gramian
