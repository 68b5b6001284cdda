#include "solve/scale_search.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/nvfp4/nvfp4.h"
#include "kernels/small_floats.h"
#include "solve/grouping.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kBlock = nvfp4::kBlock, kRootSize = kBlock * kBlock;

// f32 [K / 16, 16, 16], what the kernel wants of each block's Hessian. Sums of many tokens are divided by their largest
// entry, so that squares of errors stay inside of f32.
at::Tensor roots_of(const at::Tensor& blocks, ThreadPool& pool) {
  const at::Tensor all = blocks.to(at::kFloat).contiguous();
  const float largest = all.abs().max().item<float>();
  const at::Tensor scaled = largest > 0 ? all.div(largest) : all;
  at::Tensor roots = tensor::empty(scaled.sizes(), at::kFloat);
  const float* from = scaled.const_data_ptr<float>();
  float* to = roots.mutable_data_ptr<float>();
  pool.run(scaled.size(0), [&](int64_t b) { nvfp4::upper_root(from + b * kRootSize, to + b * kRootSize); });
  return roots;
}

}  // namespace

float largest_magnitude(const at::Tensor& weight) { return weight.abs().max().to(at::kFloat).item<float>(); }

QuantizedLinear solve_scale_search(const at::Tensor& weight, const at::Tensor& blocks, float largest,
                                   const ScaleSearch& search, ThreadPool& pool) {
  constexpr int64_t kRows = 64;
  const GridOptions grid{.kind = GridKind::nvfp4, .group_size = kBlock};
  const Grouping grouping = resolve_grouping(weight, grid);
  if (grouping.columns % kBlock != 0)
    throw Error(ErrorKind::invalid_argument, "weight",
                str("NVFP4's blocks of 16 do not divide ", grouping.columns, " columns"));
  const int64_t count = grouping.groups();
  GRAMIAN_CHECK(!blocks.defined() || blocks.size(0) == count, "local Hessians of another layer");
  const at::Tensor w = finite_weight(weight);
  const at::Tensor roots = blocks.defined() ? roots_of(blocks, pool) : at::Tensor();
  QuantizedLinear result = empty_result(grouping);
  result.global_scale = nvfp4::global_scale(largest);
  const float factor = nvfp4::factor_of(result.global_scale);
  const std::vector<float> multiples = search.multiples();
  const nvfp4::Candidates candidates{search.candidates == ScaleSearch::Candidates::all, multiples};
  const float* values = w.const_data_ptr<float>();
  // A block that no input ever reached is searched as if there were no Hessian.
  std::vector<const float*> root(static_cast<size_t>(count), nullptr);
  for (int64_t b = 0; roots.defined() && b < count; ++b) {
    const float* one = roots.const_data_ptr<float>() + b * kRootSize;
    if (std::any_of(one, one + kRootSize, [](float v) { return v != 0; })) root[static_cast<size_t>(b)] = one;
  }
  float* scale = result.scale.mutable_data_ptr<float>();
  auto* codes = reinterpret_cast<uint8_t*>(result.codes.mutable_data_ptr<int8_t>());
  const int64_t chunks = (grouping.rows + kRows - 1) / kRows;
  std::vector<int64_t> zero_groups(static_cast<size_t>(chunks));
  pool.run(chunks, [&](int64_t chunk) {
    const int64_t first = chunk * kRows, rows = std::min(kRows, grouping.rows - first);
    for (int64_t b = 0; b < count; ++b) {
      uint8_t chosen[kRows];
      const float* block = values + first * grouping.columns + b * kBlock;
      if (search.candidates != ScaleSearch::Candidates::largest) {
        nvfp4::search_scales(cpu_level(), {block, grouping.columns, rows, root[static_cast<size_t>(b)]},
                             factor, candidates, chosen, 1);
      }
      for (int64_t row = 0; row < rows; ++row) {
        const float* x = block + row * grouping.columns;
        if (search.candidates == ScaleSearch::Candidates::largest)
          chosen[row] = nvfp4::largest_magnitude_scale(x, factor);
        zero_groups[static_cast<size_t>(chunk)] += std::all_of(x, x + kBlock, [](float v) { return v == 0; });
        scale[(first + row) * count + b] = kE4m3[chosen[row]];
        nvfp4::quantize(x, chosen[row], factor, codes + (first + row) * grouping.columns + b * kBlock);
      }
    }
  });
  for (const int64_t zeros : zero_groups) result.zero_groups += zeros;
  return result;
}

}  // namespace gramian
