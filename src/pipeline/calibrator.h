// Drives all calibration batches through a model, pause by pause: at each pause the statistics of the paused inputs are
// taken, the modules that read them are solved and replaced, and the batches go on with the replaced weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "models/model.h"
#include "pipeline/pause_sums.h"
#include "tensor/activations.h"

namespace gramian {

// Which weights stand before a module when its statistics are taken.
enum class Sequential {
  subset,  // every earlier pause is solved: each statistic sees what the quantized model will compute
  layer,  // every earlier layer is solved; a layer's statistics are taken with its original weights in one pass
  none,  // all weights are original: one pass over the unquantized model
};

// "subset", "layer", "none"; throws invalid_argument for another word.
Sequential parse_sequential(const std::string& text);
std::string to_text(Sequential sequential);

// How a batch waits at a pause while the others get there (Sequential::subset). The results are the same bytes.
enum class Waiting {
  suspend,  // its tensors stay as they are: each product is made once
  replay,   // only its layer input stays; it runs again from there to the next pause
};

struct CalibratorOptions {
  int64_t batch = 8;  // rows per batch
  int lanes = 1;      // batch b runs on lane b mod lanes, one thread per lane
  int threads = 1;    // shared by the lanes
  Sequential sequential = Sequential::subset;
  Waiting waiting = Waiting::suspend;
  // A folder: what a batch holds lies in a file there while no lane works on it. Empty: it stays in memory.
  std::filesystem::path spill = {};
  // Experts of a mixture whose weights and statistics are in memory at one time. The results are the same bytes.
  int64_t expert_wave = 8;
  Statistic statistic = Statistic::hessian;
  AccumulationSettings accumulation = {};  // of Hessians
  // Who has a sum of its own at each pause (SumOptions::share). The statistics are the same bytes.
  decltype(SumOptions::share) share = {};
  // Each expert's statistics are taken of every token, not of those alone that are sent to it; what goes on to the next layer
  // is routed all the same.
  bool all_experts = false;
  Log* log = nullptr;  // gets the warnings of `accumulation`; may be null
};

class Calibrator {
 public:
  using Solver = std::function<void(const PauseStatistics&)>;

  // Embeds all rows; throws invalid_argument for ids outside the vocabulary.
  Calibrator(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options);
  ~Calibrator();

  // Runs every batch through decoder layer `index`; `solve` is called once per sum of a pause, on the calling thread.
  // `with_statistics` false: once per pause, and it gets the modules alone, and is to give them the weights that an earlier run has solved; the
  // batches then end with the same bits as in that run.
  void run_layer(int64_t index, DecoderLayer& layer, const Solver& solve, bool with_statistics = true);

  // Behind the last layer: `solve` is called once with the statistics of what the head reads, the last norm's output.
  void run_head(Linear& head, const Solver& solve);

  // Writes what the batches hold, the input of the next layer, into the new folder `folder`; returns its digest. Throws io.
  std::string save(const std::filesystem::path& folder);
  // Takes what save() wrote, when it has this digest and is of these batches; false, and nothing taken, otherwise.
  bool load(const std::filesystem::path& folder, const std::string& digest);
  // What save() would write.
  int64_t hidden_bytes() const;
  // The same, per batch, and another such set in its place. For batches that wait in memory.
  const std::vector<at::Tensor>& hidden() const noexcept { return hidden_; }
  void set_hidden(std::vector<at::Tensor> hidden) { hidden_ = std::move(hidden); }

  int64_t tokens() const noexcept { return tokens_; }
  // Products of one batch with one linear layer made so far. Suspended batches make each once.
  int64_t linear_multiplications() const noexcept { return multiplications_; }
  // Inputs of one batch added to one sum so far.
  int64_t accumulations() const noexcept { return accumulations_; }
  int64_t batches() const noexcept { return static_cast<int64_t>(hidden_.size()); }
  const tensor::ActivationStore& activations() const noexcept { return activations_; }

 private:
  class LayerRun;
  void on_lanes(const std::function<void(int lane, size_t batch)>& work);
  const Model& model_;
  CalibratorOptions options_;
  SumOptions sums_;
  tensor::ActivationStore activations_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // per lane, its share of the threads
  std::vector<BatchContext> contexts_;
  std::vector<at::Tensor> hidden_;  // per batch, the input of the next layer
  int64_t tokens_ = 0;
  int64_t multiplications_ = 0;
  int64_t accumulations_ = 0;
};

// All rows through every layer of the original model, one after the other; `work` gets the statistics of each pause. `options` says
// which, and its log shows the progress. Returns the number of tokens.
int64_t run_original(const Model& model, const std::vector<TokenRow>& rows, CalibratorOptions options,
                     const Calibrator::Solver& work);

}  // namespace gramian
