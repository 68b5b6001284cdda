#include "pipeline/layer_probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "pipeline/solve_module.h"
#include "stats/hessian.h"
#include "stats/local_hessian.h"
#include "tensor/activations.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr size_t kProbeTokens = 2048;

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

PauseProbe describe(const std::vector<Linear*>& modules, const CalibratorOptions& calibrator) {
  PauseProbe probe;
  probe.module = modules[0]->name;
  probe.columns = modules[0]->in_features;
  probe.modules = static_cast<int64_t>(modules.size());
  for (const Linear* module : modules) probe.rows = std::max(probe.rows, module->out_features);
  if (calibrator.share) probe.sums = static_cast<int64_t>(calibrator.share(modules).size());
  return probe;
}

double statistics_seconds(const at::Tensor& input, const CalibratorOptions& calibrator) {
  const SumOptions options{.statistic = calibrator.statistic, .accumulation = calibrator.accumulation};
  PauseSums sums(options);
  Pause pause;
  pause.input = input;
  ThreadPool alone(1);
  const Clock clock;
  try {
    sums.add(0, pause, alone);
  } catch (const Error& error) {
    // The job itself says where a value is not finite.
    if (error.kind() != ErrorKind::numerical) throw;
  }
  return clock.seconds();
}

// How many experts work on each token while calibrating.
double experts_at_work(const Pause& pause, bool all_experts) {
  return static_cast<double>(all_experts ? pause.experts->count() : pause.routing.experts.size(1));
}

// The pauses inside a mixture, from its first expert, and the seconds that the statistics of all its rows take.
double describe_experts(const Pause& pause, double live_per_token, at::ScalarType type,
                        const CalibratorOptions& calibrator, LayerProbe& layer) {
  const std::shared_ptr<Expert> expert = pause.experts->open(0);
  const std::vector<std::vector<Linear*>> groups = expert->pauses();
  int64_t weights = 0;
  for (const auto& group : groups) {
    for (const Linear* module : group) weights += module->in_features * module->out_features;
  }
  const double once =
      statistics_seconds(pause.input, calibrator) * experts_at_work(pause, calibrator.all_experts);
  double seconds = 0;
  for (const auto& group : groups) {
    PauseProbe probe = describe(group, calibrator);
    probe.live_per_token = live_per_token;
    probe.expert = true;
    probe.repeats = pause.experts->count();
    probe.expert_weight_bytes = weights * static_cast<int64_t>(c10::elementSize(type));
    const double ratio = static_cast<double>(probe.columns) / static_cast<double>(pause.input.size(-1));
    const double work = calibrator.statistic == Statistic::hessian ? ratio * ratio : ratio;
    seconds += once * work * static_cast<double>(probe.sums);
    layer.pauses.push_back(probe);
  }
  return seconds;
}

LayerProbe run_rows(const Model& model, DecoderLayer& layer, const std::vector<TokenRow>& rows,
                    const CalibratorOptions& calibrator) {
  tensor::ActivationStore store(1, {});
  const BatchContext context = model.context(rows);
  const auto tokens = static_cast<double>(context.tokens);
  LayerProbe probe;
  std::unique_ptr<Execution> execution;
  {
    const tensor::ActivationStore::Scope scope(store, 0);
    at::Tensor hidden = model.embed(model.pack_rows(rows));
    probe.hidden_per_token = static_cast<double>(hidden.nbytes()) / tokens;
    execution = std::make_unique<Execution>(layer.forward(std::move(hidden), context));
  }
  Pause* pause = nullptr;
  // The probe routes; the job may send each token to more experts.
  double repeats = 1;
  do {
    store.reset_peak();
    const Clock clock;
    {
      const tensor::ActivationStore::Scope scope(store, 0);
      if (pause != nullptr) multiply(*pause);
      pause = execution->advance();
    }
    probe.forward_seconds_per_token += repeats * clock.seconds() / tokens;
    repeats = 1;
    probe.peak_per_token = std::max(probe.peak_per_token, static_cast<double>(store.peak_bytes()) / tokens);
    if (pause == nullptr) break;
    const double live = static_cast<double>(store.live_bytes(0)) / tokens;
    if (pause->experts != nullptr) {
      probe.statistics_seconds_per_token +=
          describe_experts(*pause, live, model.dtype(), calibrator, probe) / tokens;
      repeats = experts_at_work(*pause, calibrator.all_experts) / experts_at_work(*pause, false);
      continue;
    }
    probe.pauses.push_back(describe(pause->modules, calibrator));
    probe.pauses.back().live_per_token = live;
    probe.statistics_seconds_per_token +=
        static_cast<double>(probe.pauses.back().sums) * statistics_seconds(pause->input, calibrator) / tokens;
  } while (true);
  return probe;
}

}  // namespace

double LayerProbe::live_per_token() const {
  double most = hidden_per_token;
  for (const PauseProbe& pause : pauses) most = std::max(most, pause.live_per_token);
  return most;
}

std::string layer_signature(const QuantizePlan& plan, size_t index) {
  std::string signature;
  const std::string prefix = str(".", index, ".");
  for (const PlannedModule& module : plan.layers[index]) {
    const std::string& name = module.linear.name;
    const size_t at = name.find(prefix);
    signature += str(at == std::string::npos ? name : name.substr(at + prefix.size()), ":",
                     module.linear.out_features, "x", module.linear.in_features, ";");
  }
  return signature;
}

