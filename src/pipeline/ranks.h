// Processes that share one job: each feeds its part of the calibration rows and solves its part of the modules, the first one
// writes. Whoever starts them implements this (python/src/ranks.cpp, over c10d).
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "formats/linear_format.h"
#include "models/batch.h"
#include "pipeline/pause_sums.h"
#include "pipeline/plan.h"

namespace gramian {

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // In place, the sum over all ranks, at every rank with the same bits. `values` is contiguous, on the CPU. Throws io when another
  // rank does not answer; so does broadcast().
  virtual void sum(const at::Tensor& values) = 0;
  // In place, what rank `from` has.
  virtual void broadcast(const at::Tensor& values, int from) = 0;

  bool writes() const { return rank() == 0; }
};

// The rows of this rank: of every `ranks.size()` batches of `batch` rows, one. Throws invalid_argument when a rank would have none.
std::vector<TokenRow> rows_of_rank(const std::vector<TokenRow>& rows, int64_t batch, const Ranks& ranks);

// Makes `statistics`, of this rank's rows, those of all ranks' rows. `kind`: which of them are taken; `columns`: of the modules' input.
void reduce(PauseStatistics& statistics, Statistic kind, int64_t columns, Ranks& ranks);

// What rank `from` has, which alone needs to give it.
nlohmann::ordered_json from_rank(const nlohmann::ordered_json& given, int from, Ranks& ranks);
PackedParts from_rank(const PackedParts& given, const PlannedModule& module, int from, Ranks& ranks);

}  // namespace gramian
