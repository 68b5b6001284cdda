#include "solve/smoother.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace gramian {
namespace {

struct Known {
  const char* name;
  Smoother::Kind kind;
  int numbers;
  double a, b;
};

constexpr Known kKnown[] = {
    {"none", Smoother::Kind::none, 0, 0, 0},
    {"percentile", Smoother::Kind::percentile, 1, 99, 0},
    {"percentile_asym", Smoother::Kind::percentile_asym, 2, 0.5, 99.5},
    {"mad", Smoother::Kind::mad, 1, 2.75, 0},
    {"outlier", Smoother::Kind::outlier, 1, 1, 0},
    {"softnorm", Smoother::Kind::softnorm, 1, 3, 0},
    {"log", Smoother::Kind::log, 2, 99, 8},
    {"row", Smoother::Kind::row, 0, 0, 0},
    {"column", Smoother::Kind::column, 0, 0, 0},
    {"mse", Smoother::Kind::mse, 2, 32, 0.8},
};

std::vector<float> sorted(std::span<const float> values) {
  std::vector<float> result(values.begin(), values.end());
  std::sort(result.begin(), result.end());
  return result;
}

// Linear between the two nearest of sorted values.
float percentile(const std::vector<float>& values, double percent) {
  const double place = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const auto share = static_cast<float>(place - static_cast<double>(below));
  return values[below] + (values[above] - values[below]) * share;
}

float lower_median(std::span<const float> values) { return sorted(values)[(values.size() - 1) / 2]; }

std::vector<float> magnitudes(std::span<const float> values, float centre = 0) {
  std::vector<float> result;
  for (const float value : values) result.push_back(std::fabs(value - centre));
  return result;
}

}  // namespace

Smoother parse_smoother(const std::string& text) {
  const auto refuse = [&] {
    const std::string names = listed(kKnown, [](const Known& known) { return known.name; });
    throw Error(ErrorKind::invalid_argument, "--fallback-smoother", str("'", text, "' is not known"),
                "a name of " + names + ", and its numbers behind colons, like mad:2.5");
  };
  const std::string name = text.substr(0, text.find(':'));
  const auto* known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& one) { return name == one.name; });
  if (known == std::end(kKnown)) refuse();
  Smoother smoother = {.kind = known->kind, .a = known->a, .b = known->b};
  double* const numbers[] = {&smoother.a, &smoother.b};
  size_t at = name.size();
  for (int i = 0; at < text.size(); ++i) {
    const size_t end = std::min(text.find(':', at + 1), text.size());
    if (i == known->numbers) refuse();
    const auto [rest, fault] = std::from_chars(text.data() + at + 1, text.data() + end, *numbers[i]);
    if (fault != std::errc() || rest != text.data() + end || !(*numbers[i] >= 0) ||
        !std::isfinite(*numbers[i]))
      refuse();
    at = end;
  }
  return smoother;
}

void clip(std::span<float> weights, const Smoother& smoother) {
  float lo = 0, hi = 0;
  const auto a = static_cast<float>(smoother.a);
  switch (smoother.kind) {
    case Smoother::Kind::percentile:
      hi = percentile(sorted(magnitudes(weights)), smoother.a);
      break;
    case Smoother::Kind::percentile_asym: {
      const std::vector<float> values = sorted(weights);
      lo = percentile(values, smoother.a);
      hi = percentile(values, smoother.b);
      break;
    }
    case Smoother::Kind::mad: {
      const float median = lower_median(weights);
      const float reach = a * (lower_median(magnitudes(weights, median)) * 1.4826f);
      lo = median - reach;
      hi = median + reach;
      break;
    }
    case Smoother::Kind::outlier: {
      if (smoother.a <= 0) return;
      const auto count = static_cast<double>(weights.size());
      const double kept = std::clamp(std::nearbyint(count * (1 - smoother.a / 100)), 1.0, count);
      hi = sorted(magnitudes(weights))[static_cast<size_t>(kept) - 1];
      break;
    }
    case Smoother::Kind::softnorm: {
      double mean = 0, square = 0;
      for (const float value : weights) mean += value;
      mean /= static_cast<double>(weights.size());
      for (const float value : weights) square += (value - mean) * (value - mean);
      const double reach = smoother.a * std::sqrt(square / static_cast<double>(weights.size()));
      lo = static_cast<float>(mean - reach);
      hi = static_cast<float>(mean + reach);
      break;
    }
    case Smoother::Kind::log: {
      // In fp32 as the peer: where both sides are clipped, the last bit of the threshold decides on the zero point.
      const auto mu = static_cast<float>(std::max(smoother.b, 1e-8));
      const auto whole = static_cast<float>(std::log1p(static_cast<double>(mu)));
      std::vector<float> logs;
      for (const float value : weights) logs.push_back(std::log1p(std::fabs(value) * mu) / whole);
      hi = (std::exp(percentile(sorted(logs), smoother.a) * whole) - 1) / mu;
      break;
    }
    default:
      return;
  }
  const bool both = smoother.kind == Smoother::Kind::percentile_asym ||
                    smoother.kind == Smoother::Kind::mad || smoother.kind == Smoother::Kind::softnorm;
  if (!both) lo = -hi;
  for (float& value : weights) value = std::min(std::max(value, lo), hi);
}

}  // namespace gramian
