// A few rows through one layer, to learn what the layer holds and how long it takes; and how fast modules are solved here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "models/model.h"
#include "pipeline/calibrator.h"
#include "pipeline/plan.h"
#include "solve/quantized.h"

namespace gramian {

struct PauseProbe {
  std::string module;  // the first that reads the input
  int64_t columns = 0;
  int64_t rows = 0;           // of the tallest module
  int64_t modules = 1;        // that read it
  int64_t sums = 1;           // of them
  double live_per_token = 0;  // bytes that a batch holds while it waits here, per token
  // Of the pauses inside a mixture: how many experts pause alike, and one expert's weights.
  bool expert = false;
  int64_t repeats = 1;
  int64_t expert_weight_bytes = 0;
};

struct LayerProbe {
  std::vector<PauseProbe> pauses;
  int64_t weight_bytes = 0;     // without experts
  double hidden_per_token = 0;  // bytes of the layer's input
  double peak_per_token = 0;    // bytes of a batch at work at most
  double forward_seconds_per_token = 0;
  double statistics_seconds_per_token = 0;
  double live_per_token() const;  // at the pause where it is largest
};

// Layers with equal text are alike in shape.
std::string layer_signature(const QuantizePlan& plan, size_t index);

// Runs at most 2,048 tokens of `rows`, which are to be one batch of the job that `calibrator` says.
LayerProbe probe_layer(const Model& model, int64_t index, const std::vector<TokenRow>& rows,
                       const QuantizePlan& plan, const CalibratorOptions& calibrator);

// Seconds by size, from two small solves of one of the model's own weights.
struct SolveSpeed {
  double per_cube = 0;    // factor: seconds per columns³
  double per_square = 0;  // solve: seconds per rows · columns²
  double per_weight = 0;  // solve: seconds per rows · columns
  double factor_seconds(int64_t columns) const;
  double solve_seconds(int64_t rows, int64_t columns) const;
};
SolveSpeed measure_solve(const Model& model, const QuantizePlan& plan, const SolveOptions& options,
                         Statistic statistic, ThreadPool& pool);

}  // namespace gramian
