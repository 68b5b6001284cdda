#include "pipeline/smooth.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/format.h"
#include "models/folds.h"
#include "models/model.h"
#include "pipeline/calibrator.h"
#include "pipeline/output_folder.h"
#include "pipeline/rewriting.h"
#include "pipeline/source_scan.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Root mean square of every column of every linear layer's input, f64 [in], over the original model.
std::map<std::string, at::Tensor> measure_inputs(const Model& model, const RowSet& rows, const SmoothJob& job,
                                                 ThreadPool& pool, Log& log) {
  std::map<std::string, at::Tensor> inputs;
  run_original(model, rows.rows,
               {.batch = job.batch,
                .lanes = job.lanes,
                .threads = pool.threads(),
                .statistic = Statistic::importance,
                .log = &log},
               [&](const PauseStatistics& statistics) {
                 if (statistics.tokens == 0) return;
                 const at::Tensor mean =
                     statistics.squares.cpu().div(static_cast<double>(statistics.tokens)).sqrt();
                 for (const Linear* module : statistics.modules) inputs[module->name] = mean;
               });
  return inputs;
}

class Smoothing {
 public:
  // `linears`: what Model::survey() has found.
  Smoothing(const Model& model, const std::vector<std::vector<Linear>>& linears,
            std::map<std::string, at::Tensor> inputs, double alpha, Rewriting& rewriting)
      : model_(model), inputs_(std::move(inputs)), alpha_(alpha), rewriting_(rewriting) {
    for (const auto& layer : linears) {
      for (const Linear& linear : layer) linears_.emplace(linear.name, linear);
    }
  }

  void fold(const std::string& prefix, const ChannelFold& fold) {
    at::Tensor factor = factors(prefix, fold);
    if (fold.norm) {
      factor = divide_norm(prefix + fold.giver, *fold.norm, factor);
    } else {
      divide_rows(prefix + fold.giver, fold, factor);
    }
    for (const std::string& reader : fold.readers) {
      const at::Tensor columns = expanded(fold, factor, linears_.at(prefix + reader).in_features);
      rewriting_.columns(prefix + reader + ".weight",
                         [columns](const at::Tensor& some) { return some.mul(columns); });
    }
  }

 private:
  static at::Tensor expanded(const ChannelFold& fold, const at::Tensor& factor, int64_t columns) {
    if (fold.head == 0) return factor;
    at::Tensor wide = tensor::empty({columns}, at::kDouble);
    const auto* from = factor.const_data_ptr<double>();
    auto* to = wide.mutable_data_ptr<double>();
    for (int64_t j = 0; j < columns; ++j) to[j] = from[fold.channel(j)];
    return wide;
  }

  // s = x^alpha / w^(1 - alpha) over its geometric mean, as powers of two; 1 where a channel or its columns are 0.
  at::Tensor factors(const std::string& prefix, const ChannelFold& fold) const {
    std::vector<double> input(fold.channels), weight(fold.channels);
    const auto add = [&](std::vector<double>& sums, const at::Tensor& squares) {
      const at::Tensor plain = squares.contiguous();
      const auto* from = plain.const_data_ptr<double>();
      for (int64_t j = 0; j < plain.numel(); ++j) sums[fold.channel(j)] += from[j];
    };
    for (const std::string& reader : fold.readers) {
      const Linear& linear = linears_.at(prefix + reader);
      add(weight, source_weight(model_.checkpoint(), linear).to(at::kDouble).square().sum(0));
      const auto found = inputs_.find(linear.name);
      if (found != inputs_.end() && reader == fold.readers[0]) add(input, found->second.square());
      model_.checkpoint().tensor(linear.name + ".weight").drop();
    }
    std::vector<double> logs;
    for (int64_t c = 0; c < fold.channels; ++c) {
      if (input[c] > 0 && weight[c] > 0)
        logs.push_back(alpha_ * std::log2(input[c]) / 2 - (1 - alpha_) * std::log2(weight[c]) / 2);
    }
    double mean = 0;
    for (const double log : logs) mean += log / static_cast<double>(logs.size());
    at::Tensor factor = tensor::full({fold.channels}, 1, at::kDouble);
    auto* to = factor.mutable_data_ptr<double>();
    size_t next = 0;
    for (int64_t c = 0; c < fold.channels; ++c) {
      if (input[c] > 0 && weight[c] > 0)
        to[c] = std::exp2(std::nearbyint(std::clamp(logs[next++] - mean, -kMost, kMost)));
    }
    return factor;
  }

