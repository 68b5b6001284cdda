// One linear layer solved from its Hessian, beside the same algorithm written in LibTorch's operations.
#pragma once

#include <cstdint>

#include "solve/quantized.h"

namespace gramian {

struct SolveCase {
  int64_t rows = 0, columns = 0;  // N, K
  SolveOptions options;           // symmetric grids of 4 bits, natural order
  int threads = 1;
  bool with_torch = true;
};

struct SolveFigure {
  double factor_seconds = 0, solve_seconds = 0;
  double torch_seconds = 0;  // factor included
  // tr((W - Q) H (W - Q)ᵀ) / tr(W H Wᵀ), LibTorch's without refinement.
  double error = 0, torch_error = 0;
  double ratio() const { return torch_seconds / (factor_seconds + solve_seconds); }
};

// W and H are generated (eval/generated_rows.h), H of twice as many rows as columns. Sets LibTorch's threads. Times are of the clock on the
// wall.
SolveFigure measure_solve(const SolveCase& which);

}  // namespace gramian
