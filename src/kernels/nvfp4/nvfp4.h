// NVFP4: blocks of 16 weights of a row. Each weight is an E2M1 code, each block has a scale in E4M3, and the whole matrix one
// f32 factor:
//
//   weight = e2m1(code) · s,   s = e4m3(scale code) · factor
//
// That s, one f32 product, is what is searched with, what codes are chosen for and what is read back, so that no tie falls
// differently. Codes: |x| / s rounded to nearest, ties to the even code, 6 beyond the range; a negative weight that rounds to
// zero keeps its sign (code 8), a negative zero does not.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu_level.h"

namespace gramian::nvfp4 {

constexpr int64_t kBlock = 16;
constexpr float kRange = 6 * 448.0f;     // of the largest code with the largest scale
constexpr uint8_t kLargestScale = 0x7e;  // 448; 0x00 and 0x7f are no scales
constexpr uint8_t kUnitScale = 0x38;     // 1, of blocks of zeros

// The number that checkpoints store instead of the factor, from the largest magnitude of all matrices that share it, and the factor
// behind it. Both are positive normal numbers for any finite magnitude.
float global_scale(float largest) noexcept;
float factor_of(float global_scale) noexcept;

// What a block's own range asks for: largest magnitude / (6 · scale) in E4M3, at least the smallest scale; 1 where all
// weights are zero. x [16].
uint8_t largest_magnitude_scale(const float* x, float factor) noexcept;

// The blocks that share a Hessian: one block of columns in some rows.
struct Blocks {
  const float* x = nullptr;  // [rows, 16], rows `stride` apart, finite
  int64_t stride = 0;
  int64_t rows = 0;
  // upper_root() of the Hessian: the error of a block is |R d|², d = x - weight. Null: |d|².
  const float* root = nullptr;
};

// Which scales are tried for a block.
struct Candidates {
  bool all = true;  // the 126 finite positive ones
  std::span<const float> multiples =
      {};  // else these multiples of its largest magnitude, each rounded as that itself is
};

// scale[row · scale_stride] = the code of the smallest error, the lowest one among equals; that of 1 for a block of zeros. The
// error is summed in f32 from the last row of R to the first, nothing fused, so that all levels give the same codes. A candidate
// is given up when a part of its sum is above the best: what is left to add is not negative.
void search_scales(CpuLevel level, const Blocks& blocks, float factor, const Candidates& candidates,
                   uint8_t* scale, int64_t scale_stride) noexcept;
// That error for one block and scale; what search_scales() is tested with.
float block_error(const float* x, const float* root, float scale) noexcept;

// H [16, 16], symmetric and positive semidefinite up to rounding -> R [16, 16], upper triangular with Rᵀ R = H (Cholesky's factor,
// in f64 inside), so that dᵀ H d = |R d|². A pivot below 1e-6 of its diagonal, a direction that no input has, gives a row of zeros.
void upper_root(const float* hessian, float* root) noexcept;

// Codes of one block, one a byte, for its scale code.
void quantize(const float* x, uint8_t scale, float factor, uint8_t* codes) noexcept;
// The weight of a code.
float value(uint8_t code, uint8_t scale, float factor) noexcept;

}  // namespace gramian::nvfp4
