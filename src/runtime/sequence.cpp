#include "runtime/sequence.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"

namespace gramian {

Sequence::Sequence(ResidentModel& model, const SequenceOptions& options) : model_(model), options_(options) {
  GRAMIAN_CHECK(options.tokens_max > 0 && options.chunk > 0, options.tokens_max, " tokens, ", options.chunk,
                " at a time");
  forget();
}

void Sequence::forget() {
  states_ = model_.make_states(options_.tokens_max);
  for (const auto& state : states_)
    if (options_.kv_cache) state->keep_as(*options_.kv_cache);
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
  GRAMIAN_CHECK(!ids.empty() && length <= options_.tokens_max, length, " tokens, at most ",
                options_.tokens_max);
  if (kept_ > 0 && frequencies_change(length)) forget();
  whole_ = length;
  at::Tensor hidden;
  while (kept_ < length) {
    throw_if_interrupted();
    const int64_t count = std::min(options_.chunk, length - kept_);
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
