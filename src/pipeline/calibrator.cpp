#include "pipeline/calibrator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/interrupt.h"
#include "pipeline/batch_files.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

size_t batch_count(size_t rows, int64_t batch) {
  GRAMIAN_CHECK(batch > 0 && rows > 0, "nothing to calibrate on");
  return (rows + static_cast<size_t>(batch) - 1) / static_cast<size_t>(batch);
}

int threads_per_lane(const CalibratorOptions& options) {
  return std::max(1, options.threads / options.lanes);
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

Sequential parse_sequential(const std::string& text) {
  for (const Sequential order : {Sequential::subset, Sequential::layer, Sequential::none}) {
    if (to_text(order) == text) return order;
  }
  throw Error(ErrorKind::invalid_argument, "--sequential", str("unknown word '", text, "'"),
              "choose subset, layer or none");
}

std::string to_text(Sequential sequential) {
  switch (sequential) {
    case Sequential::subset:
      return "subset";
    case Sequential::layer:
      return "layer";
    case Sequential::none:
      return "none";
  }
  return "";
}

Calibrator::Calibrator(const Model& model, const std::vector<TokenRow>& rows,
                       const CalibratorOptions& options)
    : model_(model),
      options_(options),
      sums_{.lanes = options.lanes,
            .statistic = options.statistic,
            .accumulation = options.accumulation,
            .log = options.log,
            .share = options.share},
      activations_(batch_count(rows.size(), options.batch), options.spill) {
  GRAMIAN_CHECK(options.lanes > 0, "no lane");
  for (int lane = 0; lane < options.lanes; ++lane)
    pools_.push_back(std::make_unique<ThreadPool>(threads_per_lane(options)));
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
  model.drop_embedding();
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

namespace {

// Checks that a layer's pauses are those that its module tree declares, each once.
class DeclaredPauses {
 public:
  explicit DeclaredPauses(ModuleTree tree) : open_(std::move(tree)) {}

  void close(const std::vector<Linear*>& modules) {
    const auto same = [&](const std::vector<std::string>& names) {
      return std::equal(names.begin(), names.end(), modules.begin(), modules.end(),
                        [](const std::string& name, const Linear* module) { return name == module->name; });
    };
    const auto found = std::find_if(open_.begin(), open_.end(), same);
    GRAMIAN_CHECK(found != open_.end(), "the forward paused at ", modules[0]->name,
                  ", which the module tree does not say");
    open_.erase(found);
  }
  void check_complete() const {
    GRAMIAN_CHECK(open_.empty(), "the forward never paused at ", open_.empty() ? "" : open_[0][0]);
  }

 private:
  ModuleTree open_;
};

}  // namespace

// All batches on their way through one layer.
class Calibrator::LayerRun {
 public:
  LayerRun(Calibrator& calibrator, int64_t index, DecoderLayer& layer, const Solver& solver,
           bool with_statistics)
      : calibrator_(calibrator),
        options_(calibrator.options_),
        layer_(layer),
        solver_(solver),
        with_statistics_(with_statistics),
        declared_(calibrator.model_.module_names(index)),
        executions_(calibrator.hidden_.size()),
        pauses_(calibrator.hidden_.size(), nullptr),
        products_(static_cast<size_t>(options_.lanes), 0),
        accumulations_(static_cast<size_t>(options_.lanes), 0) {}

  // Pause by pause: all batches reach it, it is solved, all go on with the solved weights.
  void by_pause() {
    for (size_t step = 0; step == 0 || !ended(); ++step) {
      PauseSums collected(calibrator_.sums_);
      calibrator_.on_lanes([&](int lane, size_t batch) {
        reach(lane, batch, step);
        const Pause* pause = pauses_[batch];
        if (pause == nullptr) return end(batch);
        if (pause->experts != nullptr) return;
        take(lane, batch, *pause, collected);
        // Experts are not run twice: behind them batches wait as they are.
        if (options_.waiting == Waiting::replay && !met_experts_) executions_[batch].reset();
      });
      if (!collected.empty()) {
        solve(collected, false);
      } else if (!ended()) {
        met_experts_ = true;
        run_experts(false);
      }
    }
    declared_.check_complete();
  }

  // One pass with the original weights takes the statistics of every pause. `again`: another one with the solved weights
  // makes the layer's output; otherwise the first one's is kept.
  void by_layer(bool again) {
    std::deque<PauseSums> collected;
    std::vector<size_t> steps(executions_.size(), 0);
    std::mutex grow;
    const std::vector<at::Tensor> inputs = again ? calibrator_.hidden_ : std::vector<at::Tensor>();
    do {
      calibrator_.on_lanes([&](int lane, size_t batch) {
        if (!executions_[batch]) start(batch);
        for (advance(lane, batch); pauses_[batch] != nullptr; advance(lane, batch)) {
          if (pauses_[batch]->experts != nullptr) return;
          const size_t step = steps[batch]++;
          PauseSums* at = nullptr;
          {
            const std::lock_guard lock(grow);
            while (collected.size() <= step) collected.emplace_back(calibrator_.sums_);
            at = &collected[step];
          }
          take(lane, batch, *pauses_[batch], *at);
        }
        end(batch);
      });
      if (!ended()) run_experts(again);
    } while (!ended());
    for (PauseSums& pause : collected) solve(pause, false);
    declared_.check_complete();
    if (!again) return;
    calibrator_.hidden_ = inputs;
    calibrator_.on_lanes([&](int lane, size_t batch) {
      start(batch);
      for (advance(lane, batch); pauses_[batch] != nullptr; advance(lane, batch)) {
      }
      end(batch);
    });
  }

  int64_t products() const { return std::accumulate(products_.begin(), products_.end(), int64_t{0}); }
  int64_t accumulations() const {
    return std::accumulate(accumulations_.begin(), accumulations_.end(), int64_t{0});
  }

 private:
  using Executions = std::vector<std::unique_ptr<Execution>>;
  tensor::ActivationStore::Scope scope(size_t batch) { return {calibrator_.activations_, batch}; }

  // All batches end at the same point.
  bool ended() const { return !executions_[0] && met_end_; }

  void start(size_t batch) {
    const auto owner = scope(batch);
    pauses_[batch] = nullptr;
    executions_[batch] =
        std::make_unique<Execution>(layer_.forward(calibrator_.hidden_[batch], calibrator_.contexts_[batch]));
  }

  // Fills the products of the pause the batch stands at, and runs to the next one.
  void advance(int lane, size_t batch) {
    // Statistics are taken outside: their sums belong to no batch.
    const auto owner = scope(batch);
    if (pauses_[batch] != nullptr && pauses_[batch]->outputs.empty())
      products_[static_cast<size_t>(lane)] += multiply(*pauses_[batch]);
    pauses_[batch] = executions_[batch]->advance();
  }

  // Brings the batch to pause `step`, from where it waits or from the layer's input.
  void reach(int lane, size_t batch, size_t step) {
    const size_t from = executions_[batch] ? step : 0;
    if (!executions_[batch]) start(batch);
    // A suspended batch needs its layer input no more than its frame does.
    if (options_.waiting == Waiting::suspend) calibrator_.hidden_[batch].reset();
    for (size_t i = from; i <= step; ++i) advance(lane, batch);
  }

  void end(size_t batch) {
    calibrator_.hidden_[batch] = executions_[batch]->result();
    executions_[batch].reset();
    met_end_ = true;
  }

  void take(int lane, size_t batch, const Pause& pause, PauseSums& collected) {
    if (!with_statistics_) return collected.meet(pause);
    try {
      const auto index = static_cast<size_t>(lane);
      accumulations_[index] += collected.add(lane, pause, *calibrator_.pools_[index]);
    } catch (const Error& error) {
      const int64_t token = first_bad_token(pause.input);
      if (error.kind() != ErrorKind::numerical || token < 0) throw;
      const int64_t first_row = static_cast<int64_t>(batch) * options_.batch;
      throw Error(ErrorKind::numerical,
                  str("input of ", pause.modules[0]->name, ", ",
                      place(calibrator_.contexts_[batch], first_row, token)),
                  error.what());
    }
  }

  void solve(PauseSums& collected, bool expert) {
    declared_.close(collected.modules());
    if (with_statistics_) return collected.each(expert, solver_);
    solver_({.hessian = {}, .blocks = {}, .squares = {}, .modules = collected.modules(), .expert = expert});
  }

  // All batches stand at a mixture: its experts are opened, fed and solved a wave at a time, and their outputs added to each
  // batch's sum in the order of the experts. `keep`: the layer will run again and needs the solved experts.
  void run_experts(bool keep) {
    ExpertBank& bank = *pauses_[0]->experts;
    std::vector<std::unique_ptr<ExpertRows>> rows(pauses_.size());
    calibrator_.on_lanes([&](int, size_t batch) {
      const auto owner = scope(batch);
      Pause& pause = *pauses_[batch];
      GRAMIAN_CHECK(pause.experts == &bank, "batches paused at different experts");
      rows[batch] = std::make_unique<ExpertRows>(pause.routing, bank.count());
      pause.outputs = {tensor::zeros(pause.input.sizes(), pause.input.scalar_type())};
    });
    for (int64_t first = 0; first < bank.count(); first += options_.expert_wave)
      run_wave(bank, rows, first, std::min(bank.count(), first + options_.expert_wave), keep);
    calibrator_.on_lanes([&](int, size_t batch) {
      pauses_[batch]->input.reset();
      pauses_[batch]->routing = {};
    });
  }

  struct OpenExpert {
    int64_t index;
    std::shared_ptr<Expert> mlp;
    Executions executions;       // per batch
    std::vector<Pause*> pauses;  // per batch
  };

  void run_wave(ExpertBank& bank, const std::vector<std::unique_ptr<ExpertRows>>& rows, int64_t first,
                int64_t end, bool keep) {
    std::vector<OpenExpert> wave;
    for (int64_t e = first; e < end; ++e)
      wave.push_back({e, bank.open(e), Executions(rows.size()), std::vector<Pause*>(rows.size(), nullptr)});
    // With the original weights to the end, when a whole layer's statistics come before its solution.
    const size_t steps = wave[0].mlp->pauses().size();
    std::deque<PauseSums> collected;
    for (size_t step = 0; step <= steps; ++step) {
      for (const OpenExpert& expert : wave) {
        if (step < steps) collected.emplace_back(calibrator_.sums_, expert.mlp->pauses()[step]);
      }
      calibrator_.on_lanes([&](int lane, size_t batch) {
        for (size_t w = 0; w < wave.size(); ++w) {
          if (!options_.all_experts && rows[batch]->count(wave[w].index) == 0) continue;
          advance_expert(lane, batch, wave[w], *rows[batch]);
          const Pause* pause = wave[w].pauses[batch];
          if (pause != nullptr) take(lane, batch, *pause, collected[step * wave.size() + w]);
        }
      });
      if (options_.sequential != Sequential::subset || step == steps) continue;
      for (size_t w = 0; w < wave.size(); ++w) solve(collected[step * wave.size() + w], true);
    }
    if (options_.sequential != Sequential::subset) {
      for (PauseSums& pause : collected) solve(pause, true);
    }
    for (const OpenExpert& expert : wave) {
      if (keep) bank.keep(expert.index, expert.mlp);
    }
  }

  void advance_expert(int lane, size_t batch, OpenExpert& expert, const ExpertRows& rows) {
    const auto owner = scope(batch);
    std::unique_ptr<Execution>& execution = expert.executions[batch];
    Pause*& pause = expert.pauses[batch];
    const bool all = options_.all_experts;
    if (!execution) {
      const at::Tensor& x = pauses_[batch]->input;
      execution = std::make_unique<Execution>(
          expert.mlp->forward(all ? rows.all(x, expert.index) : rows.gather(x, expert.index)));
    } else {
      products_[static_cast<size_t>(lane)] += multiply(*pause);
    }
    pause = execution->advance();
    if (pause != nullptr) return;
    const at::Tensor out = execution->result();
    rows.add(pauses_[batch]->outputs[0], all ? rows.pick(out, expert.index) : out, expert.index);
    execution.reset();
  }

  Calibrator& calibrator_;
  const CalibratorOptions& options_;
  DecoderLayer& layer_;
  const Solver& solver_;
  const bool with_statistics_;
  DeclaredPauses declared_;
  Executions executions_;
  std::vector<Pause*> pauses_;
  std::vector<int64_t> products_, accumulations_;  // per lane
  bool met_experts_ = false;
  std::atomic<bool> met_end_ = false;
};

void Calibrator::run_layer(int64_t index, DecoderLayer& layer, const Solver& solve, bool with_statistics) {
  // Lanes run in inference mode, so their tensors may only be changed in it.
  const tensor::InferenceScope inference;
  LayerRun run(*this, index, layer, solve, with_statistics);
  if (options_.sequential == Sequential::subset) {
    run.by_pause();
  } else {
    run.by_layer(options_.sequential == Sequential::layer);
  }
  multiplications_ += run.products();
  accumulations_ += run.accumulations();
}

void Calibrator::run_head(Linear& head, const Solver& solve) {
  const tensor::InferenceScope inference;
  PauseSums collected(sums_);
  std::vector<int64_t> added(static_cast<size_t>(options_.lanes), 0);
  on_lanes([&](int lane, size_t batch) {
    const auto index = static_cast<size_t>(lane);
    Pause pause;
    pause.input = model_.final_norm(hidden_[batch]);
    pause.modules = {&head};
    added[index] += collected.add(lane, pause, *pools_[index]);
  });
  accumulations_ += std::accumulate(added.begin(), added.end(), int64_t{0});
  collected.each(false, solve);
}

int64_t Calibrator::hidden_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& hidden : hidden_) bytes += static_cast<int64_t>(hidden.nbytes());
  return bytes;
}

