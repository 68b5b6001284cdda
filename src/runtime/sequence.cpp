#include "runtime/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"

namespace gramian {

Sequence::Sequence(ResidentModel& model, int64_t tokens_max, int64_t chunk)
    : model_(model), tokens_max_(tokens_max), chunk_(chunk) {
  GRAMIAN_CHECK(tokens_max > 0 && chunk > 0, tokens_max, " tokens, ", chunk, " at a time");
  forget();
}

void Sequence::forget() {
  states_ = model_.make_states(tokens_max_);
  kept_ = 0;
}

bool Sequence::frequencies_change(int64_t length) const {
  const auto& ropes = model_.model().spec().ropes;
  return std::any_of(ropes.begin(), ropes.end(), [&](const RopeSpec& rope) {
    return rope_frequencies(rope, whole_) != rope_frequencies(rope, length);
  });
}

at::Tensor Sequence::append(std::span<const int64_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  const auto length = static_cast<int64_t>(ids_.size());
  GRAMIAN_CHECK(!ids.empty() && length <= tokens_max_, length, " tokens, at most ", tokens_max_);
  if (kept_ > 0 && frequencies_change(length)) forget();
  whole_ = length;
  at::Tensor hidden;
  while (kept_ < length) {
    throw_if_interrupted();
    const int64_t count = std::min(chunk_, length - kept_);
    const TokenRow part(ids_.begin() + kept_, ids_.begin() + kept_ + count);
    BatchContext context =
        make_continuation({.begin = kept_, .length = count, .whole = length}, model_.model().spec().ropes);
    hidden = model_.forward(model_.model().pack_rows({part}), context, states_);
    kept_ += count;
  }
  return model_.model().final_norm(hidden.narrow(0, hidden.size(0) - 1, 1));
}

int64_t Sequence::cache_bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) bytes += state->bytes();
  return bytes;
}

}  // namespace gramian
