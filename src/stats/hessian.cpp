#include "stats/hessian.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Width of the column blocks of the lower triangle. The blocks on the diagonal are computed in full: narrower
// saves more of the product, wider multiplies faster.
constexpr int64_t kBlock = 512;
constexpr int64_t kChunkRows = 2048;
constexpr int64_t kChunkBytes = 32 << 20;  // of widened rows

int64_t chunk_rows(int64_t columns) {
  return std::clamp<int64_t>(kChunkBytes / (4 * columns), 1, kChunkRows);
}

// A NaN or an infinity shows in the sum. The sum may also overflow by itself, hence the second look.
void check_finite(const at::Tensor& chunk, int64_t first_row, const at::Tensor& rows) {
  if (chunk.sum().isfinite().item<bool>()) return;
  const at::Tensor bad = chunk.isfinite().logical_not();
  if (bad.sum().item<int64_t>() == 0) return;
  const int64_t row = first_row + bad.any(1).nonzero().min().item<int64_t>();
  const int64_t count = rows.to(at::kFloat).isfinite().logical_not().sum().item<int64_t>();
  throw Error(ErrorKind::numerical, "calibration input",
              str(count, " of ", rows.numel(), " values are NaN or infinite, first in token row ", row),
              "the model overflows in this precision, or its weights are damaged");
}

// The blocks on and below the diagonal: partial += xᵀ x.
void add_lower(const at::Tensor& partial, const at::Tensor& x) {
  const int64_t columns = x.size(1);
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, columns);
    partial.slice(0, begin, columns)
        .slice(1, begin, end)
        .addmm_(x.slice(1, begin, columns).t(), x.slice(1, begin, end));
  }
}

void mirror_lower(const at::Tensor& matrix) {
  const int64_t columns = matrix.size(0);
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, columns);
    const at::Tensor diagonal = matrix.slice(0, begin, end).slice(1, begin, end);
    diagonal.copy_(diagonal.tril().add_(diagonal.tril(-1).t()));
    matrix.slice(0, begin, end)
        .slice(1, end, columns)
        .copy_(matrix.slice(0, end, columns).slice(1, begin, end).t());
  }
}

struct Lane {
  mutable std::mutex mutex;
  at::Tensor partial;  // f32 [K, K], undefined until the first row
  int64_t tokens = 0;
};

}  // namespace

struct HessianAccumulator::State {
  State(int64_t in_features, int count) : columns(in_features), lanes(count) {}
  int64_t columns;
  std::vector<Lane> lanes;
  at::Tensor merged;  // H of `merged_tokens` rows
  int64_t merged_tokens = 0;
};

HessianAccumulator::HessianAccumulator(int64_t in_features, int lanes) {
  GRAMIAN_CHECK(in_features > 0 && lanes > 0, "in_features ", in_features, ", lanes ", lanes);
  state_ = std::make_unique<State>(in_features, lanes);
}
HessianAccumulator::~HessianAccumulator() = default;

void HessianAccumulator::add(int lane_index, const at::Tensor& rows) {
  GRAMIAN_CHECK(lane_index >= 0 && lane_index < static_cast<int>(state_->lanes.size()), "lane ", lane_index);
  const int64_t columns = state_->columns;
  if (rows.dim() < 1 || rows.size(-1) != columns || !rows.is_floating_point()) {
    throw Error(ErrorKind::invalid_argument, "calibration input",
                str("expected float rows of ", columns, " features, found ",
                    rows.dim() < 1 ? 0 : rows.size(-1), " of ", rows.dtype().name()));
  }
  if (rows.numel() == 0) return;
  const at::Tensor flat = rows.reshape({-1, columns});
  const int64_t count = flat.size(0);
  const int64_t step = chunk_rows(columns);
  const auto chunk = [&](int64_t begin) {
    return flat.slice(0, begin, std::min(begin + step, count)).to(at::kFloat);
  };
  for (int64_t begin = 0; begin < count; begin += step) check_finite(chunk(begin), begin, flat);

  Lane& lane = state_->lanes[lane_index];
  const std::lock_guard lock(lane.mutex);
  if (!lane.partial.defined()) lane.partial = tensor::zeros({columns, columns}, at::kFloat);
  for (int64_t begin = 0; begin < count; begin += step) add_lower(lane.partial, chunk(begin));
  lane.tokens += count;
}

at::Tensor HessianAccumulator::merge() {
  at::Tensor sum;
  int64_t added = 0;
  for (Lane& lane : state_->lanes) {
    const std::lock_guard lock(lane.mutex);
    if (!lane.partial.defined()) continue;
    if (sum.defined()) {
      sum.add_(lane.partial);
    } else {
      sum = lane.partial;
    }
    lane.partial.reset();
    added += std::exchange(lane.tokens, 0);
  }
  if (!sum.defined()) {
    if (!state_->merged.defined())
      state_->merged = tensor::zeros({state_->columns, state_->columns}, at::kFloat);
    return state_->merged;
  }
  const int64_t before = state_->merged_tokens;
  const double total = static_cast<double>(before + added);
  sum.mul_(2.0 / total);
  mirror_lower(sum);
  if (before > 0) sum.add_(state_->merged, static_cast<double>(before) / total);
  state_->merged = sum;
  state_->merged_tokens = before + added;
  return sum;
}

int64_t HessianAccumulator::tokens() const {
  int64_t total = state_->merged_tokens;
  for (const Lane& lane : state_->lanes) {
    const std::lock_guard lock(lane.mutex);
    total += lane.tokens;
  }
  return total;
}

}  // namespace gramian