std::string Calibrator::save(const std::filesystem::path& folder) {
  return save_batches(folder, hidden_, [&](const auto& work) { on_lanes([&](int, size_t b) { work(b); }); });
}

bool Calibrator::load(const std::filesystem::path& folder, const std::string& digest) {
  const tensor::InferenceScope inference;
  return load_batches(
      folder, digest, hidden_, [&](const auto& work) { on_lanes([&](int, size_t b) { work(b); }); },
      [&](size_t batch, const at::Tensor& stored) {
        const tensor::ActivationStore::Scope scope(activations_, batch);
        hidden_[batch] = stored.clone();
      });
}

int64_t run_original(const Model& model, const std::vector<TokenRow>& rows, CalibratorOptions options,
                     const Calibrator::Solver& work) {
  options.sequential = Sequential::none;
  Calibrator calibrator(model, rows, options);
  const int64_t layers = model.spec().layers();
  Progress progress(*options.log, "layers", layers);
  for (int64_t i = 0; i < layers; ++i) {
    throw_if_interrupted();
    const auto layer = model.load_layer(i);
    if (i + 1 < layers) model.read_ahead_layer(i + 1);
    calibrator.run_layer(i, *layer, work);
    model.drop_layer(i);
    progress.update(static_cast<double>(i + 1));
  }
  return calibrator.tokens();
}

}  // namespace gramian
