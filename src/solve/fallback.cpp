#include "solve/fallback.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "kernels/solve/grid.h"
#include "solve/grouping.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr const char* kStrategies[] = {"rtn", "midpoint", "mean", "median", "stdclip"};
constexpr float kLeastScale = 1e-8f;

struct Grid {
  float scale;
  float zero;    // unsigned, integer
  float centre;  // what codes are counted from: code = rne((w - centre) / scale + middle)
  float middle;
};

// One row of a group. Steps are 2^bits - 1.
Grid place(std::span<const float> w, FallbackStrategy strategy, float steps) {
  const auto [lo, hi] = std::minmax_element(w.begin(), w.end());
  double sum = 0;
  for (const float value : w) sum += value;
  const auto count = static_cast<double>(w.size());
  const auto centred = [&](float centre, float scale) {
    scale = std::max(scale, kLeastScale);
    const float zero = std::clamp(std::nearbyint(steps / 2 - centre / scale), 0.0f, steps);
    return Grid{scale, zero, centre, steps / 2};
  };
  const auto reaching = [&](float centre) {
    return centred(centre, 2 * std::max(std::fabs(*hi - centre), std::fabs(*lo - centre)) / steps);
  };
  switch (strategy) {
    case FallbackStrategy::midpoint:
      return centred((*lo + *hi) / 2, (*hi - *lo) / steps);
    case FallbackStrategy::mean:
      return reaching(static_cast<float>(sum / count));
    case FallbackStrategy::median: {
      std::vector<float> values(w.begin(), w.end());
      const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
      std::nth_element(values.begin(), middle, values.end());
      return reaching(*middle);
    }
    default: {
      const double mean = sum / count;
      double square = 0;
      for (const float value : w) square += (value - mean) * (value - mean);
      const double reach = 3 * std::sqrt(square / count);
      const auto low = static_cast<float>(mean - reach), high = static_cast<float>(mean + reach);
      const float scale = std::max((high - low) / steps, kLeastScale);
      const float zero = std::clamp(std::nearbyint(-low / scale), 0.0f, steps);
      return {scale, zero, 0, zero};
    }
  }
}

// The range of the group that has the least squared error among shrunk ones: a ternary search and three points around its
// best.
Grid search_range(std::span<const float> w, const Smoother& smoother, bool symmetric, float steps) {
  const auto [least, most] = std::minmax_element(w.begin(), w.end());
  float lo = std::min(*least, 0.0f), hi = std::max(*most, 0.0f);
  if (symmetric) lo = -(hi = std::max(-lo, hi));
  const auto at = [&](float share) {
    const float scale = std::max((hi * share - lo * share) / steps, kLeastScale);
    const float zero = symmetric ? (steps + 1) / 2 : std::nearbyint(-lo * share / scale);
    return Grid{scale, zero, 0, zero};
  };
  const auto error = [&](float share) {
    const Grid grid = at(share);
    double sum = 0;
    for (const float value : w) {
      const float code = std::clamp(std::nearbyint(value / grid.scale + grid.zero), 0.0f, steps);
      const float difference = (code - grid.zero) * grid.scale - value;
      sum += difference * difference;
    }
    return sum;
  };
  const float floor = static_cast<float>(std::clamp(smoother.b, 1e-3, 1.0));
  float left = floor, right = 1, best = 1;
  double best_error = std::numeric_limits<double>::infinity();
  const int rounds = std::max(static_cast<int>(std::log(std::max(smoother.a, 2.0)) / std::log(1.5)) + 1, 3);
  for (int i = 0; i < rounds; ++i) {
    const float shares[] = {left + (right - left) / 3, right - (right - left) / 3};
    const double errors[] = {error(shares[0]), error(shares[1])};
    for (const int side : {0, 1}) {
      if (!(errors[side] < best_error)) continue;
      best_error = errors[side];
      best = shares[side];
    }
    (errors[0] < errors[1] ? right : left) = errors[0] < errors[1] ? shares[1] : shares[0];
  }
  const float step = (right - left) * 0.1f;
  float found = best;
  double found_error = std::numeric_limits<double>::infinity();
  for (const float share :
       {std::clamp(best - step, floor, 1.0f), best, std::clamp(best + step, floor, 1.0f)}) {
    const double here = error(share);
    if (here < found_error) {
      found_error = here;
      found = share;
    }
  }
  return at(found);
}

float root_mean_square(std::span<const float> w) {
  double sum = 0;
  for (const float value : w) sum += static_cast<double>(value) * value;
  return std::max(static_cast<float>(std::sqrt(sum / static_cast<double>(w.size()))), kLeastScale);
}

}  // namespace

