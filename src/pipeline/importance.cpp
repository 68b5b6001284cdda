#include "pipeline/importance.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
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

}  // namespace gramian
