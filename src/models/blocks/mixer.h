// The part of a decoder layer that mixes the tokens of a row: attention of some kind, or a recurrence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "models/batch.h"
#include "models/task.h"

namespace gramian {

class Mixer {
 public:
  virtual ~Mixer() = default;
  // x [tokens, hidden] -> same shape. `batch` and the mixer must outlive the task.
  virtual Task<at::Tensor> forward(at::Tensor x, const BatchContext& batch) = 0;
  // An empty state for BatchContext::states: for one run whose rows will hold `tokens_max` tokens each. Throws unsupported
  // where there is none.
  virtual std::unique_ptr<MixerState> make_state(int64_t tokens_max) const = 0;
};

}  // namespace gramian
