// Several residual streams instead of one: every part of a layer reads a mixture of them and its output goes back to each
// with a weight of its own, all weights being made of the streams themselves (Zhu et al., Hyper-Connections, 2024). Streams of
// a token lie end to end: [tokens, count · hidden].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "models/blocks/norm.h"
#include "models/weights.h"

namespace gramian {

struct StreamSpec {
  enum class Kind {
    hyper,  // blocks/hyper_connection.h (GLM 5)
    gated,  // blocks/gated_streams.h (Qwen 4)
  };
  Kind kind = Kind::hyper;
  int64_t hidden = 0;
  int64_t count = 0;
  NormSpec norm = {};   // of the streams before weights are made of them
  double floor = 1e-6;  // hyper: added to weights and to the sums that they are divided by
  int64_t rounds = 0;   // hyper: of making them doubly stochastic
  int64_t rank = 0;     // gated
  int64_t width() const { return count * hidden; }
};

// What one part of a layer reads, and where its output y goes: stream j becomes Σ_i mix_ij · stream_i + write_j · y.
struct StreamPart {
  at::Tensor input;  // [tokens, hidden]
  at::Tensor write;  // [tokens, count]
  at::Tensor mix;    // f32 [tokens, count, count]; undefined: each stream stays
};

// In front of one part of a layer. Stays as it is in a quantized model.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  virtual StreamPart read(const at::Tensor& streams) const = 0;
};

std::unique_ptr<StreamReader> load_stream_reader(const Weights& weights, const std::string& name,
                                                 const StreamSpec& spec);

// The streams behind the part; `out` [tokens, hidden] is what it made.
at::Tensor written(const at::Tensor& streams, const StreamPart& part, const at::Tensor& out);

// NAME.weight [count · hidden]: a norm of each stream, which takes and gives [tokens, count, hidden].
Norm load_stream_norm(const Weights& weights, const std::string& name, const StreamSpec& spec);

}  // namespace gramian
