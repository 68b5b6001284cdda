// How fast a model runs: a prompt, then one token after the other, beside what memory could deliver meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "base/parallel.h"
#include "runtime/resident_model.h"

namespace gramian {

struct RunSpeedOptions {
  int64_t prompt = 512;  // tokens
  int64_t decoded = 64;
  int repeats = 3;                                        // of everything; the medians count
  std::optional<at::ScalarType> kv_cache = std::nullopt;  // as Sequence has it
};

struct RunSpeed {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
  double weight_bytes =
      0;  // that a token needs: the layers' stored tensors and the head, of experts the chosen share
  double read_bandwidth = 0;  // bytes a second, by the pool's threads, best of the run
  int64_t cache_bytes = 0;    // of keys, values and other states of all tokens
  int64_t resident = 0;       // bytes of this process, before the bandwidth was measured
};

// Random tokens, greedy choice. Throws invalid_argument where the model has no room for so many tokens.
RunSpeed measure_run(ResidentModel& model, ThreadPool& pool, const RunSpeedOptions& options);

}  // namespace gramian
