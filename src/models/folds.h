// Where a factor per channel can move from what gives a tensor into the linear layers that read it, without a change of what
// the model computes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/family.h"

namespace gramian {

// A norm or a linear layer whose channels are divided by factors that the columns of its readers are multiplied with. Names
// are relative to the layer.
struct ChannelFold {
  std::string giver;
  std::optional<NormKind> norm;  // of a norm; otherwise `giver` is a linear layer
  int64_t first_row = 0;         // of that: where its channels begin
  int64_t channels = 0;
  std::vector<std::string> readers;
  // Columns of a reader: heads of `head` columns, `repeat` of which in a row read the same channels (grouped queries). 0: column j
  // reads channel j.
  int64_t head = 0;
  int64_t repeat = 1;
  // The channel that column j of a reader reads.
  int64_t channel(int64_t column) const {
    return head == 0 ? column : column / (head * repeat) * head + column % head;
  }
};

struct LayerFolds {
  std::vector<ChannelFold> folds;
  std::vector<std::string> left_alone;  // "attention: a delta rule", a line for each place without a fold
};

// norm -> q, k, v; v -> o; norm -> gate, up; up -> down, as far as the layer has them: softmax attention and gated MLPs with a norm
// in front of them.
LayerFolds channel_folds(const DecoderSpec& spec, int64_t layer);

}  // namespace gramian
