// A batch of token rows, packed: rows of any length lie end to end, so padding never exists. Every linear layer sees
// exactly the real tokens, and a row's result does not depend on what else is in its batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "models/mixer_state.h"
#include "models/rope.h"

namespace gramian {

class ThreadPool;  // base/parallel.h

using TokenRow = std::vector<int64_t>;

// Neighbouring rows of one length, which attention can treat as one dense block.
struct RowRun {
  int64_t begin = 0;  // first token in the packed batch
  int64_t rows = 0;
  int64_t length = 0;
  int64_t past = 0;  // tokens of these rows that came in earlier batches
};

struct BatchContext {
  std::vector<RowRun> runs;
  std::vector<std::vector<RopeTable>> rope;  // [rotary kind][run]
  int64_t tokens = 0;
  at::Tensor ids{};  // i64 [tokens], for layers that look at the words themselves
  // What the layer that runs keeps of each run's earlier tokens, and adds these to; whoever drives sets it layer by layer.
  // Empty: rows stand alone (every past is 0).
  std::vector<MixerState*> states{};
  // Threads for the attention of single tokens; none: the calling one.
  ThreadPool* pool = nullptr;
  // The choice of keys that goes from layer to layer (blocks/key_indexer.h), where the layer that runs hands it to its mixer.
  at::Tensor* closed = nullptr;
  // Called with what a layer's parts produce ("mixer_out", "mlp_out"), when set: for comparisons with other forwards.
  std::function<void(std::string_view, const at::Tensor&)> tap;
};

// Runs and rotary tables, one set per kind, for rows of these lengths (each >= 1).
BatchContext make_batch_context(const std::vector<int64_t>& lengths, const std::vector<RopeSpec>& ropes);
// The part of one row that `span` says, behind what came in earlier batches.
BatchContext make_continuation(const RopeSpan& span, const std::vector<RopeSpec>& ropes);

}  // namespace gramian
