#include "hook_forward.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/resources.h"
#include "pipeline/batch_files.h"
#include "pipeline/layer_record.h"
#include "solve/factor.h"

namespace gramian::python {
namespace {

// Sums that are alive at once where memory is not bounded, if there are several.
constexpr int64_t kSumBytes = int64_t{4} << 30;
// Kernels' packing buffers, fragments of the heap, a batch in the layer.
constexpr int64_t kSlack = int64_t{48} << 20;

// For calls into Python out of a job: takes the interpreter's lock, lets Ctrl-C through, and makes ordinary tensors.
class Call {
  py::gil_scoped_acquire locked_;
  c10::InferenceMode ordinary_{false};

 public:
  Call() {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
};

const EachBatch all_of(size_t count) {
  return [count](const auto& work) {
    for (size_t i = 0; i < count; ++i) work(i);
  };
}

}  // namespace

struct HookForward::Sum {
  std::vector<Linear*> modules;
  bool first = true;  // of its pause
  bool expert = false;
  // The one of the job's statistic.
  std::shared_ptr<HessianAccumulator> hessian = nullptr;
  std::shared_ptr<LocalHessianAccumulator> blocks = nullptr;
  std::shared_ptr<ImatrixAccumulator> squares = nullptr;
  double seconds = 0;

