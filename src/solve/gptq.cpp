#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/solve/block.h"
#include "kernels/solve/grid.h"
#include "solve/grouping.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// What all chunks of rows share, read-only.
struct Plan {
  Grouping grouping;
  SolveOptions options;
  GridScaler scaler;
  CpuLevel level;
  at::Tensor weight;  // f32 [N, K]
  at::Tensor upper;   // f32 [K, K]
  at::Tensor
      diagonal;     // f32 [blocks, kBlockColumns, kBlockColumns]: the factor's diagonal blocks, transposed
  at::Tensor dead;  // bool [K]
};

// The block kernel walks down columns of U's diagonal blocks: K·128 floats in one piece instead of a page per
// element.
at::Tensor transposed_diagonal(const at::Tensor& upper) {
  const int64_t columns = upper.size(0);
  const int64_t blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  const at::Tensor result = tensor::zeros({blocks, kBlockColumns, kBlockColumns}, at::kFloat);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kBlockColumns;
    const int64_t end = std::min(begin + kBlockColumns, columns);
    result.select(0, block)
        .slice(0, 0, end - begin)
        .slice(1, 0, end - begin)
        .copy_(upper.slice(0, begin, end).slice(1, begin, end).t());
  }
  return result;
}

// One chunk of rows, from first column to last. Rows are independent given U, so chunks are tasks that share
// nothing.
class ChunkSolve {
 public:
  // codes int8 [N, K] and scale f32 [N, groups] of the whole result; this chunk writes its rows.
  ChunkSolve(const Plan& plan, int64_t first_row, int8_t* codes, float* scale)
      : plan_(plan),
        columns_(plan.grouping.columns),
        group_size_(plan.grouping.group_size),
        groups_(plan.grouping.groups()),
        rows_(std::min(kBlockRows, plan.grouping.rows - first_row)),
        codes_(codes + first_row * columns_),
        scale_out_(scale + first_row * groups_),
        dead_(plan.dead.const_data_ptr<bool>()),
        weights_(columns_ * kBlockRows),
        scale_(groups_ * kBlockRows, 1.0f),
        slab_(group_size_ * kBlockRows),
        zero_(groups_ * kBlockRows) {
    const float* source = plan.weight.const_data_ptr<float>() + first_row * columns_;
    for (int64_t r = 0; r < rows_; ++r) {
      const float* row = source + r * columns_;
      for (int64_t j = 0; j < columns_; ++j) weights_[j * kBlockRows + r] = row[j];
      for (int64_t group = 0; group < groups_; ++group) {
        const float* part = row + group * group_size_;
        const bool zero = std::all_of(part, part + group_size_, [](float value) { return value == 0; });
        zero_[group * kBlockRows + r] = zero;
        zero_groups_ += zero;
      }
    }
  }

  void run() {
    const bool per_row = plan_.grouping.per_row;
    if (per_row) find_scales(0, 1);
    if (plan_.options.clear_dead_columns) {
      for (int64_t j = 0; j < columns_; ++j) {
        if (dead_[j]) std::fill_n(weights_.begin() + j * kBlockRows, kBlockRows, 0.0f);
      }
    }
    if (!per_row && plan_.options.static_groups) find_scales(0, groups_);
    const float* upper = plan_.upper.const_data_ptr<float>();
    for (int64_t begin = 0; begin < columns_; begin += kBlockColumns) {
      const int64_t end = std::min(begin + kBlockColumns, columns_);
      // Groups that start inside the block see the weights as the finished blocks left them.
      if (!per_row && !plan_.options.static_groups) {
        find_scales((begin + group_size_ - 1) / group_size_, (end + group_size_ - 1) / group_size_);
      }
      loss_ += solve_block({.rows = rows_,
                            .columns = end - begin,
                            .trailing = columns_ - end,
                            .weights = weights_.data() + begin * kBlockRows,
                            .diagonal_t = plan_.diagonal.const_data_ptr<float>() + begin * kBlockColumns,
                            .right = upper + begin * columns_ + end,
                            .right_stride = columns_,
                            .scale = scale_.data() + begin / group_size_ * kBlockRows,
                            .first_column = begin,
                            .group_size = group_size_,
                            .dead = dead_ + begin,
                            .code_min = plan_.grouping.rule.code_min(),
                            .code_max = plan_.grouping.rule.code_max(),
                            .codes = codes_ + begin,
                            .codes_stride = columns_},
                           plan_.level);
    }
  }

