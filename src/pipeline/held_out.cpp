#include "pipeline/held_out.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "pipeline/solve_module.h"

namespace gramian {
namespace {

// How much larger the error on held-out rows is where calibration rows did not show what a module reads.
constexpr double kUnlike = 1.5;

CalibratorOptions plain(const CalibratorOptions& job) {
  return {.batch = job.batch,
          .lanes = 1,
          .threads = job.threads,
          .sequential = Sequential::subset,
          .expert_wave = job.expert_wave,
          .statistic = Statistic::hessian};
}

const at::Tensor& weight_of(const Linear& module) {
  const auto* dense = dynamic_cast<const DenseLinear*>(module.op.get());
  GRAMIAN_CHECK(dense != nullptr, module.name, " has no weight matrix");
  return dense->weight();
}

void leave(const PauseStatistics&) {}

// Per batch [tokens, ...].
double difference(const std::vector<at::Tensor>& original, const std::vector<at::Tensor>& other) {
  double sum = 0;
  int64_t tokens = 0;
  for (size_t batch = 0; batch < original.size(); ++batch) {
    const int64_t count = original[batch].size(0);
    const at::Tensor y = original[batch].reshape({count, -1}).to(at::kFloat);
    const at::Tensor error = other[batch].reshape({count, -1}).to(at::kFloat).sub(y);
    const auto energy = [](const at::Tensor& x) { return x.square().sum({-1}, false, at::kDouble); };
    sum += energy(error).div_(energy(y).clamp_min_(1e-30)).sum().item<double>();
    tokens += count;
  }
  return std::sqrt(sum / static_cast<double>(tokens));
}

}  // namespace

HeldOut::HeldOut(const Model& model, const std::vector<TokenRow>& rows, const CalibratorOptions& options)
    : model_(model),
      rows_(static_cast<int64_t>(rows.size())),
      original_(model, rows, plain(options)),
      quantized_(model, rows, plain(options)) {}

HeldOut::Loss HeldOut::run_layer(int64_t index, const Stored& stored) {
  Loss loss;
  const auto layer = model_.load_layer(index);
  original_.run_layer(index, *layer, leave, false);
  const std::vector<at::Tensor> inputs = quantized_.hidden();
  quantized_.run_layer(index, *layer, leave, false);
  const std::vector<at::Tensor> unquantized = quantized_.hidden();
  quantized_.set_hidden(inputs);
  quantized_.run_layer(index, *layer, [&](const PauseStatistics& pause) {
    for (Linear* module : pause.modules) {
      std::shared_ptr<const LinearOp> op = stored(*module);
      if (op == nullptr) continue;
      const at::Tensor weight = weight_of(*module);
      module->op = std::move(op);
      const double error = pause.tokens == 0
                               ? std::nan("")
                               : relative_error(weight, weight_of(*module),
                                                {.hessian = pause.hessian, .tokens = pause.tokens});
      loss.modules.emplace(module->name, error);
    }
  });
  model_.drop_layer(index);
  loss.own = difference(unquantized, quantized_.hidden());
  loss.since_first = difference(original_.hidden(), quantized_.hidden());
  return loss;
}

void HeldOut::pass_layer(int64_t index, const Stored& stored) {
  const auto layer = model_.load_layer(index);
  original_.run_layer(index, *layer, leave, false);
  const auto replace = [&](const PauseStatistics& pause) {
    for (Linear* module : pause.modules) {
      if (std::shared_ptr<const LinearOp> op = stored(*module)) module->op = std::move(op);
    }
  };
  quantized_.run_layer(index, *layer, replace, false);
  model_.drop_layer(index);
}

std::string likely_reason(const nlohmann::ordered_json& module) {
  const auto number = [&](const char* key) {
    return module.contains(key) && module.at(key).is_number() ? module.at(key).get<double>() : std::nan("");
  };
  const auto whole = [&](const char* key) { return static_cast<int64_t>(number(key)); };
  if (module.at("fallback").is_string())
    return "rounded plainly (" + module.at("fallback").get<std::string>() + ")";
  if (number("samples") < number("in_features"))
    return str("only ", whole("samples"), " calibration tokens for ", whole("in_features"), " input columns");
  const double calibration = number("relative_error"), here = number("held_out_error");
  if (here > kUnlike * calibration)
    return str("the calibration rows are unlike these: there it loses ", fixed(100 * calibration, 1), " %");
  if (number("damp_attempts") > 1) return "its Hessian held only with more damping";
  if (number("diagonal_spread") > kOutlierSpread) return "few input columns dominate (outliers)";
  if (number("dead_columns") * 20 > number("in_features"))
    return "many of its input columns were 0 in every calibration token";
  if (number("bits") < 4) return str(whole("bits"), " bits are few");
  return "";
}

}  // namespace gramian
