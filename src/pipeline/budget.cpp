#include "pipeline/budget.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/resources.h"
#include "pipeline/layer_probe.h"
#include "solve/factor.h"

namespace gramian {
namespace fs = std::filesystem;
namespace {

// What the estimate cannot see: LibTorch's and the kernels' packing buffers, fragments of the heap, one per lane.
constexpr int64_t kLaneSlack = int64_t{48} << 20;
// Experts open at a time where memory is not bounded: their statistics stay below this.
constexpr int64_t kWaveBytes = int64_t{1} << 30;

struct Tokens {
  int64_t total = 0;
  int64_t batch = 0;  // of the largest batch
};

Tokens count_tokens(const std::vector<TokenRow>& rows, int64_t batch) {
  Tokens tokens;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(batch)) {
    int64_t sum = 0;
    for (size_t r = begin; r < std::min(rows.size(), begin + static_cast<size_t>(batch)); ++r)
      sum += static_cast<int64_t>(rows[r].size());
    tokens.total += sum;
    tokens.batch = std::max(tokens.batch, sum);
  }
  return tokens;
}

// How batches wait.
struct Mode {
  Waiting waiting;
  bool spill;
  const char* name;
};
constexpr Mode kModes[] = {{Waiting::suspend, false, "suspend"},
                           {Waiting::suspend, true, "spill"},
                           {Waiting::replay, false, "replay"}};

struct Moment {
  std::string module;
  std::vector<MemoryPart> parts;
  int64_t bytes() const {
    int64_t sum = 0;
    for (const MemoryPart& part : parts) sum += part.bytes;
    return sum;
  }
};

class Estimate {
 public:
  Estimate(const Model& model, const std::vector<LayerProbe>& layers, const Tokens& tokens,
           const CalibratorOptions& calibrator, int64_t base, int64_t held_out, const Linear* head)
      : model_(model),
        layers_(layers),
        tokens_(tokens),
        calibrator_(calibrator),
        base_(base),
        held_out_(held_out),
        head_(head) {}

  // The moment with the most memory.
  Moment worst(const Mode& mode, int64_t wave) const {
    Moment worst;
    const auto keep = [&](Moment moment) {
      if (moment.bytes() > worst.bytes()) worst = std::move(moment);
    };
    for (const LayerProbe& layer : layers_) {
      for (const PauseProbe& pause : layer.pauses) {
        keep(taking(mode, layer, pause, wave));
        keep(solving(mode, layer, pause, wave));
      }
    }
    if (head_ != nullptr) keep(solving_head(mode));
    return worst;
  }

  int64_t activation_bytes(const Mode& mode) const {
    int64_t most = 0;
    for (const LayerProbe& layer : layers_) most = std::max(most, waiting(mode, layer) + working(layer));
    return most;
  }

  int64_t spill_bytes() const {
    double most = 0;
    for (const LayerProbe& layer : layers_) most = std::max(most, layer.live_per_token());
    return static_cast<int64_t>(most * static_cast<double>(tokens_.total));
  }

  // Bytes of one open expert of the layer's mixture: weights and sums.
  int64_t expert_bytes(const PauseProbe& pause) const { return pause.expert_weight_bytes + sum_bytes(pause); }

