#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kernels/solve/block.h"
#include "kernels/solve/grid.h"
#include "solve/grouping.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// One solve. Weights, codes, scales and errors lie transposed ([columns][rows]), as the block kernel wants them.
class GptqSolve {
 public:
  GptqSolve(const at::Tensor& weight, const Factor& factor, const SolveOptions& options, ThreadPool& pool)
      : grouping_(resolve_grouping(weight, options.grid)),
        options_(options),
        pool_(pool),
        scaler_(grouping_.rule, cpu_level()),
        upper_(factor.upper),
        dead_(factor.dead.to(at::kCPU).contiguous()),
        weights_(finite_weight(weight.t())),
        codes_(tensor::empty({columns(), rows()}, at::kChar)),
        scale_(tensor::empty({grouping_.groups(), rows()}, at::kFloat)),
        chunks_((rows() + kBlockRows - 1) / kBlockRows),
        zero_groups_(chunks_),
        losses_(chunks_) {
    // finite_weight may return the caller's own memory.
    if (weights_.const_data_ptr() == weight.const_data_ptr()) weights_ = weights_.clone();
  }

  QuantizedLinear run(int64_t tokens) {
    if (grouping_.per_row) find_scales(0, 1);
    if (options_.clear_dead_columns) weights_.masked_fill_(dead_.unsqueeze(1), 0);
    if (!grouping_.per_row && options_.static_groups) find_scales(0, grouping_.groups());
    for (int64_t begin = 0; begin < columns(); begin += kBlockColumns) {
      solve_columns(begin, std::min(begin + kBlockColumns, columns()));
    }
    QuantizedLinear result;
    result.codes = codes_.t().contiguous();
    result.scale = scale_.t().contiguous();
    result.group_size = grouping_.group_size;
    result.loss = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      result.loss += losses_[chunk];
      result.zero_groups += zero_groups_[chunk];
    }
    result.loss /= static_cast<double>(tokens);
    result.dead_columns = dead_.sum().item<int64_t>();
    check_scales(result.scale);
    return result;
  }

 private:
  int64_t rows() const { return grouping_.rows; }
  int64_t columns() const { return grouping_.columns; }
  int64_t chunk_rows(int64_t chunk) const { return std::min(kBlockRows, rows() - chunk * kBlockRows); }

  // Scales of groups [from, to) from the weights as they are now.
  void find_scales(int64_t from, int64_t to) {
    if (from >= to) return;
    const float* weights = weights_.const_data_ptr<float>();
    float* scale = scale_.mutable_data_ptr<float>();
    pool_.run(chunks_, [&](int64_t chunk) {
      const int64_t first = chunk * kBlockRows;
      std::vector<float> slab(kBlockRows * grouping_.group_size);
      for (int64_t group = from; group < to; ++group) {
        for (int64_t j = 0; j < grouping_.group_size; ++j) {
          const float* column = weights + (group * grouping_.group_size + j) * rows() + first;
          for (int64_t r = 0; r < chunk_rows(chunk); ++r) slab[r * grouping_.group_size + j] = column[r];
        }
        zero_groups_[chunk] += scaler_.scales(slab.data(), grouping_.group_size, chunk_rows(chunk), grouping_.group_size,
                                              scale + group * rows() + first, 1);
      }
    });
  }

  void solve_columns(int64_t begin, int64_t end) {
    // Groups that start inside the block see the weights as the finished blocks left them.
    if (!grouping_.per_row && !options_.static_groups) {
      const int64_t size = grouping_.group_size;
      find_scales((begin + size - 1) / size, (end + size - 1) / size);
    }
    const int64_t width = end - begin;
    const at::Tensor rows_of_factor = upper_.slice(0, begin, end);
    const at::Tensor upper_t = tensor::zeros({width, kBlockColumns}, at::kFloat);
    upper_t.slice(1, 0, width).copy_(rows_of_factor.slice(1, begin, end).t());
    const at::Tensor errors = tensor::empty({width, rows()}, at::kFloat);
    const SolveBlock all = {
        .columns = width,
        .stride = rows(),
        .weights = weights_.const_data_ptr<float>() + begin * rows(),
        .upper_t = upper_t.const_data_ptr<float>(),
        .scale = scale_.const_data_ptr<float>() + begin / grouping_.group_size * rows(),
        .first_column = begin,
        .group_size = grouping_.group_size,
        .dead = dead_.const_data_ptr<bool>() + begin,
        .code_min = grouping_.rule.code_min(),
        .code_max = grouping_.rule.code_max(),
        .codes = codes_.mutable_data_ptr<int8_t>() + begin * rows(),
        .errors = errors.mutable_data_ptr<float>(),
    };
    pool_.run(chunks_, [&](int64_t chunk) {
      SolveBlock block = all;
      const int64_t first = chunk * kBlockRows;
      block.rows = chunk_rows(chunk);
      block.weights += first;
      block.scale += first;
      block.codes += first;
      block.errors += first;
      losses_[chunk] += solve_block(block, cpu_level());
    });
    if (end < columns()) {
      weights_.slice(0, end, columns()).addmm_(rows_of_factor.slice(1, end, columns()).t(), errors, 1, -1);
    }
  }

  Grouping grouping_;
  SolveOptions options_;
  ThreadPool& pool_;
  GridScaler scaler_;
  at::Tensor upper_;    // f32 [K, K]
  at::Tensor dead_;     // bool [K]
  at::Tensor weights_;  // f32 [K, N]
  at::Tensor codes_;    // int8 [K, N]
  at::Tensor scale_;    // f32 [groups, N]
  int64_t chunks_;
  // Per chunk of rows, summed in chunk order.
  std::vector<int64_t> zero_groups_;
  std::vector<double> losses_;
};

}  // namespace

QuantizedLinear solve_gptq(const at::Tensor& weight, const Factor& factor, int64_t tokens, const SolveOptions& options,
                           ThreadPool& pool) {
  GRAMIAN_CHECK(factor.ok(), "solve_gptq without a factor");
  GRAMIAN_CHECK(tokens > 0, "solve_gptq without calibration tokens");
  GRAMIAN_CHECK(weight.dim() == 2 && weight.size(1) == factor.upper.size(0), "weight and Hessian differ in columns");
  QuantizedLinear result = GptqSolve(weight, factor, options, pool).run(tokens);
  result.damp = factor.damp;
  result.damp_attempts = factor.attempts;
  return result;
}

}  // namespace gramian
