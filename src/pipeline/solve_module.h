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
  DecodedLinear decoded;    // `packed` as a reader sees it
  bool by_hessian = false;  // false: plainly rounded, or by the fallback that `quantized` names
};

// What a module is quantized for, and how.
struct SolveSettings {
  const LinearFormat& format;
  const SolveOptions& options;
  const FallbackOptions& fallback;
  std::string lacking = {};  // why the module does without its Hessian; empty: it need not
};

// `factor` of the module's input over `tokens` rows, nullptr for plain rounding, and its Hessian, which only the last pass over
// the codes reads. A factor that failed, or no tokens at all, gives plain rounding with a fallback mark.
SolvedModule solve_module(const PackSource& source, const Factor* factor, const at::Tensor& hessian,
                          int64_t tokens, const SolveSettings& settings, ThreadPool& pool);

// sqrt(tr(E H Eᵀ) / tr(W H Wᵀ)) with E = W - Q, Q decoded from what is stored, and H [K, K] of the module's input: the
// root of the share of the output's energy that is lost on the calibration rows, bias apart. Taken over at most 128
// output rows, number floor(i · N / 128), in f32 with sums in f64. NaN where W H Wᵀ is 0.
double relative_error(const PackSource& source, const SolvedModule& solved, const at::Tensor& hessian);

// The dense layer that batches go on with, in `dtype`: the weight decoded from what is stored, or code · scale rounded to
// the source's type under compat.
std::shared_ptr<const LinearOp> replacement(const SolvedModule& solved, const PackSource& source,
                                            at::ScalarType dtype);

// The same of a module that an earlier run has stored, not for compat.
std::shared_ptr<const LinearOp> stored_replacement(const LinearFormat& format, const PackedParts& packed,
                                                   const Linear& linear, const GridOptions& grid,
                                                   at::ScalarType dtype);

}  // namespace gramian
