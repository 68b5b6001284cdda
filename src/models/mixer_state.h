// What a layer's mixer keeps of the tokens it has seen, so that the next ones need no second look at them: keys and values,
// later a recurrent state or a latent.
#pragma once

#include <cstdint>

namespace gramian {

class MixerState {
 public:
  virtual ~MixerState() = default;
  virtual int64_t bytes() const = 0;  // of memory held
};

}  // namespace gramian
