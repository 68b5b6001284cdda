#include "stats/lane_sums.h"

#include <utility>

#include "base/error.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

void refuse_non_finite(const TokenBatch& batch, ThreadPool* pool) {
  const auto row = first_non_finite(batch, pool, gram_form(batch.rows()));
  if (!row) return;
  int64_t bad = 0;
  batch.for_each_piece({.copy_as = at::kFloat}, [&](const TokenPiece& piece) {
    bad += piece.x.isfinite().logical_not().sum().item<int64_t>();
  });
  throw Error(ErrorKind::numerical, "calibration input",
              str(bad, " of ", batch.tokens() * batch.rows().size(1),
                  " values are NaN or infinite, first in token row ", *row),
              "the model overflows in this precision, or its weights are damaged");
}

}  // namespace

struct LaneSums::Lane {
  mutable std::mutex mutex;
  at::Tensor partial;  // undefined until the first token
  GramWorkspaces workspaces;
  int64_t tokens = 0;
};

LaneSums::LaneSums(SumKind kind, int lanes) : kind_(std::move(kind)), count_(lanes) {
  GRAMIAN_CHECK(kind_.columns > 0 && lanes > 0, "in_features ", kind_.columns, ", lanes ", lanes);
  lanes_ = std::make_unique<Lane[]>(static_cast<size_t>(lanes));
}
LaneSums::~LaneSums() = default;

void LaneSums::add(int index, const at::Tensor& rows, const at::Tensor& keep, ThreadPool* pool) {
  GRAMIAN_CHECK(index >= 0 && index < count_, "lane ", index);
  const TokenBatch batch(rows, keep, kind_.columns);
  if (batch.tokens() == 0) return;
  refuse_non_finite(batch, pool);
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const std::lock_guard lock(lane.mutex);
  if (!lane.partial.defined()) lane.partial = rows.new_zeros(kind_.shape, kind_.type);
  kind_.add(lane.partial, batch, lane.workspaces, pool);
  lane.tokens += batch.tokens();
}

LaneSums::Sum LaneSums::take() {
  Sum result;
  for (int i = 0; i < count_; ++i) {
    Lane& lane = lanes_[static_cast<size_t>(i)];
    const std::lock_guard lock(lane.mutex);
    if (lane.tokens == 0) continue;
    if (result.sum.defined()) {
      result.sum.add_(lane.partial.to(result.sum.device()));
    } else {
      result.sum = lane.partial;
    }
    lane.partial.reset();
    result.tokens += std::exchange(lane.tokens, 0);
  }
  return result;
}

at::Tensor LaneSums::merge() {
  const std::lock_guard lock(merging_);
  const Sum added = take();
  if (added.sum.defined()) {
    if (merged_.tokens > 0) added.sum.add_(merged_.sum);
    merged_ = {added.sum, merged_.tokens + added.tokens};
  }
  if (!merged_.sum.defined()) merged_.sum = tensor::zeros(kind_.shape, kind_.type);
  return merged_.sum;
}

int64_t LaneSums::tokens() const {
  const std::lock_guard lock(merging_);
  int64_t total = merged_.tokens;
  for (int i = 0; i < count_; ++i) {
    const std::lock_guard turn(lanes_[static_cast<size_t>(i)].mutex);
    total += lanes_[static_cast<size_t>(i)].tokens;
  }
  return total;
}

}  // namespace gramian
