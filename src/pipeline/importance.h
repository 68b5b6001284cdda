// Measures an importance matrix: one pass of calibration rows over the original model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "formats/imatrix_file.h"
#include "pipeline/rows.h"

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

}  // namespace gramian
