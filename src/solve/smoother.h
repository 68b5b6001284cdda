// Taming outliers of a group of weights before a grid is placed on it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace gramian {

struct Smoother {
  enum class Kind {
    none,
    percentile,       // clip at ± (a-th percentile of |w|)
    percentile_asym,  // clip at the a-th and b-th percentiles of w
    mad,              // clip at median ± a · 1.4826 · (median of |w - median|), lower medians
    outlier,          // clip at the |w| that a percent of the weights exceed
    softnorm,         // clip at mean ± a · standard deviation
    log,              // clip at ± (a-th percentile of log(1 + b·|w|), taken back)
    row,              // divide each row by its root mean square and multiply its scale
    column,           // the same with the mean over columns of their root mean squares
    mse,  // shrink the range to b .. 1 of itself by a search of about log(a) steps for the least squared error
  };
  Kind kind = Kind::none;
  double a = 0, b = 0;
  int64_t group_size_min = 128;  // smaller groups are left as they are
};

// "mad", "mad:2.5", "percentile_asym:1:99", ...: a name and its numbers, GPT-QModel's defaults for those left out. Throws
// invalid_argument saying what is known.
Smoother parse_smoother(const std::string& text);

// The clipping kinds, on the weights of one row; the others change nothing here.
void clip(std::span<float> weights, const Smoother& smoother);

}  // namespace gramian