  void make(const HookOptions& options) {
    const int64_t columns = modules[0]->in_features;
    if (options.statistic == Statistic::hessian)
      hessian = std::make_shared<HessianAccumulator>(columns, 1, options.accumulation, options.log);
    if (options.statistic == Statistic::local_hessian)
      blocks = std::make_shared<LocalHessianAccumulator>(columns, 1, options.accumulation, options.log);
    if (options.statistic == Statistic::importance)
      squares = std::make_shared<ImatrixAccumulator>(columns, 1);
  }
  py::object in_python() const {
    return hessian ? py::cast(hessian) : blocks ? py::cast(blocks) : py::cast(squares);
  }
  // Merges it, and lets it go.
  void move_to(PauseStatistics& statistics) {
    const auto take = [](auto& accumulator, at::Tensor& sum, int64_t& tokens) {
      if (!accumulator) return;
      tokens = accumulator->tokens();
      sum = accumulator->merge();
      accumulator.reset();
    };
    take(hessian, statistics.hessian, statistics.tokens);
    take(blocks, statistics.blocks, statistics.tokens);
    take(squares, statistics.squares, statistics.tokens);
  }
};

HookForward::HookForward(const py::object& driver, const Subject& subject, decltype(SumOptions::share) share,
                         const HookOptions& options)
    : subject_(subject), share_(std::move(share)), options_(options) {
  const Call call;
  driver_ = driver;
  tokens_ = driver_.attr("tokens").cast<int64_t>();
  batches_ = driver_.attr("batches").cast<int64_t>();
  if (options_.memory_bytes) refuse_small_memory();
}

HookForward::~HookForward() {
  const py::gil_scoped_acquire locked;
  driver_ = py::object();
}

std::vector<HookForward::Sum> HookForward::make_sums(const Pauses& pauses) const {
  std::vector<Sum> sums;
  for (const auto& pause : pauses) {
    bool first = true;
    for (auto& modules : share_(pause)) {
      Sum& sum = sums.emplace_back(Sum{.modules = std::move(modules), .first = first});
      first = false;
      sum.expert = subject_.experts.contains(sum.modules[0]->name);
    }
  }
  return sums;
}

int64_t HookForward::sum_bytes(const Sum& sum) const {
  return partial_bytes(options_.statistic, sum.modules[0]->in_features);
}

int64_t HookForward::solving_bytes(const Sum& sum) const {
  const int64_t columns = sum.modules[0]->in_features;
  int64_t rows = 0;
  for (const Linear* module : sum.modules) rows = std::max(rows, module->out_features);
  return 13 * rows * columns + (options_.statistic == Statistic::hessian ? factor_bytes(columns) : 0);
}

int64_t HookForward::replaced_bytes(const Sum& sum) const {
  int64_t values = 0;
  for (const Linear* module : sum.modules) values += module->out_features * module->in_features;
  return 2 * values * static_cast<int64_t>(c10::elementSize(subject_.dtype));
}

void HookForward::refuse_small_memory() const {
  int64_t most = 0;
  for (const std::vector<Linear>& layer : subject_.layers) {
    int64_t weights = 0, largest = 0;
    for (Linear linear : layer) {
      const Sum sum{.modules = {&linear}};
      weights += replaced_bytes(sum);
      largest = std::max(largest, sum_bytes(sum) + solving_bytes(sum));
    }
    most = std::max(most, weights + largest);
  }
  const int64_t needed = resident_bytes() + most + kSlack;
  if (needed <= *options_.memory_bytes) return;
  throw Error(ErrorKind::unsupported, "memory",
              str("the job needs at least ", (needed + (1 << 20) - 1) >> 20, " MiB, the model and its rows' ",
                  "activations among them, allowed are ", *options_.memory_bytes >> 20, " MiB"),
              "allow more memory, or take fewer or shorter rows; `python -m gramian quantize` of the saved "
              "model needs one layer of it at a time");
}

void HookForward::take(std::vector<Sum> sums, const std::function<py::object(const py::dict&)>& collect,
                       const Solver& solve) {
  for (size_t begin = 0, end = 0; begin < sums.size(); begin = end) {
    const int64_t left =
        options_.memory_bytes ? *options_.memory_bytes - resident_bytes() - kSlack : kSumBytes;
    int64_t bytes = 0, solving = 0;
    if (options_.memory_bytes) {
      for (size_t i = begin; i < sums.size(); ++i) bytes += replaced_bytes(sums[i]);
    }
    for (end = begin; end < sums.size(); ++end) {
      bytes += sum_bytes(sums[end]);
      if (options_.memory_bytes) solving = std::max(solving, solving_bytes(sums[end]));
      if (end > begin && bytes + solving > left) break;
    }
    const std::span<Sum> wave(sums.data() + begin, end - begin);
    for (Sum& sum : wave) sum.make(options_);
    fill(wave, collect);
    solve_each(wave, solve);
  }
}

void HookForward::fill(std::span<Sum> sums, const std::function<py::object(const py::dict&)>& collect) {
  double seconds = 0;
  timed(seconds, [&] {
    const Call call;
    py::dict by_leader;
    for (const Sum& sum : sums) by_leader[py::str(sum.modules[0]->name)] = sum.in_python();
    counts_.accumulations += collect(by_leader).cast<int64_t>();
  });
  // The forward's share in it is Python's secret.
  for (Sum& sum : sums) sum.seconds = seconds / static_cast<double>(sums.size());
}

void HookForward::solve_each(std::span<Sum> sums, const Solver& solve) {
  for (Sum& sum : sums) {
    PauseStatistics statistics{.hessian = {},
                               .blocks = {},
                               .squares = {},
                               .modules = sum.modules,
                               .first = sum.first,
                               .expert = sum.expert,
                               .sum_seconds = sum.seconds};
    timed(statistics.merge_seconds, [&] { sum.move_to(statistics); });
    solve(statistics);
  }
}

void HookForward::run_layer(size_t index, const Solver& solve, bool with_statistics) {
  std::vector<Linear> linears = subject_.layers[index];
  const auto find = [&](const std::string& name) {
    return &*std::find_if(linears.begin(), linears.end(),
                          [&](const Linear& one) { return one.name == name; });
  };
  Pauses pauses;
  for (const auto& names : subject_.pauses[index]) {
    std::vector<Linear*>& pause = pauses.emplace_back();
    for (const std::string& name : names) pause.push_back(find(name));
  }
  const auto replace = [&] {
    const Call call;
    for (Linear& linear : linears) {
      if (linear.op == nullptr) continue;
      const auto& dense = dynamic_cast<const DenseLinear&>(*linear.op);
      driver_.attr("replace")(index, linear.name, dense.weight());
      linear.op.reset();
    }
  };
  const auto finish = [&] {
    const Call call;
    driver_.attr("finish")(index);
  };
  const auto step = [&](const Pauses& together) {
    if (!with_statistics) {
      for (const auto& pause : together) {
        solve({.hessian = {},
               .blocks = {},
               .squares = {},
               .modules = pause,
               .expert = subject_.experts.contains(pause[0]->name)});
      }
      return;
    }
    take(
        make_sums(together),
        [&](const py::dict& by_leader) { return driver_.attr("collect")(index, by_leader); }, solve);
  };
  if (options_.sequential != Sequential::subset) {
    step(pauses);
  } else {
    // Pauses of experts follow each other in two steps, all experts at a time: none reads what another one makes.
    for (size_t begin = 0, end = 0; begin < pauses.size(); begin = end) {
      const auto step_of = [&](size_t i) { return subject_.steps.empty() ? i : subject_.steps[index][i]; };
      for (end = begin + 1; end < pauses.size() && step_of(end) == step_of(begin);) ++end;
      step({pauses.begin() + static_cast<std::ptrdiff_t>(begin),
            pauses.begin() + static_cast<std::ptrdiff_t>(end)});
      replace();
    }
  }
  // Without an order the batches go on with the original weights.
  if (options_.sequential == Sequential::none) finish();
  replace();
  if (options_.sequential != Sequential::none) finish();
}

void HookForward::run_head(Linear& head, const Solver& solve) {
  take(
      make_sums({{&head}}),
      [&](const py::dict& by_leader) { return driver_.attr("collect_head")(by_leader); }, solve);
}

std::vector<at::Tensor> HookForward::hidden() const {
  const Call call;
  return driver_.attr("hidden")().cast<std::vector<at::Tensor>>();
}

std::string HookForward::save(const std::filesystem::path& folder) {
  const std::vector<at::Tensor> batches = hidden();
  return save_batches(folder, batches, all_of(batches.size()));
}

bool HookForward::load(const std::filesystem::path& folder, const std::string& digest) {
  std::vector<at::Tensor> batches = hidden();
  const bool found = load_batches(folder, digest, batches, all_of(batches.size()),
                                  [&](size_t batch, const at::Tensor& stored) { batches[batch] = stored; });
  if (!found) return false;
  const Call call;
  // Copies: the file behind them goes.
  for (at::Tensor& batch : batches) batch = batch.clone();
  driver_.attr("set_hidden")(batches);
  return true;
}

int64_t HookForward::hidden_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& batch : hidden()) bytes += static_cast<int64_t>(batch.nbytes());
  return bytes;
}

}  // namespace gramian::python
