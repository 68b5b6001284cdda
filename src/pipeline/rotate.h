// Writes a model that computes the same in other directions, which spread outliers over all channels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parallel.h"

namespace gramian {

struct RotateJob {
  std::filesystem::path source;
  std::filesystem::path output;
  bool residual = true;  // the stream between the layers
  bool heads = true;     // what every head gives, between v and o
  uint64_t seed = 0;
  bool force = false;
};

struct Rotated {
  int64_t readers = 0;  // linear layers whose columns or rows were turned
  int64_t heads = 0;    // layers whose heads were turned
  std::vector<std::string> left_alone;
  uint64_t head_bytes = 0;  // of an output head that was the embedding and no longer is
  uint64_t bytes = 0;
};

// QuaRot's rotations, as far as they fold into the weights (Ashkboos et al. 2024): embedding E R; norm of weight g -> 1; what reads it
// W diag(g) R; what writes the stream Rᵀ W; and for each head of v Rₕᵀ W, of o W Rₕ. Throws unsupported, with the
// reason, where `residual` cannot be done, or nothing can.
Rotated rotate(const RotateJob& job, ThreadPool& pool, Log& log);

}  // namespace gramian