 private:
  // A merge holds the result and one partial.
  int64_t one_sum(int64_t columns) const { return partial_bytes(calibrator_.statistic, columns); }
  int64_t sum_bytes(const PauseProbe& pause) const {
    return one_sum(pause.columns) * std::max(calibrator_.lanes, 1) * pause.sums;
  }
  int64_t factoring_bytes(int64_t columns) const {
    return calibrator_.statistic == Statistic::hessian ? factor_bytes(columns) : 0;
  }
  int64_t scaled(double per_token, int64_t tokens) const {
    return static_cast<int64_t>(per_token * static_cast<double>(tokens));
  }
  double row_bytes(const PauseProbe& pause) const {
    return static_cast<double>(pause.columns * static_cast<int64_t>(c10::elementSize(model_.dtype())));
  }
  int64_t waiting(const Mode& mode, const LayerProbe& layer) const {
    if (mode.spill) return 0;
    const double per_token =
        mode.waiting == Waiting::replay ? layer.hidden_per_token : layer.live_per_token();
    return scaled(per_token, tokens_.total);
  }
  int64_t working(const LayerProbe& layer) const {
    return scaled(layer.peak_per_token, tokens_.batch) * calibrator_.lanes;
  }
  std::vector<MemoryPart> common(const Mode& mode, const LayerProbe& layer, const PauseProbe& pause,
                                 int64_t wave) const {
    std::vector<MemoryPart> parts{{"program and tables", base_},
                                  {"weights of the layer", layer.weight_bytes},
                                  {"activations that wait", waiting(mode, layer)},
                                  {"buffers", kLaneSlack * calibrator_.lanes}};
    // Four sets of them between layers, and one that waits inside one.
    if (held_out_ > 0)
      parts.push_back(
          {"held-out rows", scaled(4 * layer.hidden_per_token + layer.live_per_token(), held_out_)});
    if (pause.expert) parts.push_back({"open experts", wave * pause.expert_weight_bytes});
    if (pause.expert && calibrator_.all_experts && !mode.spill)
      parts.push_back({"rows of open experts", wave * scaled(row_bytes(pause), tokens_.total)});
    return parts;
  }
  Moment taking(const Mode& mode, const LayerProbe& layer, const PauseProbe& pause, int64_t wave) const {
    Moment moment{pause.module, common(mode, layer, pause, wave)};
    moment.parts.push_back({"activations at work", working(layer)});
    int64_t sums = sum_bytes(pause);
    if (pause.expert) sums *= wave;
    // Everything of a layer is summed before anything is solved.
    if (calibrator_.sequential != Sequential::subset && !pause.expert) {
      sums = 0;
      for (const PauseProbe& other : layer.pauses) {
        if (!other.expert) sums += sum_bytes(other);
      }
    }
    moment.parts.push_back({"statistics", sums});
    return moment;
  }
  Moment solving(const Mode& mode, const LayerProbe& layer, const PauseProbe& pause, int64_t wave) const {
    Moment moment{pause.module, common(mode, layer, pause, wave)};
    // One is merged, the pause's others wait.
    int64_t sums = one_sum(pause.columns);
    if (pause.sums > 1) sums = sum_bytes(pause);
    if (pause.expert) sums *= wave;
    moment.parts.push_back({"statistics", sums});
    moment.parts.push_back({"factor", factoring_bytes(pause.columns)});
    // One a lane, of the pause; of the whole layer where no pause waits for them.
    const bool deferred =
        calibrator_.sequential == Sequential::none && calibrator_.statistic != Statistic::hessian;
    const int64_t lanes = std::max(calibrator_.lanes, 1);
    moment.parts.push_back({"modules being solved", solving_bytes(pause.rows, pause.columns) *
                                                        (deferred ? lanes : std::min(lanes, pause.modules))});
    return moment;
  }

  Moment solving_head(const Mode& mode) const {
    const int64_t columns = head_->in_features;
    const double hidden = layers_.back().hidden_per_token;
    return {head_->name,
            {{"program and tables", base_},
             {"activations that wait", mode.spill ? 0 : scaled(hidden, tokens_.total)},
             {"buffers", kLaneSlack * calibrator_.lanes},
             {"statistics", one_sum(columns) * std::max(calibrator_.lanes, 1)},
             {"factor", factoring_bytes(columns)},
             {"modules being solved", solving_bytes(head_->out_features, columns)}}};
  }

  const Model& model_;
  const std::vector<LayerProbe>& layers_;
  Tokens tokens_;
  CalibratorOptions calibrator_;
  int64_t base_;
  int64_t held_out_;    // tokens
  const Linear* head_;  // nullptr: not quantized
};

int64_t free_disk(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? 0 : static_cast<int64_t>(space.available);
}

bool allowed(const Mode& mode, Activations activations) {
  switch (activations) {
    case Activations::automatic:
      return true;
    case Activations::suspend:
      return mode.waiting == Waiting::suspend && !mode.spill;
    case Activations::spill:
      return mode.spill;
    case Activations::replay:
      return mode.waiting == Waiting::replay;
  }
  return false;
}

// Seconds of the whole job from what single layers took.
void add_seconds(BudgetPlan& plan, const std::vector<LayerProbe>& kinds, const std::vector<size_t>& kind_of,
                 const SolveSpeed& speed, const QuantizePlan& modules, const Tokens& tokens, int64_t held_out,
                 Sequential sequential) {
  for (size_t i = 0; i < kind_of.size(); ++i) {
    const LayerProbe& layer = kinds[kind_of[i]];
    double passes = sequential == Sequential::layer ? 2 : 1;
    // Pause p of n is reached by running the first p parts again.
    if (sequential == Sequential::subset && plan.waiting == Waiting::replay)
      passes = 1 + static_cast<double>(layer.pauses.size()) / 2;
    plan.forward_seconds += layer.forward_seconds_per_token * passes * static_cast<double>(tokens.total);
    plan.forward_seconds += layer.forward_seconds_per_token * 3 * static_cast<double>(held_out);
    plan.statistics_seconds +=
        layer.statistics_seconds_per_token * static_cast<double>(tokens.total + held_out);
    for (const PlannedModule& module : modules.layers[i]) {
      if (!module.quantize) continue;
      plan.solve_seconds += speed.solve_seconds(module.linear.out_features, module.linear.in_features);
    }
    for (const PauseProbe& pause : layer.pauses)
      plan.factor_seconds +=
          speed.factor_seconds(pause.columns) * static_cast<double>(pause.repeats * pause.sums);
  }
}

}  // namespace

int64_t solving_bytes(int64_t rows, int64_t columns) { return 13 * rows * columns; }

