// Writes a model that computes the same with channels that are easier to quantize.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"
#include "pipeline/rows.h"

namespace gramian {

struct SmoothJob {
  std::filesystem::path source;
  std::filesystem::path output;
  std::filesystem::path calibration;
  RowOptions rows;
  int64_t batch = 8;
  int lanes = 1;
  std::string dtype = "auto";
  // How much of the spread between channels moves from activations into weights: a channel of root mean square x, read by columns of
  // root mean square w, is divided by s = x^alpha / w^(1 - alpha). 0 makes the columns alike, 1 the activations.
  double alpha = 0.25;
  bool force = false;
};

struct Smoothed {
  int64_t folds = 0;
  std::vector<std::string> left_alone;  // "model.layers.3.mlp. a mixture of experts"
  int64_t tokens = 0;
  uint64_t bytes = 0;
};

// SmoothQuant (Xiao et al. 2023) with root mean squares of one pass over the original model, at each place of models/folds.h. s is
// divided by its geometric mean and rounded to a power of two, so that weights keep their digits; only where a norm multiplies with 1 + weight
// its channel is what the stored weight comes to, and the readers are rounded once more. Throws what opening a model and
// reading rows throws; unsupported when nothing can be folded.
Smoothed smooth(const SmoothJob& job, ThreadPool& pool, Log& log);

}  // namespace gramian
