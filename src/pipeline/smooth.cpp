#include "pipeline/smooth.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "models/folds.h"
#include "models/model.h"
#include "pipeline/calibrator.h"
#include "pipeline/output_folder.h"
#include "pipeline/preflight.h"
#include "pipeline/source_scan.h"
#include "tensor/ops.h"

namespace gramian {
namespace fs = std::filesystem;
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

// What becomes of one tensor: rows are divided, columns multiplied.
struct Change {
  at::Tensor divide;    // f64 [rows] or undefined
  at::Tensor multiply;  // f64 [columns] or undefined
  at::Tensor instead;   // the new tensor itself, for a norm
};

class Smoothing {
 public:
  // `linears`: what Model::survey() has found.
  Smoothing(const Model& model, const std::vector<std::vector<Linear>>& linears,
            std::map<std::string, at::Tensor> inputs, double alpha)
      : model_(model), inputs_(std::move(inputs)), alpha_(alpha) {
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
      at::Tensor& multiply = changes_[prefix + reader + ".weight"].multiply;
      multiply = multiply.defined() ? multiply.mul(columns) : columns;
    }
  }

  bool changes(const std::string& tensor) const { return changes_.contains(tensor); }

  at::Tensor changed(const StoredTensor& stored, const std::string& name) const {
    const Change& change = changes_.at(name);
    if (change.instead.defined()) return change.instead;
    const at::Tensor source = stored.to_tensor();
    at::Tensor value = source.to(at::kDouble);
    if (change.divide.defined())
      value = value.div(value.dim() == 2 ? change.divide.unsqueeze(1) : change.divide);
    if (change.multiply.defined()) value = value.mul(change.multiply.unsqueeze(0));
    const at::Tensor result = value.to(source.scalar_type());
    if (!result.isfinite().all().item<bool>())
      throw Error(ErrorKind::numerical, name, "leaves its type when it is smoothed", "use another --alpha");
    return result;
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
    changes_[name + ".weight"].instead = next.where(usable, stored);
    const at::Tensor real = before.div(after).where(usable, tensor::full({}, 1, at::kDouble));
    if (kind == NormKind::layer && model_.checkpoint().contains(name + ".bias")) {
      const at::Tensor bias = model_.checkpoint().tensor(name + ".bias").to_tensor();
      changes_[name + ".bias"].instead = bias.to(at::kDouble).div(real).to(bias.scalar_type());
    }
    return real;
  }

  void divide_rows(const std::string& name, const ChannelFold& fold, const at::Tensor& factor) {
    const Linear& linear = linears_.at(name);
    at::Tensor rows = tensor::full({linear.out_features}, 1, at::kDouble);
    rows.slice(0, fold.first_row, fold.first_row + fold.channels).copy_(factor);
    changes_[name + ".weight"].divide = rows;
    if (linear.has_bias) changes_[name + ".bias"].divide = rows;
  }

  // Powers of two on either side of the mean.
  static constexpr double kMost = 8;
  const Model& model_;
  std::map<std::string, at::Tensor> inputs_;
  double alpha_;
  std::map<std::string, Linear> linears_;
  std::map<std::string, Change> changes_;
};

uint64_t write(const Checkpoint& source, const Smoothing& smoother, const fs::path& folder) {
  std::vector<PlannedTensor> plan;
  for (const auto& [name, tensor] : source.tensors()) plan.push_back({name, tensor.dtype, tensor.shape});
  ModelWriter writer(folder, plan, kShardBytesMax);
  for (const auto& [name, tensor] : source.tensors()) {
    throw_if_interrupted();
    if (smoother.changes(name)) {
      writer.write(name, smoother.changed(tensor, name).contiguous());
    } else {
      writer.write(name, tensor.bytes);
    }
    tensor.drop();
  }
  writer.finish();
  copy_side_files(source, folder);
  write_atomically(folder / "config.json", source.config().dump(2) + "\n");
  return writer.total_bytes();
}

void refuse_encoded(const Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.encoding == nullptr) continue;
    throw Error(ErrorKind::unsupported, checkpoint.folder().string(), name + " is stored encoded",
                "smooth a checkpoint of bf16, f16 or f32 weights");
  }
}

}  // namespace

Smoothed smooth(const SmoothJob& job, ThreadPool& pool, Log& log) {
  const tensor::InferenceScope inference;
  refuse_replacing(job.output, {job.source, job.calibration});
  StagedDirectory::refuse_occupied(job.output, job.force);
  const auto checkpoint = std::make_shared<const Checkpoint>(job.source);
  refuse_quantized(*checkpoint);
  refuse_encoded(*checkpoint);
  const Model model(checkpoint, {.dtype = parse_dtype(job.dtype), .quantized = {}});
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

  scan_source(*checkpoint, {}, pool, log);
  Smoothing smoother(model, linears, measure_inputs(model, rows, job, pool, log), job.alpha);
  for (size_t i = 0; i < folds.size(); ++i) {
    for (const ChannelFold& fold : folds[i]) smoother.fold(model.layer_prefix(static_cast<int64_t>(i)), fold);
  }
  result.tokens = rows.tokens;
  write_folder(job.output, job.force,
               [&](const fs::path& folder) { result.bytes = write(*checkpoint, smoother, folder); });
  return result;
}

}  // namespace gramian
