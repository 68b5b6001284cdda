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

// Which columns share a scale, in the order of the solve. A slab is what scales are taken from at once: the columns of one
// group, side by side unless static groups meet an order of their own.
struct Layout {
  std::vector<int32_t> group;       // [K], the group of the column at each place
  std::vector<int64_t> members;     // [K], places; slab s holds those from s · group_size on
  std::vector<int32_t> slab_group;  // [groups]
  at::Tensor group_index;           // of QuantizedLinear
};

Layout make_layout(const Grouping& grouping, const at::Tensor& order, ColumnOrder kind, bool static_groups) {
  const int64_t columns = grouping.columns, size = grouping.group_size;
  const auto natural = [&](int64_t place) {
    return order.defined() ? order.const_data_ptr<int64_t>()[place] : place;
  };
  // Groups of their own places, or the natural ones wherever their columns went.
  const bool of_places = kind == ColumnOrder::activation && !static_groups;
  Layout layout;
  layout.group.resize(columns);
  layout.members.resize(columns);
  layout.slab_group.resize(grouping.groups());
  for (int64_t place = 0; place < columns; ++place) {
    layout.group[place] = static_cast<int32_t>((of_places ? place : natural(place)) / size);
    const bool scattered = kind == ColumnOrder::activation && static_groups;
    layout.members[scattered ? natural(place) : place] = place;
  }
  for (int64_t slab = 0; slab < grouping.groups(); ++slab)
    layout.slab_group[slab] = layout.group[layout.members[slab * size]];
  if (of_places && !grouping.per_row) {
    layout.group_index = tensor::empty({columns}, at::kInt);
    auto* index = layout.group_index.mutable_data_ptr<int32_t>();
    for (int64_t place = 0; place < columns; ++place) index[natural(place)] = layout.group[place];
  }
  return layout;
}

