#include "pipeline/calibrator.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/interrupt.h"
#include "stats/hessian.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

int threads_per_lane(const CalibratorOptions& options) {
  return std::max(1, options.threads / options.lanes);
}

}  // namespace

Calibrator::Calibrator(const Model& model, const std::vector<TokenRow>& rows,
                       const CalibratorOptions& options)
    : model_(model), options_(options) {
  GRAMIAN_CHECK(options.batch > 0 && options.lanes > 0 && !rows.empty(), "nothing to calibrate on");
  for (int lane = 0; lane < options.lanes; ++lane)
    pools_.push_back(std::make_unique<ThreadPool>(threads_per_lane(options)));
  const tensor::InferenceScope inference;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(options.batch)) {
    const size_t end = std::min(begin + static_cast<size_t>(options.batch), rows.size());
    const std::vector<TokenRow> batch(rows.begin() + static_cast<int64_t>(begin),
                                      rows.begin() + static_cast<int64_t>(end));
    hidden_.push_back(model.embed(model.pack_rows(batch)));
    contexts_.push_back(model.context(batch));
    tokens_ += contexts_.back().tokens;
  }
}

namespace {

// A module's name and batch in front of what the statistics found wrong.
void add_rows(HessianAccumulator& statistics, int lane, size_t batch, const Pause& pause, ThreadPool& pool) {
  try {
    statistics.add(lane, pause.input, &pool);
  } catch (const Error& error) {
    throw Error(error.kind(), str(pause.modules[0]->name, ", calibration batch ", batch), error.what());
  }
}

}  // namespace

void Calibrator::on_lanes(const std::function<void(int, size_t)>& work) {
  const auto lanes = static_cast<size_t>(options_.lanes);
  const auto drive = [&](size_t lane) {
    for (size_t batch = lane; batch < hidden_.size(); batch += lanes) work(static_cast<int>(lane), batch);
  };
  if (lanes == 1) return drive(0);
  std::vector<std::exception_ptr> errors(lanes);
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] {
      try {
        tensor::set_threads(threads_per_lane(options_));
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

void Calibrator::run_layer(int64_t index, DecoderLayer& layer, const Solver& solve) {
  // Lanes run in inference mode, so their tensors may only be changed in it.
  const tensor::InferenceScope inference;
  const ModuleTree names = model_.module_names(index);
  std::vector<std::unique_ptr<Execution>> executions;
  for (size_t b = 0; b < hidden_.size(); ++b) {
    executions.push_back(std::make_unique<Execution>(layer.forward(std::move(hidden_[b]), contexts_[b])));
  }
  std::vector<Pause*> pauses(executions.size(), nullptr);
  std::vector<int64_t> products(static_cast<size_t>(options_.lanes), 0);

  for (size_t step = 0; step <= names.size(); ++step) {
    // The widest input a layer can pause with is known only when a batch arrives, so the first one sizes the sums.
    std::unique_ptr<HessianAccumulator> statistics;
    std::mutex create;
    on_lanes([&](int lane, size_t b) {
      throw_if_interrupted();
      if (pauses[b] != nullptr) products[static_cast<size_t>(lane)] += multiply(*pauses[b]);
      pauses[b] = executions[b]->advance();
      if (pauses[b] == nullptr) return;
      {
        const std::lock_guard lock(create);
        if (!statistics) {
          statistics = std::make_unique<HessianAccumulator>(pauses[b]->input.size(-1), options_.lanes);
        }
      }
      add_rows(*statistics, lane, b, *pauses[b], *pools_[static_cast<size_t>(lane)]);
    });
    if (step == names.size()) break;

    for (const Pause* pause : pauses) {
      GRAMIAN_CHECK(pause != nullptr, "layer ", index, " ended before pause ", step);
      GRAMIAN_CHECK(pause->modules == pauses[0]->modules, "batches paused at different modules");
    }
    for (size_t m = 0; m < pauses[0]->modules.size(); ++m) {
      GRAMIAN_CHECK(m < names[step].size() && pauses[0]->modules[m]->name == names[step][m],
                    "the forward paused at ", pauses[0]->modules[m]->name,
                    ", which the module tree does not say");
    }
    PauseStatistics ready{statistics->merge(), statistics->tokens(), pauses[0]->modules};
    statistics.reset();
    solve(ready);
  }
  for (size_t b = 0; b < hidden_.size(); ++b) hidden_[b] = executions[b]->result();
  for (const int64_t count : products) multiplications_ += count;
}

}  // namespace gramian