Activations parse_activations(const std::string& text) {
  if (text == "auto") return Activations::automatic;
  if (text == "suspend") return Activations::suspend;
  if (text == "spill") return Activations::spill;
  if (text == "replay") return Activations::replay;
  throw Error(ErrorKind::invalid_argument, "--activations", str("unknown word '", text, "'"),
              "choose auto, suspend, spill or replay");
}

BudgetPlan plan_budget(const Model& model, const QuantizePlan& modules, const std::vector<TokenRow>& rows,
                       const CalibratorOptions& calibrator, const SolveOptions& solve,
                       const BudgetOptions& options, ThreadPool& pool) {
  const Tokens tokens = count_tokens(rows, calibrator.batch);
  std::vector<LayerProbe> kinds;
  std::vector<size_t> kind_of;
  std::map<std::string, size_t> known;
  const std::vector<TokenRow> batch(
      rows.begin(), rows.begin() + std::min<int64_t>(calibrator.batch, static_cast<int64_t>(rows.size())));
  for (size_t i = 0; i < modules.decoder_layers(); ++i) {
    const auto [found, fresh] = known.emplace(layer_signature(modules, i), kinds.size());
    if (fresh) kinds.push_back(probe_layer(model, static_cast<int64_t>(i), batch, modules, calibrator));
    kind_of.push_back(found->second);
  }
  const SolveSpeed speed = measure_solve(model, modules, solve, calibrator.statistic, pool);

  // Behind the probes: what LibTorch keeps for itself is then there. The embedding's pages come and go with the rows.
  model.drop_embedding();
  const int64_t base = resident_bytes();
  const Linear* const head = modules.has_head ? &modules.layers.back()[0].linear : nullptr;
  const Estimate estimate(model, kinds, tokens, calibrator, base, options.held_out_tokens, head);
  int64_t wave_most = 1, expert_bytes = 0;
  for (const LayerProbe& layer : kinds) {
    for (const PauseProbe& pause : layer.pauses) {
      if (!pause.expert) continue;
      wave_most = std::max(wave_most, pause.repeats);
      expert_bytes = std::max(expert_bytes, estimate.expert_bytes(pause));
    }
  }
  BudgetPlan plan;
  plan.smallest_bytes = INT64_MAX;
  bool found = false;
  for (const Mode& mode : kModes) {
    if (!allowed(mode, options.activations)) continue;
    const bool disk = !mode.spill || free_disk(options.scratch) > 2 * estimate.spill_bytes();
    if (!disk && options.activations == Activations::automatic) continue;
    plan.smallest_bytes = std::min(plan.smallest_bytes, estimate.worst(mode, 1).bytes());
    if (found) continue;
    int64_t wave = expert_bytes == 0 ? 1 : std::clamp<int64_t>(kWaveBytes / expert_bytes, 1, wave_most);
    const auto fits = [&] {
      return !options.memory_bytes || estimate.worst(mode, wave).bytes() <= *options.memory_bytes;
    };
    while (wave > 1 && !fits()) wave /= 2;
    if (!fits()) continue;
    found = true;
    const Moment worst = estimate.worst(mode, wave);
    plan.waiting = mode.waiting;
    plan.spill = mode.spill;
    plan.expert_wave = wave;
    plan.worst = worst.module;
    plan.parts = worst.parts;
    plan.peak_bytes = worst.bytes();
    plan.activation_bytes = estimate.activation_bytes(mode);
    plan.spill_bytes = mode.spill ? estimate.spill_bytes() : 0;
  }
  if (!found) {
    throw Error(ErrorKind::unsupported, "--memory",
                str("the job needs at least ", (plan.smallest_bytes + (1 << 20) - 1) >> 20,
                    " MiB, allowed are ", *options.memory_bytes >> 20, " MiB"),
                "allow more memory, or take a smaller --batch, shorter or fewer rows or fewer --lanes");
  }
  add_seconds(plan, kinds, kind_of, speed, modules, tokens, options.held_out_tokens, calibrator.sequential);
  if (head != nullptr) {
    plan.factor_seconds += speed.factor_seconds(head->in_features);
    plan.solve_seconds += speed.solve_seconds(head->out_features, head->in_features);
  }
  return plan;
}

nlohmann::ordered_json to_json(const BudgetPlan& plan) {
  nlohmann::ordered_json json;
  json["activations"] = plan.waiting == Waiting::replay ? "replay" : plan.spill ? "spill" : "suspend";
  json["expert_wave"] = plan.expert_wave;
  json["peak_bytes"] = plan.peak_bytes;
  json["smallest_bytes"] = plan.smallest_bytes;
  json["activation_bytes"] = plan.activation_bytes;
  json["spill_bytes"] = plan.spill_bytes;
  json["worst_module"] = plan.worst;
  for (const MemoryPart& part : plan.parts) json["parts"][part.what] = part.bytes;
  json["seconds"] = plan.seconds();
  json["stages"] = {{"forward", plan.forward_seconds},
                    {"statistics", plan.statistics_seconds},
                    {"factor", plan.factor_seconds},
                    {"solve", plan.solve_seconds}};
  return json;
}

}  // namespace gramian
