// The Gram matrix XᵀX of token rows and its 16 x 16 blocks on the diagonal, added in place to fp32 sums.
//
// fp32 and fp16 values are multiplied as fp32, fused into the sum; bf16 too, except that a CPU with BF16 dot products
// multiplies pairs of bf16 (two tokens, each product fused into the sum; subnormals count as 0 there). Sums begin at 0
// and run over kChain tokens in their order (pairs: 2 kChain); two such chains are added, and their sum to the
// caller's. So the bits depend on the level and on how tokens are divided among calls, but neither on how the rows of
// the matrix are, nor on threads. The reference level sums all tokens of a call in float64. Infinities and NaN reach
// exactly the entries that their columns take part in.
#pragma once

#include <cstdint>

#include "kernels/cpu_level.h"
#include "kernels/gram/rows.h"

namespace gramian::gram {

inline constexpr int64_t kPanel = 48;    // parts of the matrix are whole panels, 48 columns or 24
inline constexpr int64_t kDepth = 256;   // values of a column packed at once
inline constexpr int64_t kChain = 128;   // of them summed one after another
inline constexpr int64_t kStrip = 2112;  // rows of the matrix for which each earlier column is packed once
inline constexpr int64_t kGroup = 384;   // columns multiplied together: packed, they stay in the cache (L2)
inline constexpr int64_t kBlockWidth = 16;

// Packed columns, 2.4 MiB at most whatever T and K are; one for each call that runs at the same time, to be used again.
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
