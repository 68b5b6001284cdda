#include "pipeline/collected.h"

#include "base/error.h"
#include "pipeline/layer_record.h"

namespace gramian {

void Collected::meet(const Pause& pause) {
  const std::lock_guard lock(mutex_);
  if (modules_.empty()) modules_ = pause.modules;
  GRAMIAN_CHECK(modules_ == pause.modules, "batches paused at different modules");
}

void Collected::add(int lane, const CalibratorOptions& options, const Pause& pause, ThreadPool& pool) {
  meet(pause);
  const bool importance = options.statistic == Statistic::importance;
  {
    const std::lock_guard lock(mutex_);
    const int64_t columns = pause.input.size(-1);
    if (importance && !squares_) squares_ = std::make_unique<ImatrixAccumulator>(columns, options.lanes);
    if (!importance && !hessian_) {
      hessian_ =
          std::make_unique<HessianAccumulator>(columns, options.lanes, options.accumulation, options.log);
    }
  }
  double seconds = 0;
  timed(seconds, [&] {
    if (importance) {
      squares_->add(lane, pause.input, &pool);
    } else {
      hessian_->add(lane, pause.input, &pool);
    }
  });
  const std::lock_guard lock(mutex_);
  seconds_ += seconds;
}

PauseStatistics Collected::merge(bool expert) {
  PauseStatistics statistics{
      .hessian = {}, .squares = {}, .modules = modules_, .expert = expert, .sum_seconds = seconds_};
  timed(statistics.merge_seconds, [&] {
    if (hessian_) {
      statistics.tokens = hessian_->tokens();
      statistics.hessian = hessian_->merge();
    }
    if (squares_) {
      statistics.tokens = squares_->tokens();
      statistics.squares = squares_->merge();
    }
  });
  hessian_.reset();
  squares_.reset();
  return statistics;
}

}  // namespace gramian
