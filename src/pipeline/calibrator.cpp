#include "pipeline/calibrator.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "base/interrupt.h"
#include "stats/hessian.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

size_t batch_count(size_t rows, int64_t batch) {
  GRAMIAN_CHECK(batch > 0 && rows > 0, "nothing to calibrate on");
  return (rows + static_cast<size_t>(batch) - 1) / static_cast<size_t>(batch);
}

// Row of the calibration set and position in it of packed token `token` of batch `batch`.
std::string place(const BatchContext& context, int64_t first_row, int64_t token) {
  for (const RowRun& run : context.runs) {
    if (token < run.begin + run.rows * run.length) {
      const int64_t row = (token - run.begin) / run.length;
      return str("calibration row ", first_row + row, ", token ", (token - run.begin) % run.length);
    }
    first_row += run.rows;
  }
  return str("token ", token);
}

// The first packed token whose input is not finite, or -1.
int64_t first_bad_token(const at::Tensor& input) {
  const at::Tensor bad = input.reshape({-1, input.size(-1)}).isfinite().logical_not().any(1);
  return bad.any().item<bool>() ? bad.nonzero().min().item<int64_t>() : -1;
}

}  // namespace

Calibrator::Calibrator(const Model& model, const std::vector<TokenRow>& rows,
                       const CalibratorOptions& options)
    : model_(model), options_(options), activations_(batch_count(rows.size(), options.batch), options.spill) {
  GRAMIAN_CHECK(options.lanes > 0, "no lane");
  const tensor::InferenceScope inference;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(options.batch)) {
    const size_t end = std::min(begin + static_cast<size_t>(options.batch), rows.size());
    const std::vector<TokenRow> batch(rows.begin() + static_cast<int64_t>(begin),
                                      rows.begin() + static_cast<int64_t>(end));
    const size_t owner = hidden_.size();
    {
      const tensor::ActivationStore::Scope scope(activations_, owner);
      hidden_.push_back(model.embed(model.pack_rows(batch)));
    }
    if (!options_.spill.empty()) activations_.park(owner);
    contexts_.push_back(model.context(batch));
    tokens_ += contexts_.back().tokens;
  }
}

Calibrator::~Calibrator() = default;