  // Returns what the norm's channels were divided by, given that its weight is stored in its own type.
  at::Tensor divide_norm(const std::string& name, NormKind kind, const at::Tensor& factor) {
    const at::Tensor stored = model_.checkpoint().tensor(name + ".weight").to_tensor();
    const double offset = kind == NormKind::rms_offset ? 1 : 0;
    const at::Tensor before = stored.to(at::kDouble).add(offset);
    const at::Tensor next = before.div(factor).sub(offset).to(stored.scalar_type());
    const at::Tensor after = next.to(at::kDouble).add(offset);
    // A channel of 0 stays what it was.
    const at::Tensor usable = before.ne(0).logical_and(after.ne(0)).logical_and(after.isfinite());
    rewriting_.replace(name + ".weight", next.where(usable, stored));
    const at::Tensor real = before.div(after).where(usable, tensor::full({}, 1, at::kDouble));
    if (kind == NormKind::layer && model_.checkpoint().contains(name + ".bias")) {
      const at::Tensor bias = model_.checkpoint().tensor(name + ".bias").to_tensor();
      rewriting_.replace(name + ".bias", bias.to(at::kDouble).div(real).to(bias.scalar_type()));
    }
    return real;
  }

  void divide_rows(const std::string& name, const ChannelFold& fold, const at::Tensor& factor) {
    const Linear& linear = linears_.at(name);
    at::Tensor rows = tensor::full({linear.out_features}, 1, at::kDouble);
    rows.slice(0, fold.first_row, fold.first_row + fold.channels).copy_(factor);
    rewriting_.rows(name + ".weight",
                    [rows](const at::Tensor& whole) { return whole.div(rows.unsqueeze(1)); });
    if (linear.has_bias)
      rewriting_.rows(name + ".bias", [rows](const at::Tensor& whole) { return whole.div(rows); });
  }

  // Powers of two on either side of the mean.
  static constexpr double kMost = 8;
  const Model& model_;
  std::map<std::string, at::Tensor> inputs_;
  double alpha_;
  Rewriting& rewriting_;
  std::map<std::string, Linear> linears_;
};

}  // namespace

Smoothed smooth(const SmoothJob& job, ThreadPool& pool, Log& log) {
  const tensor::InferenceScope inference;
  refuse_replacing(job.output, {job.source, job.calibration});
  const auto opened = open_for_rewriting(job.source, job.output, job.force, parse_dtype(job.dtype));
  const Model& model = *opened;
  const std::vector<std::vector<Linear>> linears = model.survey();

  Smoothed result;
  std::vector<std::vector<ChannelFold>> folds;
  for (int64_t i = 0; i < model.spec().layers(); ++i) {
    LayerFolds layer = channel_folds(model.spec(), i);
    for (const std::string& line : layer.left_alone)
      result.left_alone.push_back(model.layer_prefix(i) + line);
    result.folds += static_cast<int64_t>(layer.folds.size());
    folds.push_back(std::move(layer.folds));
  }
  if (result.folds == 0)
    throw Error(ErrorKind::unsupported, job.source.string(),
                "has no place where a factor can move:" + below(result.left_alone), "\nquantize it as it is");
  const RowSet rows = load_rows(job.calibration, job.rows, job.source, log);
  refuse_foreign_ids(rows.rows, model.spec().vocab, job.calibration);
  log.info(rows.policy);

  scan_source(model.checkpoint(), {}, pool, log);
  Rewriting rewriting(model.checkpoint(), "use another --alpha");
  Smoothing smoother(model, linears, measure_inputs(model, rows, job, pool, log), job.alpha, rewriting);
  for (size_t i = 0; i < folds.size(); ++i) {
    for (const ChannelFold& fold : folds[i]) smoother.fold(model.layer_prefix(static_cast<int64_t>(i)), fold);
  }
  result.tokens = rows.tokens;
  result.bytes = rewriting.write(job.output, job.force);
  return result;
}

}  // namespace gramian
