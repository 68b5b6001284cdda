// Measures an importance matrix: one pass of calibration rows over the original model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/imatrix_file.h"
#include "pipeline/calibrator.h"
#include "pipeline/rows.h"
#include "pipeline/subject.h"

namespace gramian {

struct ImportanceJob {
  std::filesystem::path source;
  std::filesystem::path calibration;
  RowOptions rows;
  int64_t batch = 8;
  int lanes = 1;
  std::string dtype = "auto";
  bool treat_as_tied = false;
  bool all_experts = false;
};

struct MeasuredImportance {
  // By GGUF's names; by the checkpoint's where a weight has no place in GGUF. The head is not measured.
  ImportanceMatrix matrix;
  std::vector<std::string> without_data;  // "blk.0.ffn_up_exps.weight, expert 3"; their importance is 1
  int64_t rows = 0;
  int64_t tokens = 0;
};

// Throws what opening a model and reading rows throws, and numerical naming row, token and module for an input that is not finite.
MeasuredImportance measure_importance(const ImportanceJob& job, ThreadPool& pool, Log& log);

// An importance matrix beside the model that it is of.
class ModelImportance {
 public:
  // Throws what read_importance() throws; invalid_argument for names that no tensor of the model has, for another size, and where no
  // linear layer is named at all.
  ModelImportance(const std::filesystem::path& file, const Subject& subject);
  const ImportanceMatrix& matrix() const noexcept { return matrix_; }
  // Linear layers that the file does not name.
  const std::vector<std::string>& missing() const noexcept { return missing_; }
  // Linear layers of whose columns the file calls half and more zero though it has counted tokens, with their share in words:
  // "model.layers.0.mlp.down_proj (192 of 256)". Few models have such inputs, damaged files do.
  const std::vector<std::string>& silent() const noexcept { return silent_; }
  // Of each module, its own; without tokens where the file has none.
  std::vector<PauseStatistics> read(const std::vector<Linear*>& modules) const;

 private:
  void find_silent(const Subject& subject);
  ImportanceMatrix matrix_;
  std::string model_type_;
  std::vector<std::string> missing_, silent_;
};

}  // namespace gramian
