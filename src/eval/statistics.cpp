#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace gramian {
namespace {

// Continued fraction of the regularized incomplete beta function (Lentz's method).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
  double result = d;
  for (int m = 1; m <= 500; ++m) {
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
      if (std::fabs(c) < kTiny) c = kTiny;
      result *= d * c;
    }
    if (std::fabs(d * c - 1) < 1e-15) break;
  }
  return result;
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_t_cdf(double t, double degrees) {
  const double tail = 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
  return t >= 0 ? 1 - tail : tail;
}

}  // namespace

double student_t_quantile(double p, double degrees) {
  double low = -1e8, high = 1e8;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (student_t_cdf(middle, degrees) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

Interval mean_with_ci95(const std::vector<double>& values, const std::vector<double>& weights) {
  double total = 0, sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    total += weights[i];
    sum += weights[i] * values[i];
  }
  const double mean = sum / total;
  const auto n = static_cast<double>(values.size());
  if (values.size() < 2) {
    return {mean, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  // Standard error of a ratio estimate: Σ wᵢ² (xᵢ - mean)² · n / (n - 1) over (Σ wᵢ)².
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double part = weights[i] * (values[i] - mean);
    squares += part * part;
  }
  const double error = std::sqrt(squares * n / (n - 1)) / total;
  const double half = student_t_quantile(0.975, n - 1) * error;
  return {mean, mean - half, mean + half};
}

Interval bootstrap_ci95(const std::vector<double>& values, const std::vector<double>& weights, int draws) {
  const double mean = mean_with_ci95(values, weights).mean;
  const size_t n = values.size();
  if (n < 2) {
    return {mean, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  std::mt19937_64 random(20260101);
  std::vector<double> means(draws);
  for (double& resampled : means) {
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; ++i) {
      // Not a distribution of the library's: those differ from one library to another.
      const size_t drawn = random() % n;
      total += weights[drawn];
      sum += weights[drawn] * values[drawn];
    }
    resampled = sum / total;
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double p) { return means[static_cast<size_t>(std::lround(p * (draws - 1)))]; };
  return {mean, at(0.025), at(0.975)};
}

}  // namespace gramian