void Calibrator::on_lanes(const std::function<void(int, size_t)>& work) {
  const auto lanes = static_cast<size_t>(options_.lanes);
  const auto drive = [&](size_t lane) {
    for (size_t batch = lane; batch < hidden_.size(); batch += lanes) {
      throw_if_interrupted();
      activations_.fetch(batch);
      work(static_cast<int>(lane), batch);
      if (!options_.spill.empty()) activations_.park(batch);
    }
  };
  if (lanes == 1) return drive(0);
  std::vector<std::exception_ptr> errors(lanes);
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] {
      try {
        tensor::set_threads(std::max(1, options_.threads / options_.lanes));
        const tensor::InferenceScope inference;
        drive(lane);
      } catch (...) {
        errors[lane] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tensor::set_threads(options_.threads);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// All batches on their way through one layer.
class Calibrator::LayerRun {
 public:
  LayerRun(Calibrator& calibrator, int64_t index, DecoderLayer& layer)
      : calibrator_(calibrator),
        layer_(layer),
        names_(calibrator.model_.module_names(index)),
        executions_(calibrator.hidden_.size()),
        pauses_(calibrator.hidden_.size(), nullptr),
        products_(static_cast<size_t>(calibrator.options_.lanes), 0),
        statistics_(names_.size()),
        modules_(names_.size()) {}

  // Pause by pause: all batches reach it, it is solved, all go on with the solved weights.
  void by_pause(const Solver& solve) {
    for (size_t step = 0; step < names_.size(); ++step) {
      calibrator_.on_lanes([&](int lane, size_t batch) {
        reach(lane, batch, step);
        take(lane, batch, step);
        if (calibrator_.options_.waiting == Waiting::replay) executions_[batch].reset();
      });
      solve_step(step, solve);
    }
    calibrator_.on_lanes([&](int lane, size_t batch) {
      reach(lane, batch, names_.size());
      end(batch);
    });
  }

  // One pass with the original weights takes the statistics of every pause. `again`: another one with the solved weights
  // makes the layer's output; otherwise the first one's is kept.
  void by_layer(const Solver& solve, bool again) {
    calibrator_.on_lanes([&](int lane, size_t batch) {
      start(batch);
      for (size_t step = 0; step < names_.size(); ++step) {
        advance(lane, batch);
        take(lane, batch, step);
      }
      advance(lane, batch);
      if (!again) calibrator_.hidden_[batch] = executions_[batch]->result();
      executions_[batch].reset();
    });
    for (size_t step = 0; step < names_.size(); ++step) solve_step(step, solve);
    if (!again) return;
    calibrator_.on_lanes([&](int lane, size_t batch) {
      start(batch);
      for (size_t step = 0; step <= names_.size(); ++step) advance(lane, batch);
      end(batch);
    });
  }

  int64_t products() const {
    int64_t sum = 0;
    for (const int64_t count : products_) sum += count;
    return sum;
  }

 private:
  void start(size_t batch) {
    pauses_[batch] = nullptr;
    executions_[batch] =
        std::make_unique<Execution>(layer_.forward(calibrator_.hidden_[batch], calibrator_.contexts_[batch]));
  }

  // Fills the products of the pause the batch stands at, and runs to the next one.
  void advance(int lane, size_t batch) {
    // Statistics are taken outside: their sums belong to no batch.
    const tensor::ActivationStore::Scope scope(calibrator_.activations_, batch);
    if (pauses_[batch] != nullptr) products_[static_cast<size_t>(lane)] += multiply(*pauses_[batch]);
    pauses_[batch] = executions_[batch]->advance();
  }

  // Brings the batch to pause `step`, from where it waits or from the layer's input.
  void reach(int lane, size_t batch, size_t step) {
    const size_t from = executions_[batch] ? step : 0;
    if (!executions_[batch]) start(batch);
    // A suspended batch needs its layer input no more than its frame does.
    if (calibrator_.options_.waiting == Waiting::suspend) calibrator_.hidden_[batch].reset();
    for (size_t i = from; i <= step; ++i) advance(lane, batch);
  }

  void end(size_t batch) {
    calibrator_.hidden_[batch] = executions_[batch]->result();
    executions_[batch].reset();
  }

  void take(int lane, size_t batch, size_t step) {
    const Pause* pause = pauses_[batch];
    GRAMIAN_CHECK(pause != nullptr, "a layer ended before its pause ", step, ", ", names_[step][0]);
    HessianAccumulator* statistics = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!statistics_[step]) {
        statistics_[step] =
            std::make_unique<HessianAccumulator>(pause->input.size(-1), calibrator_.options_.lanes);
        modules_[step] = pause->modules;
        check_names(step);
      }
      GRAMIAN_CHECK(modules_[step] == pause->modules, "batches paused at different modules");
      statistics = statistics_[step].get();
    }
    try {
      statistics->add(lane, pause->input);
    } catch (const Error& error) {
      const int64_t token = first_bad_token(pause->input);
      if (error.kind() != ErrorKind::numerical || token < 0) throw;
      const int64_t first_row = static_cast<int64_t>(batch) * calibrator_.options_.batch;
      throw Error(
          ErrorKind::numerical,
          str("input of ", names_[step][0], ", ", place(calibrator_.contexts_[batch], first_row, token)),
          error.what());
    }
  }

  void check_names(size_t step) const {
    GRAMIAN_CHECK(modules_[step].size() == names_[step].size(), "pause ", step, " has ",
                  modules_[step].size(), " modules, the module tree says ", names_[step].size());
    for (size_t m = 0; m < names_[step].size(); ++m) {
      GRAMIAN_CHECK(modules_[step][m]->name == names_[step][m], "the forward paused at ",
                    modules_[step][m]->name, ", which the module tree does not say");
    }
  }

  void solve_step(size_t step, const Solver& solve) {
    const int64_t tokens = statistics_[step]->tokens();
    const PauseStatistics ready{statistics_[step]->merge(), tokens, modules_[step]};
    statistics_[step].reset();
    solve(ready);
  }

  Calibrator& calibrator_;
  DecoderLayer& layer_;
  ModuleTree names_;
  std::vector<std::unique_ptr<Execution>> executions_;
  std::vector<Pause*> pauses_;
  std::vector<int64_t> products_;  // per lane
  // The first batch that reaches a pause makes its sums.
  std::mutex mutex_;
  std::vector<std::unique_ptr<HessianAccumulator>> statistics_;
  std::vector<std::vector<Linear*>> modules_;
};

void Calibrator::run_layer(int64_t index, DecoderLayer& layer, const Solver& solve) {
  // Lanes run in inference mode, so their tensors may only be changed in it.
  const tensor::InferenceScope inference;
  LayerRun run(*this, index, layer);
  if (options_.sequential == Sequential::subset) {
    run.by_pause(solve);
  } else {
    run.by_layer(solve, options_.sequential == Sequential::layer);
  }
  multiplications_ += run.products();
}

}  // namespace gramian
