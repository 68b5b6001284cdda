#include "pipeline/pause_sums.h"

#include "pipeline/layer_record.h"

namespace gramian {

int64_t partial_bytes(Statistic statistic, int64_t columns) {
  switch (statistic) {
    case Statistic::none:
      return 0;
    case Statistic::hessian:
      return 4 * columns * columns;
    case Statistic::local_hessian:
      return 4 * 16 * columns;
    case Statistic::importance:
      return 8 * columns;
  }
  return 0;
}

std::vector<std::vector<Linear*>> SumOptions::sums(const std::vector<Linear*>& pause) const {
  return share ? share(pause) : std::vector<std::vector<Linear*>>{pause};
}

void PauseSums::meet(const Pause& pause) {
  const std::lock_guard lock(mutex_);
  if (modules_.empty()) modules_ = pause.modules;
  GRAMIAN_CHECK(modules_ == pause.modules, "batches paused at different modules");
}

int64_t PauseSums::add(int lane, const Pause& pause, ThreadPool& pool) {
  meet(pause);
  {
    const std::lock_guard lock(mutex_);
    if (sums_.empty()) {
      const int64_t columns = pause.input.size(-1);
      for (auto& modules : options_.sums(modules_)) {
        Sum& sum = sums_.emplace_back();
        sum.modules = std::move(modules);
        make(sum, columns);
      }
    }
  }
  for (Sum& sum : sums_) {
    double seconds = 0;
    timed(seconds, [&] {
      if (sum.hessian) sum.hessian->add(lane, pause.input, &pool);
      if (sum.blocks) sum.blocks->add(lane, pause.input, &pool);
      if (sum.squares) sum.squares->add(lane, pause.input, &pool);
    });
    const std::lock_guard lock(mutex_);
    sum.seconds += seconds;
  }
  return static_cast<int64_t>(sums_.size());
}

void PauseSums::make(Sum& sum, int64_t columns) const {
  const int lanes = options_.lanes;
  switch (options_.statistic) {
    case Statistic::none:
      break;
    case Statistic::hessian:
      sum.hessian = std::make_unique<HessianAccumulator>(columns, lanes, options_.accumulation, options_.log);
      break;
    case Statistic::local_hessian:
      sum.blocks =
          std::make_unique<LocalHessianAccumulator>(columns, lanes, options_.accumulation, options_.log);
      break;
    case Statistic::importance:
      sum.squares = std::make_unique<ImatrixAccumulator>(columns, lanes);
      break;
  }
}

void PauseSums::each(bool expert, const std::function<void(const PauseStatistics&)>& work) {
  if (sums_.empty()) {
    for (auto& modules : options_.sums(modules_)) sums_.emplace_back().modules = std::move(modules);
  }
  for (Sum& sum : sums_) {
    PauseStatistics statistics{.hessian = {},
                               .blocks = {},
                               .squares = {},
                               .modules = sum.modules,
                               .first = &sum == &sums_.front(),
                               .expert = expert,
                               .sum_seconds = sum.seconds};
    if (sum.hessian) {
      statistics.tokens = sum.hessian->tokens();
      timed(statistics.merge_seconds, [&] { statistics.hessian = sum.hessian->merge(); });
      sum.hessian.reset();
    }
    if (sum.blocks) {
      statistics.tokens = sum.blocks->tokens();
      timed(statistics.merge_seconds, [&] { statistics.blocks = sum.blocks->merge(); });
      sum.blocks.reset();
    }
    if (sum.squares) {
      statistics.tokens = sum.squares->tokens();
      timed(statistics.merge_seconds, [&] { statistics.squares = sum.squares->merge(); });
      sum.squares.reset();
    }
    work(statistics);
  }
  sums_.clear();
}

}  // namespace gramian
