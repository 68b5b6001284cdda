// One row of tokens that grows, with what every layer keeps of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/resident_model.h"

namespace gramian {

struct SequenceOptions {
  int64_t tokens_max = 0;  // that the row will hold
  int64_t chunk = 512;     // tokens of a forward at most
  std::optional<at::ScalarType> kv_cache =
      std::nullopt;  // the type of kept keys and values; nothing: the model's dtype
};

class Sequence {
 public:
  // `model` must outlive the sequence. Throws unsupported where a layer keeps no state.
  Sequence(ResidentModel& model, const SequenceOptions& options);

  // Adds tokens (at least one; ids in the vocabulary) and returns the state of the last one after the final norm [1, hidden]:
  // what a forward over the whole row gives there. Where the rotary frequencies depend on the row's length (dynamic, longrope)
  // and change with these tokens, the earlier ones run again: their states were made with the old frequencies in every layer
  // but the first. Throws interrupted between two chunks; unusable after an error.
  at::Tensor append(std::span<const int64_t> ids);

  const std::vector<int64_t>& ids() const noexcept { return ids_; }
  // Memory that the layers' states hold.
  int64_t cache_bytes() const;

 private:
  void forget();
  bool frequencies_change(int64_t length) const;

  ResidentModel& model_;
  SequenceOptions options_;
  std::vector<int64_t> ids_;
  int64_t kept_ = 0;   // tokens in the states
  int64_t whole_ = 0;  // length of the row that their frequencies were chosen for
  LayerStates states_;
};

}  // namespace gramian
