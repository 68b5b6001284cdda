// Codes without a Hessian, for modules that calibration did not reach: five ways to place a grid on a group of weights, after
// an optional smoother. Method: the fallbacks of GPT-QModel 7.7.0, recomputed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "base/parallel.h"
#include "solve/quantized.h"
#include "solve/smoother.h"

namespace gramian {

// Where the grid of a group lies (lo, hi: least and largest weight). All but rtn need zero points.
enum class FallbackStrategy {
  rtn,       // as solve_rtn() places it
  midpoint,  // (lo + hi) / 2 in the middle of the codes
  mean,      // the mean there, reaching to the weight farthest from it
  median,    // the lower median, likewise
  stdclip,   // three standard deviations to either side of the mean
};

// Below how many calibration tokens a module does without its Hessian.
struct FallbackThreshold {
  double value = 1;  // tokens, or percent of all of the calibration
  bool percent = false;
  double tokens(int64_t all) const { return percent ? value / 100 * static_cast<double>(all) : value; }
  bool operator==(const FallbackThreshold&) const = default;
};
// "0.5%", "200". Throws invalid_argument for what is no such number.
FallbackThreshold parse_fallback_threshold(const std::string& text);
std::string to_text(const FallbackThreshold& threshold);

struct FallbackOptions {
  FallbackStrategy strategy = FallbackStrategy::rtn;
  Smoother smoother;
  FallbackThreshold threshold = {};
  bool refuse = false;  // a module without a usable Hessian ends the job instead
};

// Throws invalid_argument listing what is known.
FallbackStrategy parse_fallback_strategy(const std::string& text);
const char* to_text(FallbackStrategy strategy);

// weight [N, K] of any float type; natural column order, no error feedback. `zero` of the result is defined for every strategy
// but rtn, whatever grid.symmetric says.
QuantizedLinear solve_fallback(const at::Tensor& weight, const GridOptions& grid,
                               const FallbackOptions& options, ThreadPool& pool);

}  // namespace gramian