LayerProbe probe_layer(const Model& model, int64_t index, const std::vector<TokenRow>& rows,
                       const QuantizePlan& plan, const CalibratorOptions& calibrator) {
  const tensor::InferenceScope inference;
  std::vector<TokenRow> part;
  size_t room = kProbeTokens;
  for (const TokenRow& row : rows) {
    const size_t count = std::min(row.size(), room);
    if (count > 0) part.emplace_back(row.begin(), row.begin() + static_cast<int64_t>(count));
    room -= count;
  }
  const auto layer = model.load_layer(index);
  // The first run reads the weights from disk.
  run_rows(model, *layer, part, calibrator);
  LayerProbe probe = run_rows(model, *layer, part, calibrator);
  const auto mixture = std::find_if(probe.pauses.begin(), probe.pauses.end(),
                                    [](const PauseProbe& pause) { return pause.expert; });
  if (mixture != probe.pauses.end()) probe.weight_bytes -= mixture->repeats * mixture->expert_weight_bytes;
  for (const PlannedModule& module : plan.layers[static_cast<size_t>(index)]) {
    probe.weight_bytes += module.linear.in_features * module.linear.out_features *
                          static_cast<int64_t>(c10::elementSize(model.dtype()));
  }
  return probe;
}

double SolveSpeed::factor_seconds(int64_t columns) const {
  return per_cube * std::pow(static_cast<double>(columns), 3);
}

double SolveSpeed::solve_seconds(int64_t rows, int64_t columns) const {
  const auto n = static_cast<double>(rows), k = static_cast<double>(columns);
  return per_square * n * k * k + per_weight * n * k;
}

namespace {

// A statistic as if the weight's own rows were the module's inputs.
struct ProbeInput {
  Factor factor;
  InputStatistic statistic = {.tokens = 1};
  double factor_seconds = 0;

  ProbeInput(const at::Tensor& rows, Statistic which, const SolveOptions& options, ThreadPool& pool) {
    const int64_t columns = rows.size(1);
    if (which == Statistic::local_hessian) {
      LocalHessianAccumulator sums(columns, 1);
      sums.add(0, rows);
      statistic.blocks = sums.merge();
    } else if (which == Statistic::importance) {
      statistic.squares = rows.to(at::kDouble).square().sum({0});
    } else if (which == Statistic::hessian) {
      HessianAccumulator sums(columns, 1);
      sums.add(0, rows);
      statistic.hessian = sums.merge();
      const Clock clock;
      factor = factorize(statistic.hessian, options.damp_percent, options.damp_step, &pool,
                         column_order(statistic.hessian, options.order, options.grid.group_size));
      factor_seconds = clock.seconds();
      statistic.factor = &factor;
    }
  }
};

SolveSpeed measure(const at::Tensor& weight, const PlannedModule& module, SolveOptions options,
                   Statistic statistic, ThreadPool& pool) {
  const int64_t rows = std::min<int64_t>(weight.size(0), 256);
  double cost[2] = {}, columns[2] = {};
  SolveSpeed speed;
  for (int i = 0; i < 2; ++i) {
    // A multiple of the group size, and two different widths where the layer has room for them.
    const int64_t k =
        std::max<int64_t>(128, std::min<int64_t>(weight.size(1), 1024) / (i == 0 ? 4 : 1) / 128 * 128);
    if (k > weight.size(1)) break;
    const at::Tensor part = weight.slice(1, 0, k).contiguous();
    const ProbeInput input(part, statistic, options, pool);
    speed.per_cube = input.factor_seconds / std::pow(static_cast<double>(k), 3);
    if (input.statistic.factor != nullptr && !input.factor.ok()) break;
    options.grid = module.format->fitted(options.grid, k);
    const PackSource slab{
        .name = module.linear.name, .shape = {}, .weight = part.slice(0, 0, rows), .bias = {}};
    const Clock clock;
    solve_linear(slab, input.statistic, {*module.format, options, module.fallback}, pool);
    cost[i] = clock.seconds() / static_cast<double>(rows);
    columns[i] = static_cast<double>(k);
  }
  const double span = columns[1] - columns[0];
  if (span > 0 && cost[0] > 0) {
    speed.per_square = std::max(0.0, (cost[1] / columns[1] - cost[0] / columns[0]) / span);
  }
  if (columns[1] > 0) speed.per_weight = std::max(0.0, cost[1] / columns[1] - speed.per_square * columns[1]);
  return speed;
}

}  // namespace

SolveSpeed measure_solve(const Model& model, const QuantizePlan& plan, const SolveOptions& options,
                         Statistic statistic, ThreadPool& pool) {
  const tensor::InferenceScope inference;
  const PlannedModule* widest = nullptr;
  for (const auto& layer : plan.layers) {
    for (const PlannedModule& module : layer) {
      if (module.quantize && (widest == nullptr || module.linear.in_features > widest->linear.in_features))
        widest = &module;
    }
  }
  try {
    return measure(source_weight(model.checkpoint(), widest->linear), *widest, options, statistic, pool);
  } catch (const Error& error) {
    // A damaged weight: the job itself names it.
    if (error.kind() != ErrorKind::numerical) throw;
    return {};
  }
}

}  // namespace gramian