// What all chunks of rows share, read-only.
struct Plan {
  Grouping grouping;
  Layout layout;
  SolveOptions options;
  GridScaler scaler;
  CpuLevel level;
  at::Tensor weight;  // f32 [N, K], columns in the order of the solve
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
  // codes int8 [N, K] (columns in the order of the solve), scale f32 and zero int8 [N, groups] of the whole result; this chunk
  // writes its rows. zero is null on symmetric grids.
  ChunkSolve(const Plan& plan, int64_t first_row, int8_t* codes, float* scale, int8_t* zero)
      : plan_(plan),
        columns_(plan.grouping.columns),
        group_size_(plan.grouping.group_size),
        groups_(plan.grouping.groups()),
        rows_(std::min(kBlockRows, plan.grouping.rows - first_row)),
        codes_(codes + first_row * columns_),
        scale_out_(scale + first_row * groups_),
        zero_out_(zero == nullptr ? nullptr : zero + first_row * groups_),
        dead_(plan.dead.const_data_ptr<bool>()),
        weights_(rows_to_lanes(plan.weight.const_data_ptr<float>() + first_row * columns_, rows_, columns_)),
        scale_(groups_ * kBlockRows, 1.0f),
        zero_(zero == nullptr ? 0 : groups_ * kBlockRows),
        slab_(group_size_ * kBlockRows),
        empty_(groups_ * kBlockRows) {
    for (int64_t slab = 0; slab < groups_; ++slab) {
      const int64_t group = plan.layout.slab_group[slab];
      for (int64_t r = 0; r < rows_; ++r) {
        const bool empty = std::all_of(first_member(slab), last_member(slab),
                                       [&](int64_t place) { return weights_[place * kBlockRows + r] == 0; });
        empty_[group * kBlockRows + r] = empty;
        zero_groups_ += empty;
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
                            .group = plan_.layout.group.data() + begin,
                            .scale = scale_.data(),
                            .zero = zero_.empty() ? nullptr : zero_.data(),
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
  std::vector<int64_t>::const_iterator first_member(int64_t slab) const {
    return plan_.layout.members.begin() + slab * group_size_;
  }
  std::vector<int64_t>::const_iterator last_member(int64_t slab) const {
    return first_member(slab) + plan_.grouping.width(slab);
  }

  // Scales of slabs [from, to) from the weights as they are now. A group of zeros in the source keeps the scale of zeros
  // and is rounded with one beyond all weights: its codes are 0, and what error compensation put there passes on.
  void find_scales(int64_t from, int64_t to) {
    for (int64_t slab = from; slab < to; ++slab) {
      const int64_t group = plan_.layout.slab_group[slab], width = plan_.grouping.width(slab);
      float* scale = scale_.data() + group * kBlockRows;
      int8_t zero[kBlockRows] = {};
      const auto stays_zero = [&](int64_t r) {
        return empty_[group * kBlockRows + r] && !plan_.options.fill_zero_groups;
      };
      for (int64_t r = 0; r < rows_; ++r) {
        float* row = slab_.data() + r * width;
        for (auto place = first_member(slab); place != last_member(slab); ++place)
          *row++ = stays_zero(r) ? 0.0f : weights_[*place * kBlockRows + r];
      }
      plan_.scaler.scales(slab_.data(), width, rows_, width, scale, 1, zero);
      for (int64_t r = 0; r < rows_; ++r) {
        scale[r] = stored_scale(scale[r], plan_.options.grid.scale_type);
        scale_out_[r * groups_ + group] = scale[r];
        if (zero_out_ != nullptr) {
          zero_out_[r * groups_ + group] = zero[r];
          zero_[group * kBlockRows + r] = zero[r];
        }
        if (stays_zero(r)) scale[r] = std::numeric_limits<float>::max();
      }
    }
  }

  const Plan& plan_;
  int64_t columns_, group_size_, groups_, rows_;
  int8_t* codes_;
  float* scale_out_;
  int8_t* zero_out_;
  const bool* dead_;
  std::vector<float> weights_;  // [K][kBlockRows]
  std::vector<float> scale_;    // [groups][kBlockRows], rounded with; 1 in the lanes beyond the rows
  std::vector<float> zero_;     // [groups][kBlockRows]
  std::vector<float> slab_;     // [kBlockRows][width]
  std::vector<bool> empty_;     // [groups][kBlockRows], groups of zeros in the source
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
  GRAMIAN_CHECK(factor.order.defined() == (options.order != ColumnOrder::natural),
                "factor and options differ in the order of columns");
  const at::Tensor source = finite_weight(weight);
  const Plan plan = {
      grouping,
      make_layout(grouping, factor.order, options.order, options.static_groups || grouping.per_row),
      options,
      GridScaler(grouping.rule, cpu_level()),
      cpu_level(),
      factor.order.defined() ? source.index_select(1, factor.order) : source,
      factor.upper.contiguous(),
      transposed_diagonal(factor.upper),
      factor.dead.contiguous()};
  QuantizedLinear result = empty_result(grouping);
  result.group_index = plan.layout.group_index;
  auto* codes = result.codes.mutable_data_ptr<int8_t>();
  auto* scale = result.scale.mutable_data_ptr<float>();
  int8_t* zero = result.zero.defined() ? result.zero.mutable_data_ptr<int8_t>() : nullptr;
  const int64_t chunks = (grouping.rows + kBlockRows - 1) / kBlockRows;
  std::vector<double> losses(chunks);
  std::vector<int64_t> zero_groups(chunks);
  pool.run(chunks, [&](int64_t chunk) {
    ChunkSolve solve(plan, chunk * kBlockRows, codes, scale, zero);
    solve.run();
    losses[chunk] = solve.loss();
    zero_groups[chunk] = solve.zero_groups();
  });
  if (factor.order.defined()) {
    const at::Tensor ordered = result.codes;
    result.codes = tensor::empty(ordered.sizes(), at::kChar).index_copy_(1, factor.order, ordered);
  }
  result.loss = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    result.loss += losses[chunk] / static_cast<double>(tokens);
    result.zero_groups += zero_groups[chunk];
  }
  note_factor(result, factor);
  check_scales(result.scale);
  return result;
}

}  // namespace gramian
