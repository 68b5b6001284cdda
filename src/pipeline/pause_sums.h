// Inputs of one pause on their way into its statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/parallel.h"
#include "models/task.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"

namespace gramian {

// What is taken of the inputs of a pause.
enum class Statistic {
  none,
  hessian,        // 2/n Σ xxᵀ
  local_hessian,  // Σ xxᵀ of each 16 columns
  importance,     // Σ x² per column
};
// Bytes of one partial sum for inputs of `columns`.
int64_t partial_bytes(Statistic statistic, int64_t columns);

// What is known of one sum once every batch has reached its pause.
struct PauseStatistics {
  at::Tensor
      hessian;  // f32 [in, in], 2/n Σ xxᵀ; undefined or 0 without tokens, undefined for another Statistic
  at::Tensor blocks;             // f32 [⌈in / 16⌉, 16, 16], Σ xxᵀ of its columns; likewise
  at::Tensor squares;            // f64 [in], Σ x²; likewise
  int64_t tokens = 0;            // those of an expert are its own, but with all_experts
  std::vector<Linear*> modules;  // have this one sum; the solver exchanges their `op`
  bool first = true;             // of the sums of its pause
  bool expert = false;           // the modules belong to one expert of a mixture
  double sum_seconds = 0;        // of the lanes together, to add the inputs to their sums
  double merge_seconds = 0;
};

struct SumOptions {
  int lanes = 1;
  Statistic statistic = Statistic::hessian;
  AccumulationSettings accumulation = {};  // of Hessians
  Log* log = nullptr;                      // gets the warnings of `accumulation`; may be null
  // Modules of one pause that have a sum, by whose it is, the first of each leading; the others get none. Empty: all have one.
  std::function<std::vector<std::vector<Linear*>>(const std::vector<Linear*>& pause)> share = {};
  std::vector<std::vector<Linear*>> sums(const std::vector<Linear*>& pause) const;
};

// All functions but each() may be called by several lanes at a time. `options` must outlive the object.
class PauseSums {
 public:
  explicit PauseSums(const SumOptions& options, std::vector<Linear*> modules = {})
      : options_(options), modules_(std::move(modules)) {}

  // A batch has come to the pause.
  void meet(const Pause& pause);
  // Adds its input to every sum, and returns how many these are.
  int64_t add(int lane, const Pause& pause, ThreadPool& pool);
  bool empty() const { return modules_.empty(); }
  const std::vector<Linear*>& modules() const { return modules_; }
  // Hands out one sum after another, each freed behind it; those that nothing was added to have no tokens.
  void each(bool expert, const std::function<void(const PauseStatistics&)>& work);

 private:
  struct Sum {
    std::vector<Linear*> modules;
    std::unique_ptr<HessianAccumulator> hessian;
    std::unique_ptr<LocalHessianAccumulator> blocks;
    std::unique_ptr<ImatrixAccumulator> squares;
    double seconds = 0;
  };
  void make(Sum& sum, int64_t columns) const;

  const SumOptions& options_;
  std::mutex mutex_;
  std::vector<Linear*> modules_;
  std::vector<Sum> sums_;  // made with the first input
};

}  // namespace gramian
