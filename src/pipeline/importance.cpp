#include "pipeline/importance.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "formats/gguf/names.h"
#include "models/model.h"
#include "pipeline/calibrator.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

gguf::MappedName name_of(const Linear& module, const std::string& model_type) {
  const std::string name = module.name + ".weight";
  return gguf::mapped_name(name, model_type).value_or(gguf::MappedName{name});
}

// Adds one pause's sums to the weights that read its input.
void add(const PauseStatistics& statistics, const std::string& model_type, ImportanceMatrix& matrix) {
  for (const Linear* module : statistics.modules) {
    const gguf::MappedName name = name_of(*module, model_type);
    ImportanceSums& sums = matrix.weights[name.name];
    const auto expert = static_cast<size_t>(std::max<int64_t>(0, name.expert));
    const auto columns = static_cast<size_t>(module->in_features);
    if (sums.counts.size() <= expert) {
      sums.counts.resize(expert + 1, 0);
      sums.sums.resize((expert + 1) * columns, 0);
    }
    if (statistics.tokens == 0) continue;
    sums.counts[expert] = static_cast<float>(statistics.tokens);
    const at::Tensor squares = statistics.squares.to(at::kFloat).cpu().contiguous();
    std::copy_n(squares.const_data_ptr<float>(), columns,
                sums.sums.begin() + static_cast<int64_t>(expert * columns));
  }
}

std::vector<std::string> find_without_data(const ImportanceMatrix& matrix) {
  std::vector<std::string> found;
  for (const auto& [name, sums] : matrix.weights) {
    for (size_t e = 0; e < sums.counts.size(); ++e) {
      if (sums.counts[e] == 0) found.push_back(sums.counts.size() == 1 ? name : str(name, ", expert ", e));
    }
  }
  return found;
}

}  // namespace

MeasuredImportance measure_importance(const ImportanceJob& job, ThreadPool& pool, Log& log) {
  const tensor::InferenceScope inference;
  const auto checkpoint = std::make_shared<const Checkpoint>(job.source);
  const Model model(checkpoint,
                    {.dtype = parse_dtype(job.dtype), .treat_as_tied = job.treat_as_tied, .quantized = {}});
  (void)model.survey();
  const RowSet rows = load_rows(job.calibration, job.rows, job.source, log);
  refuse_foreign_ids(rows.rows, model.spec().vocab, job.calibration);
  log.info(rows.policy);

  MeasuredImportance measured;
  measured.tokens = run_original(model, rows.rows,
                                 {.batch = job.batch,
                                  .lanes = job.lanes,
                                  .threads = pool.threads(),
                                  .statistic = Statistic::importance,
                                  .all_experts = job.all_experts,
                                  .log = &log},
                                 [&](const PauseStatistics& statistics) {
                                   add(statistics, model.family().model_type, measured.matrix);
                                 });
  int64_t longest = 0;
  for (const TokenRow& row : rows.rows) longest = std::max(longest, static_cast<int64_t>(row.size()));
  measured.matrix.datasets = {job.calibration.filename().string()};
  measured.matrix.chunks = static_cast<uint32_t>(rows.rows.size());
  measured.matrix.chunk_size = static_cast<uint32_t>(rows.sequence_length.value_or(longest));
  measured.without_data = find_without_data(measured.matrix);
  measured.rows = static_cast<int64_t>(rows.rows.size());
  return measured;
}

ModelImportance::ModelImportance(const std::filesystem::path& file, const Subject& subject)
    : matrix_(read_importance(file)), model_type_(subject.model_type) {
  constexpr size_t kNamesMax = 8;
  const std::string where = file.string();
  std::set<std::string> known;
  for (const auto& [name, tensor] : subject.checkpoint->tensors()) {
    if (const auto mapped = gguf::mapped_name(name, model_type_)) known.insert(mapped->name);
  }
  for (const auto& layer : subject.layers) {
    for (const Linear& module : layer) known.insert(name_of(module, model_type_).name);
  }
  known.insert("output.weight");
  std::vector<std::string> strangers;
  for (const auto& [name, sums] : matrix_.weights) {
    if (!known.contains(name)) strangers.push_back(name);
  }
  if (!strangers.empty())
    throw Error(
        ErrorKind::invalid_argument, where,
        str(strangers.size(), " name(s) are no tensors of this model: ", quote_names(strangers, kNamesMax)),
        "measure the importance of this model");
  // Legacy files do not tell experts apart: the model does.
  std::map<std::string, std::pair<int64_t, int64_t>> sizes;  // experts, columns
  size_t modules = 0;
  for (const auto& layer : subject.layers) {
    for (const Linear& module : layer) {
      const gguf::MappedName name = name_of(module, model_type_);
      auto& [experts, columns] = sizes[name.name];
      experts = std::max(experts, name.expert + 1);
      columns = module.in_features;
      ++modules;
      if (!matrix_.weights.contains(name.name)) missing_.push_back(module.name);
    }
  }
  if (missing_.size() == modules)
    throw Error(ErrorKind::invalid_argument, where, "names none of the model's linear layers",
                "measure the importance of this model");
  for (const auto& [name, size] : sizes) {
    const auto found = matrix_.weights.find(name);
    if (found != matrix_.weights.end())
      split_experts(found->second, std::max<int64_t>(1, size.first), size.second,
                    where + ": " + quote_name(name));
  }
  find_silent(subject);
}

void ModelImportance::find_silent(const Subject& subject) {
  for (const auto& layer : subject.layers) {
    for (const Linear& module : layer) {
      const gguf::MappedName name = name_of(module, model_type_);
      const auto found = matrix_.weights.find(name.name);
      if (found == matrix_.weights.end()) continue;
      const auto expert = static_cast<size_t>(std::max<int64_t>(0, name.expert));
      if (found->second.counts[expert] == 0) continue;
      const auto begin = found->second.sums.begin() + static_cast<int64_t>(expert) * module.in_features;
      const int64_t zeros = std::count(begin, begin + module.in_features, 0.0f);
      if (2 * zeros >= module.in_features)
        silent_.push_back(str(module.name, " (", zeros, " of ", module.in_features, ")"));
    }
  }
}

std::vector<PauseStatistics> ModelImportance::read(const std::vector<Linear*>& modules) const {
  std::vector<PauseStatistics> all;
  for (Linear* module : modules) {
    const gguf::MappedName name = name_of(*module, model_type_);
    PauseStatistics& one = all.emplace_back();
    one.modules = {module};
    one.expert = name.expert >= 0;
    const auto found = matrix_.weights.find(name.name);
    if (found == matrix_.weights.end()) continue;
    const auto expert = static_cast<size_t>(std::max<int64_t>(0, name.expert));
    const ImportanceSums& sums = found->second;
    one.tokens = std::llround(sums.counts[expert]);
    const int64_t columns = sums.in_features();
    one.squares = tensor::empty({columns}, at::kFloat);
    std::copy_n(sums.sums.begin() + static_cast<int64_t>(expert) * columns, columns,
                one.squares.mutable_data_ptr<float>());
  }
  return all;
}

}  // namespace gramian
