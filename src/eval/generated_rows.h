// Activations that any program can make again from two numbers: integers only, exact in fp32. The golden set `modelopt`
// was made on them, and benchmarks take their error on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gramian {

struct GeneratedRows {
  uint64_t stream = 1;
  uint64_t seed = 1;
};

// x f32 [tokens, columns]: x_tj = (g_tj + g_t,(j+1 mod columns) / 2) · 2^(7j mod 5 - 2), where g (row-major) is the sum of the
// four 16-bit parts of a 64-bit hash of seed, stream and place, less its mean, over 2^15: nearly Gaussian with standard
// deviation 1.15.
at::Tensor generated_rows(const GeneratedRows& which, int64_t tokens, int64_t columns);

}  // namespace gramian