FallbackStrategy parse_fallback_strategy(const std::string& text) {
  for (size_t i = 0; i < std::size(kStrategies); ++i) {
    if (text == kStrategies[i]) return static_cast<FallbackStrategy>(i);
  }
  throw Error(ErrorKind::invalid_argument, "--fallback", str("'", text, "' is not known"),
              "choose one of: " + listed(kStrategies, [](const char* name) { return name; }));
}

FallbackThreshold parse_fallback_threshold(const std::string& text) {
  FallbackThreshold threshold;
  threshold.percent = text.ends_with('%');
  const char* const end = text.data() + text.size() - (threshold.percent ? 1 : 0);
  const auto [rest, fault] = std::from_chars(text.data(), end, threshold.value);
  const double most = threshold.percent ? 100 : 1e15;
  if (fault != std::errc() || rest != end || !(threshold.value >= 0 && threshold.value <= most))
    throw Error(ErrorKind::invalid_argument, "--fallback-threshold", str("'", text, "' is no threshold"),
                "tokens, like 200, or a share of the calibration, like 0.5%");
  return threshold;
}

std::string to_text(const FallbackThreshold& threshold) {
  return str(threshold.value, threshold.percent ? "%" : "");
}

const char* to_text(FallbackStrategy strategy) { return kStrategies[static_cast<size_t>(strategy)]; }

QuantizedLinear solve_fallback(const at::Tensor& weight, const GridOptions& grid,
                               const FallbackOptions& options, ThreadPool& pool) {
  const Grouping grouping = resolve_grouping(weight, grid);
  Smoother smoother = options.smoother;
  if (grouping.group_size < smoother.group_size_min) smoother.kind = Smoother::Kind::none;
  if (options.strategy == FallbackStrategy::rtn && smoother.kind == Smoother::Kind::none)
    return solve_rtn(weight, grid, pool);
  GRAMIAN_CHECK(grid.kind == GridKind::integer, "a fallback that QQQ's grid does not have");

  const at::Tensor w = finite_weight(weight);
  const int64_t rows = grouping.rows, columns = grouping.columns, groups = grouping.groups();
  QuantizedLinear result = empty_result(grouping, true);
  const auto steps = static_cast<float>((1 << grid.bits) - 1);
  const int offset = 1 << (grid.bits - 1);
  const GridScaler scaler(grouping.rule, cpu_level());
  // Of the columns of each group, over all rows.
  std::vector<float> column_size(groups, 1.0f);
  if (smoother.kind == Smoother::Kind::column) {
    const at::Tensor sizes = w.to(at::kDouble).square().mean(0).sqrt().clamp_min(kLeastScale);
    for (int64_t g = 0; g < groups; ++g)
      column_size[g] =
          sizes.narrow(0, g * grouping.group_size, grouping.width(g)).mean().to(at::kFloat).item<float>();
  }
  std::vector<int64_t> zero_groups(rows);
  pool.run(rows, [&](int64_t row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = row * columns + g * grouping.group_size, width = grouping.width(g);
      const float* source = w.const_data_ptr<float>() + first;
      std::vector<float> values(source, source + width);
      float size = column_size[g];
      if (smoother.kind == Smoother::Kind::row) size = root_mean_square(values);
      for (float& value : values) value /= size;
      clip(values, smoother);
      int8_t* codes = result.codes.mutable_data_ptr<int8_t>() + first;
      zero_groups[row] += std::all_of(source, source + width, [](float value) { return value == 0; });
      float scale = 0;
      int8_t zero = 0;
      if (options.strategy == FallbackStrategy::rtn && smoother.kind != Smoother::Kind::mse) {
        scaler.scales(values.data(), width, 1, width, &scale, 1, &zero);
        quantize(values.data(), width, scale, zero, grouping.rule, codes);
      } else {
        const Grid placed = smoother.kind == Smoother::Kind::mse
                                ? search_range(values, smoother, grid.symmetric, steps)
                                : place(values, options.strategy, steps);
        scale = placed.scale;
        zero = static_cast<int8_t>(placed.zero - static_cast<float>(offset));
        for (int64_t j = 0; j < width; ++j) {
          const float code = std::nearbyint((values[j] - placed.centre) / scale + placed.middle);
          codes[j] = static_cast<int8_t>(std::clamp(code, 0.0f, steps) - static_cast<float>(offset));
        }
      }
      result.scale.mutable_data_ptr<float>()[row * groups + g] = stored_scale(scale * size, grid.scale_type);
      result.zero.mutable_data_ptr<int8_t>()[row * groups + g] = zero;
    }
  });
  if (options.strategy == FallbackStrategy::rtn && grid.symmetric) result.zero.reset();
  for (const int64_t count : zero_groups) result.zero_groups += count;
  check_scales(result.scale);
  return result;
}

}  // namespace gramian
