// Keys and values that attention keeps, one state per layer and run of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "models/mixer_state.h"

namespace gramian {

class KvState : public MixerState {
 public:
  // With `window` > 0 only what the next token can see is kept. `tokens_max`: the most tokens that a row will hold, which
  // bounds the memory; 0: not known.
  KvState(int64_t window, int64_t tokens_max) : window_(window), tokens_max_(tokens_max) {}

  // k and v [rows, kv_heads, L, d] of the tokens that follow. Returns the keys and values [rows, kv_heads, S, d] that their
  // queries can see, their own last (S >= L): views in the type in which they are kept, valid until the next call.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& k, const at::Tensor& v);
  int64_t bytes() const override;
  void keep_as(at::ScalarType type) override { kept_as_ = type; }

 private:
  void make_room(const at::Tensor& k, const at::Tensor& v);
  int64_t window_ = 0;
  int64_t tokens_max_ = 0;
  std::optional<at::ScalarType> kept_as_;  // nothing: the model's dtype
  // [rows, kv_heads, capacity, d], filled from begin_ to end_.
  at::Tensor keys_, values_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

}  // namespace gramian
