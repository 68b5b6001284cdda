// One linear layer: solve, pack, and what the forward goes on with.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "base/parallel.h"
#include "formats/linear_format.h"
#include "models/linear.h"
#include "solve/factor.h"
#include "solve/fallback.h"
#include "solve/quantized.h"

namespace gramian {

struct SolvedModule {
  QuantizedLinear quantized;
  PackedParts packed;
  DecodedLinear decoded;  // `packed` as a reader sees it
};

// What is known of a module's input. All empty: the method takes no statistic.
struct InputStatistic {
  const Factor* factor = nullptr;  // of `hessian`
  at::Tensor hessian = {};         // f32 [K, K]
  at::Tensor blocks = {};          // local Hessian, f32 [K / 16, 16, 16]
  at::Tensor squares = {};         // Σ x² [K]
  int64_t tokens = 0;              // behind them
  bool taken() const { return factor != nullptr || blocks.defined() || squares.defined(); }
};

// What a module is quantized for, and how.
struct SolveSettings {
  const LinearFormat& format;
  const SolveOptions& options;
  const FallbackOptions& fallback;
  std::string lacking = {};  // why the module does without its statistic; empty: it need not
  float largest = 0;         // NVFP4: of all matrices that share the module's global scale
};

// A factor that failed, or no tokens at all, gives plain rounding (NVFP4: the search by the error of the weights; blocks of a codec:
// encoding without importance) with a fallback mark. The Hessian itself is read by the last pass over the codes alone.
QuantizedLinear solve_linear(const PackSource& source, const InputStatistic& input,
                             const SolveSettings& settings, ThreadPool& pool);
// The same, packed.
SolvedModule solve_module(const PackSource& source, const InputStatistic& input,
                          const SolveSettings& settings, ThreadPool& pool);

// sqrt(tr(E H Eᵀ) / tr(W H Wᵀ)) with E = W - Q, W `weight` [N, K], Q `decoded` from what is stored, and H of the module's input: [K, K],
// the blocks on its diagonal, or the diagonal alone. That is the root of the share of the output's energy that is lost on the rows
// behind the statistic, bias (and what blocks have to do with each other) apart. Taken over at most 128 output rows, number floor(i · N / 128), in f32 with sums in f64.
// NaN where W H Wᵀ is 0, or without a statistic.
double relative_error(const at::Tensor& weight, const at::Tensor& decoded, const InputStatistic& input);

// The dense layer that batches go on with, in `dtype`: the weight decoded from what is stored, or code · scale rounded to
// the source's type under compat.
std::shared_ptr<const LinearOp> replacement(const SolvedModule& solved, const PackSource& source,
                                            at::ScalarType dtype);

// The same of a module that an earlier run has stored, not for compat.
std::shared_ptr<const LinearOp> stored_replacement(const LinearFormat& format, const PackedParts& packed,
                                                   const Linear& linear, const GridOptions& grid,
                                                   at::ScalarType dtype);

}  // namespace gramian
