#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "kernels/solve/product.h"
#include "solve/encode.h"
#include "solve/grouping.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Columns whose errors are carried on at a time; divides every codec's block.
constexpr int64_t kStep = 32;

struct Plan {
  const Codec& codec;
  bool anchored;
  CpuLevel level;
  int64_t rows, columns;
  const float* weight;      // [N, K]
  const float* upper;       // [K, K]
  const float* importance;  // [K] or null
  const bool* dead;         // [K]
};

// Up to kBlockRows rows from first column to last; rows do not depend on one another.
class ChunkSolve {
 public:
  ChunkSolve(const Plan& plan, int64_t first, uint8_t* blocks)
      : plan_(plan),
        rows_(std::min(kBlockRows, plan.rows - first)),
        first_(first),
        blocks_(blocks),
        weights_(rows_to_lanes(plan.weight + first * plan.columns, rows_, plan.columns)),
        values_(static_cast<size_t>(plan.codec.block)),
        decoded_(values_.size()) {}

  // Σ e² / 2 over all columns that are not dead.
  double run() {
    double loss = 0;
    for (int64_t begin = 0; begin < plan_.columns; begin += plan_.codec.block) {
      for (int64_t r = 0; r < rows_; ++r) encode(r, begin);
      for (int64_t at = begin; at < begin + plan_.codec.block; at += kStep) loss += carry(at);
    }
    return loss;
  }

 private:
  // Leaves w - q where w was.
  void encode(int64_t r, int64_t begin) {
    const Codec& codec = plan_.codec;
    float* column = weights_.data() + begin * kBlockRows + r;
    for (int64_t j = 0; j < codec.block; ++j) values_[static_cast<size_t>(j)] = column[j * kBlockRows];
    uint8_t* out = blocks_ + (first_ + r) * codec.row_bytes(plan_.columns) + codec.row_bytes(begin);
    const float* importance = plan_.importance == nullptr ? nullptr : plan_.importance + begin;
    (plan_.anchored ? codec.anchored : codec.encode)(plan_.level, values_.data(), codec.block, importance,
                                                     out);
    codec.decode(out, codec.block, decoded_.data());
    for (int64_t j = 0; j < codec.block; ++j) {
      const float q = decoded_[static_cast<size_t>(j)];
      if (!std::isfinite(q)) {
        throw Error(ErrorKind::numerical, "weight",
                    str("row ", first_ + r, ", columns ", begin, " to ", begin + codec.block - 1,
                        " leave the range of ", codec.name),
                    "raise --damp-percent, or choose a type with more range");
      }
      column[j * kBlockRows] -= q;
    }
  }

  // e_i = (d_i - Σ e_h U_hi) / U_ii for the columns from `at` on, in their order; then all columns behind lose e · U.
  double carry(int64_t at) {
    alignas(64) float e[kStep * kBlockRows];
    const int64_t k = plan_.columns, behind = at + kStep;
    double loss = 0;
    for (int64_t i = 0; i < kStep; ++i) {
      float* error = e + i * kBlockRows;
      std::copy_n(weights_.data() + (at + i) * kBlockRows, kBlockRows, error);
      for (int64_t h = 0; h < i; ++h) {
        const float u = plan_.upper[(at + h) * k + at + i];
        for (int64_t r = 0; r < kBlockRows; ++r) error[r] -= e[h * kBlockRows + r] * u;
      }
      const float diagonal = plan_.upper[(at + i) * k + at + i];
      for (int64_t r = 0; r < kBlockRows; ++r) error[r] /= diagonal;
      if (plan_.dead[at + i]) continue;
      for (int64_t r = 0; r < rows_; ++r) loss += 0.5 * static_cast<double>(error[r]) * error[r];
    }
    subtract_product({.rows = rows_,
                      .steps = e,
                      .columns = kStep,
                      .matrix = plan_.upper + at * k + behind,
                      .stride = k,
                      .width = k - behind,
                      .into = weights_.data() + behind * kBlockRows},
                     plan_.level);
    return loss;
  }

  const Plan& plan_;
  int64_t rows_, first_;
  uint8_t* blocks_;
  std::vector<float> weights_;  // [K][kBlockRows]; zeros in the lanes beyond the rows
  std::vector<float> values_, decoded_;
};

at::Tensor roots_of_diagonal(const at::Tensor& hessian) {
  const at::Tensor diagonal = hessian.diagonal().to(at::kFloat);
  const double least = 1e-4 * diagonal.to(at::kDouble).mean().item<double>();
  return diagonal.clamp_min(least).sqrt().contiguous();
}

}  // namespace

QuantizedLinear solve_gptq_blocks(const at::Tensor& weight, const Factor& factor, const at::Tensor& hessian,
                                  int64_t tokens, const SolveOptions& options, ThreadPool& pool) {
  const Codec& codec = *options.grid.codec;
  GRAMIAN_CHECK(factor.ok() && !factor.order.defined(), "no factor in natural order");
  GRAMIAN_CHECK(tokens > 0, "solve_gptq_blocks without calibration tokens");
  GRAMIAN_CHECK(codec.block % kStep == 0 && weight.size(1) % codec.block == 0, codec.name, " for rows of ",
                weight.size(1));
  const at::Tensor w = finite_weight(weight), upper = factor.upper.contiguous(),
                   dead = factor.dead.contiguous();
  at::Tensor importance;
  if (options.importance_weighted) importance = roots_of_diagonal(hessian);
  const bool anchored = options.grid.anchored && codec.anchored != nullptr;
  if (!importance.defined() && codec.needs_importance)
    importance = tensor::full({weight.size(1)}, 1, at::kFloat);
  const Plan plan{codec,
                  anchored,
                  cpu_level(),
                  w.size(0),
                  w.size(1),
                  w.const_data_ptr<float>(),
                  upper.const_data_ptr<float>(),
                  importance.defined() ? importance.const_data_ptr<float>() : nullptr,
                  dead.const_data_ptr<bool>()};
  QuantizedLinear result;
  result.codec = &codec;
  result.group_size = codec.block;
  result.blocks = tensor::empty({plan.rows, codec.row_bytes(plan.columns)}, at::kByte);
  auto* blocks = result.blocks.mutable_data_ptr<uint8_t>();
  const int64_t chunks = (plan.rows + kBlockRows - 1) / kBlockRows;
  std::vector<double> losses(static_cast<size_t>(chunks));
  pool.run(chunks, [&](int64_t chunk) {
    losses[static_cast<size_t>(chunk)] = ChunkSolve(plan, chunk * kBlockRows, blocks).run();
  });
  result.loss = 0;
  for (const double loss : losses) result.loss += loss / static_cast<double>(tokens);
  note_factor(result, factor);
  return result;
}

}  // namespace gramian
