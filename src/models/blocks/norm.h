// Norms over the last dimension, taken in f32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights.h"

namespace gramian {

// n = x · rsqrt(mean(x²) + eps) (Zhang & Sennrich 2019), for `layer` with x - mean(x) for x (Ba et al. 2016). When it is
// rounded to x's type follows transformers: another order gives other last bits in f16 and bf16, and other codes from the
// same calibration rows.
enum class NormKind {
  rms,         // n is rounded before it meets the weight (llama, qwen)
  rms_offset,  // n · (1 + weight) is rounded once (gemma)
  rms_once,    // n · weight is rounded once (olmo2, gpt_oss)
  layer,       // n · weight + bias is rounded once (cohere, stablelm)
};
struct NormSpec {
  NormKind kind = NormKind::rms;
  double eps = 1e-6;
  bool bias = false;  // of `layer`
};
// Without a weight it gives x as it is.
struct Norm {
  at::Tensor weight;  // f32, [size] or what x's last dimensions meet
  NormSpec spec;
  at::Tensor bias = {};  // f32 [size] or undefined
  at::Tensor operator()(const at::Tensor& x) const;
};
// NAME.weight and, with the spec's bias, NAME.bias; no weight where `name` is empty.
Norm load_norm(const Weights& weights, const std::string& name, const std::vector<int64_t>& shape,
               const NormSpec& spec);

}  // namespace gramian
