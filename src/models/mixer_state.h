// What a layer's mixer keeps of the tokens it has seen, so that the next ones need no second look at them: keys and values,
// later a recurrent state or a latent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gramian {

class MixerState {
 public:
  virtual ~MixerState() = default;
  virtual int64_t bytes() const = 0;  // of memory held
  // Keeps keys and values in this floating-point type, rounded to nearest; before the first tokens only. A state without keys and
  // values stays as it is.
  virtual void keep_as(at::ScalarType) {}
};

}  // namespace gramian
