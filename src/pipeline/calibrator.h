// Drives all calibration batches through a model, pause by pause: at each pause the statistics of the paused inputs are
// taken, the modules that read them are solved and replaced, and the batches go on with the replaced weights. Each linear
// layer is multiplied once per batch for the whole job.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "models/model.h"

namespace gramian {

struct CalibratorOptions {
  int64_t batch = 8;  // rows per batch
  int lanes = 1;      // batch b runs on lane b mod lanes, one thread per lane
  int threads = 1;    // shared by the lanes
};

// What is known of one pause once every batch has reached it.
struct PauseStatistics {
  at::Tensor hessian;  // f32 [in, in], 2/n Σ xxᵀ
  int64_t tokens = 0;
  std::vector<Linear*> modules;  // read the same input; the solver exchanges their `op`
};

class Calibrator {
 public:
  using Solver = std::function<void(const PauseStatistics&)>;

  // Embeds all rows; throws invalid_argument for ids outside the vocabulary.
  Calibrator(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options);

  // Runs every batch through decoder layer `index`; `solve` is called once per pause, on the calling thread.
  void run_layer(int64_t index, DecoderLayer& layer, const Solver& solve);

  int64_t tokens() const noexcept { return tokens_; }
  // Products of one batch with one linear layer made so far, and how many there would be if each were made once.
  int64_t linear_multiplications() const noexcept { return multiplications_; }
  int64_t batches() const noexcept { return static_cast<int64_t>(hidden_.size()); }

 private:
  void on_lanes(const std::function<void(int lane, size_t batch)>& work);
  const Model& model_;
  CalibratorOptions options_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // per lane, its share of the threads
  std::vector<BatchContext> contexts_;
  std::vector<at::Tensor> hidden_;  // per batch, the input of the next layer
  int64_t tokens_ = 0;
  int64_t multiplications_ = 0;
};

}  // namespace gramian
