// Inputs of one pause on their way into its statistics. Internal to the calibrator.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "models/task.h"
#include "pipeline/calibrator.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"

namespace gramian {

// The first batch that brings rows makes the sums. All functions but merge() may be called from several threads.
class Collected {
 public:
  Collected() = default;
  explicit Collected(std::vector<Linear*> modules) : modules_(std::move(modules)) {}

  // Batches must pause at the same modules.
  void meet(const Pause& pause);
  void add(int lane, const CalibratorOptions& options, const Pause& pause, ThreadPool& pool);
  bool empty() const { return modules_.empty(); }
  // Frees the sums.
  PauseStatistics merge(bool expert);

 private:
  std::mutex mutex_;
  std::unique_ptr<HessianAccumulator> hessian_;
  std::unique_ptr<ImatrixAccumulator> squares_;
  std::vector<Linear*> modules_;
  double seconds_ = 0;
};

}  // namespace gramian