  double loss() const noexcept { return loss_; }
  int64_t zero_groups() const noexcept { return zero_groups_; }

 private:
  // Scales of groups [from, to) from the weights as they are now. A group of zeros in the source keeps the scale of zeros
  // and is rounded with one beyond all weights: its codes are 0, and what error compensation put there passes on.
  void find_scales(int64_t from, int64_t to) {
    for (int64_t group = from; group < to; ++group) {
      const float* column = weights_.data() + group * group_size_ * kBlockRows;
      float* scale = scale_.data() + group * kBlockRows;
      const auto stays_zero = [&](int64_t r) {
        return zero_[group * kBlockRows + r] && !plan_.options.fill_zero_groups;
      };
      for (int64_t r = 0; r < rows_; ++r) {
        float* row = slab_.data() + r * group_size_;
        for (int64_t j = 0; j < group_size_; ++j) row[j] = stays_zero(r) ? 0.0f : column[j * kBlockRows + r];
      }
      plan_.scaler.scales(slab_.data(), group_size_, rows_, group_size_, scale, 1);
      for (int64_t r = 0; r < rows_; ++r) {
        scale_out_[r * groups_ + group] = scale[r];
        if (stays_zero(r)) scale[r] = std::numeric_limits<float>::max();
      }
    }
  }

  const Plan& plan_;
  int64_t columns_, group_size_, groups_, rows_;
  int8_t* codes_;
  float* scale_out_;
  const bool* dead_;
  std::vector<float> weights_;  // [K][kBlockRows]
  std::vector<float> scale_;    // [groups][kBlockRows], rounded with; 1 in the lanes beyond the rows
  std::vector<float> slab_;     // [kBlockRows][group_size]
  std::vector<bool> zero_;      // [groups][kBlockRows], groups of zeros in the source
  double loss_ = 0;
  int64_t zero_groups_ = 0;
};

}  // namespace

QuantizedLinear solve_gptq(const at::Tensor& weight, const Factor& factor, int64_t tokens,
                           const SolveOptions& options, ThreadPool& pool) {
  GRAMIAN_CHECK(factor.ok(), "solve_gptq without a factor");
  GRAMIAN_CHECK(tokens > 0, "solve_gptq without calibration tokens");
  const Grouping grouping = resolve_grouping(weight, options.grid);
  GRAMIAN_CHECK(grouping.columns == factor.upper.size(0), "weight and Hessian differ in columns");
  const Plan plan = {grouping,
                     options,
                     GridScaler(grouping.rule, cpu_level()),
                     cpu_level(),
                     finite_weight(weight),
                     factor.upper.contiguous(),
                     transposed_diagonal(factor.upper),
                     factor.dead.contiguous()};
  QuantizedLinear result;
  result.group_size = grouping.group_size;
  result.codes = tensor::empty({grouping.rows, grouping.columns}, at::kChar);
  result.scale = tensor::empty({grouping.rows, grouping.groups()}, at::kFloat);
  auto* codes = result.codes.mutable_data_ptr<int8_t>();
  auto* scale = result.scale.mutable_data_ptr<float>();
  const int64_t chunks = (grouping.rows + kBlockRows - 1) / kBlockRows;
  std::vector<double> losses(chunks);
  std::vector<int64_t> zero_groups(chunks);
  pool.run(chunks, [&](int64_t chunk) {
    ChunkSolve solve(plan, chunk * kBlockRows, codes, scale);
    solve.run();
    losses[chunk] = solve.loss();
    zero_groups[chunk] = solve.zero_groups();
  });
  result.loss = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    result.loss += losses[chunk] / static_cast<double>(tokens);
    result.zero_groups += zero_groups[chunk];
  }
  result.damp = factor.damp;
  result.damp_attempts = factor.attempts;
  result.diagonal_spread = factor.diagonal_spread;
  result.dead_columns = factor.dead.sum().item<int64_t>();
  check_scales(result.scale);
  return result;
}

}  // namespace gramian
