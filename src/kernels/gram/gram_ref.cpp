#include "kernels/gram/gram_ref.h"

#include <algorithm>

#include "kernels/float16.h"

namespace gramian::gram::reference {
namespace {

constexpr int64_t kWidth = 64;  // columns summed side by side

// out[c] += Σ_t x_ti x_t(j+c) for 0 <= c < width <= kWidth.
template <class F>
void add_products(const Rows& x, int64_t i, int64_t j, int64_t width, float* out) {
  double sum[kWidth] = {};
  for (int64_t t = 0; t < x.count; ++t) {
    const typename F::Stored* row = x.row<F>(t);
    const double value = F::widen(row[i]);
    for (int64_t c = 0; c < width; ++c) sum[c] += value * static_cast<double>(F::widen(row[j + c]));
  }
  for (int64_t c = 0; c < width; ++c) out[c] += static_cast<float>(sum[c]);
}

void add_products(const Rows& x, int64_t i, int64_t j, int64_t width, float* out) {
  if (x.type == DType::bf16) return add_products<BF16>(x, i, j, width, out);
  if (x.type == DType::f16) return add_products<F16>(x, i, j, width, out);
  add_products<F32>(x, i, j, width, out);
}

}  // namespace

void add_lower(const Rows& x, int64_t begin, int64_t end, float* h, int64_t h_stride, Workspace&) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j <= i; j += kWidth)
      add_products(x, i, j, std::min(kWidth, i + 1 - j), h + i * h_stride + j);
  }
}

void add_blocks(const Rows& x, int64_t begin, int64_t end, float* blocks, Workspace&) {
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kBlockWidth, width = std::min(kBlockWidth, x.columns - first);
    for (int64_t r = 0; r < width; ++r)
      add_products(x, first + r, first, width, blocks + (first + r) * kBlockWidth);
  }
}

}  // namespace gramian::gram::reference
