// The Gram matrix XᵀX of token rows and its 16 x 16 blocks on the diagonal, added in place to fp32 sums.
//
// fp32 and fp16 values are multiplied as fp32, fused into the sum; bf16 too, except that a CPU with BF16 dot products
// multiplies bf16 pairs (two tokens at a time; subnormals count as 0 there). Tokens are summed from 0 in their order
// over blocks of kDepth tokens (bf16 pairs: 2 kDepth), and each block's sum is added to the caller's. So the bits
// depend on the level, but neither on how the rows of the matrix are divided among calls nor on the threads that make
// them. Infinities and NaN reach exactly the entries that their columns take part in.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/gram/rows.h"

namespace gramian::gram {

inline constexpr int64_t kPanel = 48;       // columns packed side by side
inline constexpr int64_t kDepth = 256;      // values of a column packed at once
inline constexpr int64_t kChain = 128;      // of them summed one after another
inline constexpr int64_t kStrip = 576;      // rows of the matrix whose packed columns stay in the cache (L2)
inline constexpr int64_t kGroup = 192;      // columns that are packed to be multiplied with them
inline constexpr int64_t kBlockWidth = 16;  // of a block on the diagonal

// Packed columns, 768 KiB whatever T and K are; one for each call that runs at the same time, to be used again.
struct alignas(64) Workspace {
  uint32_t strip[kStrip * kDepth];
  uint32_t group[kGroup * kDepth];
};

// h_ij += Σ_t x_ti x_tj for begin <= i < end, j <= i; nothing else of h [K, K] (h_stride elements from row to row)
// is touched. begin % kPanel == 0; end too, or end == K. Disjoint row ranges may run in parallel.
void add_lower(CpuLevel level, const Rows& x, int64_t begin, int64_t end, float* h, int64_t h_stride,
               Workspace& workspace) noexcept;

// First row of part `part` when the lower triangle of [K, K] is divided into `parts` parts of about equal work; part
// `parts` begins at K. A part may be empty.
int64_t part_begin(int64_t columns, int64_t parts, int64_t part) noexcept;

// h_ij = factor · h_ij and h_ji = h_ij for j <= i.
void scale_and_mirror(float* h, int64_t columns, int64_t h_stride, float factor) noexcept;

// blocks [ceil(K / 16)][16][16], both triangles: block b += X_bᵀ X_b for begin <= b < end, where X_b are columns
// 16 b .. 16 b + 15; columns from K on count as zeros. Disjoint block ranges may run in parallel.
void add_blocks(CpuLevel level, const Rows& x, int64_t begin, int64_t end, float* blocks,
                Workspace& workspace) noexcept;

}  // namespace gramian::gram
