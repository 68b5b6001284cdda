// Which experts a token goes to, and with what weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "models/task.h"
#include "models/weights.h"

namespace gramian {

struct RouterSpec {
  enum class Rule {
    softmax,  // softmax over all experts, the k largest (Fedus et al. 2022; mixtral, qwen)
    sigmoid,  // sigmoid scores, chosen by score + correction, weighted by score (DeepSeek-V3, section 2.1.2)
    softmax_of_top,  // the k largest logits, softmax over these (gpt_oss)
    scaled_input,  // the k largest logits; an expert reads x · sigmoid(logit), outputs are summed as they are (llama4)
  };
  Rule rule = Rule::softmax;
  std::string name = "gate";  // of the module with the weight
  bool bias = false;
  int64_t experts = 0;
  int64_t top_k = 0;
  bool norm_top_k = false;    // softmax, sigmoid: a token's weights are divided by their sum
  bool wide_weights = false;  // softmax: the weights stay f32 instead of taking the model's dtype
  // sigmoid: experts lie in `groups` of equal size; only those of the `top_groups` groups whose two best sum highest count.
  int64_t groups = 1;
  int64_t top_groups = 1;
  double scale = 1.0;  // sigmoid: of the weights
};

// Stays as it is in a quantized model. `sigmoid` works in f32 throughout and has a NAME.e_score_correction_bias; the others
// take the logits in the model's dtype.
class Router {
 public:
  Router(const Weights& weights, const std::string& prefix, int64_t hidden, const RouterSpec& spec);
  // x [tokens, hidden].
  Routing route(const at::Tensor& x) const;

 private:
  Routing by_softmax(const at::Tensor& x) const;
  Routing by_sigmoid(const at::Tensor& x) const;
  Routing by_top_logits(const at::Tensor& x) const;
  // choice [tokens, experts] -> a copy with minus infinity outside the groups that count.
  at::Tensor best_groups(const at::Tensor& choice) const;
  RouterSpec spec_;
  at::Tensor weight_;      // [experts, hidden]
  at::Tensor bias_;        // [experts] or undefined
  at::Tensor correction_;  // f32 [experts] or undefined
};

}  // namespace gramian
