#include "models/kv_state.h"

#include <algorithm>

#include "tensor/ops.h"

namespace gramian {

std::pair<at::Tensor, at::Tensor> KvState::append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t length = k.size(2);
  if (window_ > 0) begin_ = std::max(begin_, end_ - (window_ - 1));
  if (!keys_.defined() || end_ + length > keys_.size(2)) make_room(k, v);
  keys_.narrow(2, end_, length).copy_(k);
  values_.narrow(2, end_, length).copy_(v);
  end_ += length;
  return {keys_.narrow(2, begin_, end_ - begin_), values_.narrow(2, begin_, end_ - begin_)};
}

// Moves what is kept to the front of a buffer with room for as much again: memory grows geometrically, and a window is moved
// once in as many tokens as it holds.
void KvState::make_room(const at::Tensor& k, const at::Tensor& v) {
  const int64_t kept = end_ - begin_, needed = kept + k.size(2);
  const int64_t capacity = tokens_max_ > 0 ? std::max(needed, std::min(2 * needed, tokens_max_)) : 2 * needed;
  const auto moved = [&](const at::Tensor& old, const at::Tensor& like) {
    at::Tensor buffer = tensor::empty({like.size(0), like.size(1), capacity, like.size(3)},
                                      kept_as_.value_or(like.scalar_type()));
    if (kept > 0) buffer.narrow(2, 0, kept).copy_(old.narrow(2, begin_, kept));
    return buffer;
  };
  keys_ = moved(keys_, k);
  values_ = moved(values_, v);
  begin_ = 0;
  end_ = kept;
}

int64_t KvState::bytes() const {
  return keys_.defined() ? static_cast<int64_t>(keys_.nbytes() + values_.nbytes()) : 0;
}

}  // namespace gramian
