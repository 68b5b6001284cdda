#include "stats/hessian.h"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "stats/gram.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

void refuse_non_finite(const at::Tensor& rows, ThreadPool* pool) {
  const auto row = first_non_finite(rows, pool, gram_form(rows));
  if (!row) return;
  const int64_t count = rows.to(at::kFloat).isfinite().logical_not().sum().item<int64_t>();
  throw Error(ErrorKind::numerical, "calibration input",
              str(count, " of ", rows.numel(), " values are NaN or infinite, first in token row ", *row),
              "the model overflows in this precision, or its weights are damaged");
}

struct Lane {
  mutable std::mutex mutex;
  at::Tensor partial;  // f32 [K, K], undefined until the first row
  GramWorkspaces workspaces;
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

void HessianAccumulator::add(int lane_index, const at::Tensor& rows, ThreadPool* pool) {
  GRAMIAN_CHECK(lane_index >= 0 && lane_index < static_cast<int>(state_->lanes.size()), "lane ", lane_index);
  const int64_t columns = state_->columns;
  if (rows.dim() < 1 || rows.size(-1) != columns || !rows.is_floating_point()) {
    throw Error(ErrorKind::invalid_argument, "calibration input",
                str("expected float rows of ", columns, " features, found ",
                    rows.dim() < 1 ? 0 : rows.size(-1), " of ", rows.dtype().name()));
  }
  if (rows.numel() == 0) return;
  const at::Tensor flat = rows.reshape({-1, columns});
  refuse_non_finite(flat, pool);

  Lane& lane = state_->lanes[lane_index];
  const std::lock_guard lock(lane.mutex);
  if (!lane.partial.defined()) lane.partial = flat.new_zeros({columns, columns}, at::kFloat);
  add_gram(lane.partial, flat, lane.workspaces, pool, gram_form(flat));
  lane.tokens += flat.size(0);
}

at::Tensor HessianAccumulator::merge() {
  at::Tensor sum;
  int64_t added = 0;
  for (Lane& lane : state_->lanes) {
    const std::lock_guard lock(lane.mutex);
    if (!lane.partial.defined()) continue;
    if (sum.defined()) {
      sum.add_(lane.partial.to(sum.device()));
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
  finish_gram(sum, 2.0 / total, gram_form(sum));
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
