#include "pipeline/model_forward.h"

namespace gramian {

LayerForward::Solver ModelForward::of_all_ranks(const Solver& solve) const {
  if (ranks_ == nullptr) return solve;
  return [this, &solve](const PauseStatistics& mine) {
    PauseStatistics all = mine;
    reduce(all, statistic_, all.modules[0]->in_features, *ranks_);
    solve(all);
  };
}

void ModelForward::run_layer(size_t index, const Solver& solve, bool with_statistics) {
  const auto i = static_cast<int64_t>(index);
  const auto layer = model_.load_layer(i);
  if (i + 1 < model_.spec().layers()) model_.read_ahead_layer(i + 1);
  calibrator_.run_layer(i, *layer, with_statistics ? of_all_ranks(solve) : solve, with_statistics);
  model_.drop_layer(i);
}

}  // namespace gramian
