// Means with confidence intervals.
#pragma once

#include <vector>

namespace gramian {

struct Interval {
  double mean = 0;
  double low = 0;  // NaN when there are fewer than two values
  double high = 0;
};

// Quantile p (0 < p < 1) of Student's t with `degrees` >= 1 degrees of freedom.
double student_t_quantile(double p, double degrees);

// Mean of `values` weighted by `weights` (both non-empty, weights positive), and mean ± t · standard error of the weighted
// mean over the values as independent draws: 95 % Student interval with n - 1 degrees of freedom.
Interval mean_with_ci95(const std::vector<double>& values, const std::vector<double>& weights);

// The same mean, and the middle 95 % of the means of `draws` resamples with replacement (Efron's percentile bootstrap). The
// random numbers are the same in each call.
Interval bootstrap_ci95(const std::vector<double>& values, const std::vector<double>& weights,
                        int draws = 10000);

}  // namespace gramian
