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
  int trials;  // further encodings of each block
  CpuLevel level;
  int64_t rows, columns;
  const float* weight;  // [N, K]
  const float* upper;   // [K, K]
  const float*
      metric;  // [K / block, block, block], what an error of the block costs; not read without trials
  const float* importance;  // [K] or null
  const bool* dead;         // [K]
};

// M = U⁻¹ U⁻ᵀ of a block of U, upper triangular [size, size] with rows of `stride`: D M Dᵀ = |D U⁻¹|² is what the error D of the block
// costs when the columns behind it make up for it as well as they can. In float64 and plain loops: the same bits on any thread.
void find_metric(const float* upper, int64_t stride, int64_t size, float* out) {
  std::vector<double> inverse(static_cast<size_t>(size * size), 0.0);
  const auto x = [&](int64_t i, int64_t j) -> double& { return inverse[static_cast<size_t>(i * size + j)]; };
  for (int64_t i = size - 1; i >= 0; --i) {
    const double diagonal = upper[i * stride + i];
    x(i, i) = 1 / diagonal;
    for (int64_t k = i + 1; k < size; ++k) {
      const double u = upper[i * stride + k] / diagonal;
      for (int64_t j = k; j < size; ++j) x(i, j) -= u * x(k, j);
    }
  }
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t k = i; k < size; ++k) sum += x(i, k) * x(j, k);
      out[i * size + j] = out[j * size + i] = static_cast<float>(sum);
    }
  }
}

struct Outcome {
  double loss = 0;    // Σ e² / 2 over all columns that are not dead
  double before = 0;  // the same without trials
  int64_t taken = 0;  // trials that lowered it
};

// Up to kBlockRows rows from first column to last; rows do not depend on one another.
class ChunkSolve {
 public:
  ChunkSolve(const Plan& plan, int64_t first, uint8_t* blocks)
      : plan_(plan),
        size_(plan.codec.block),
        rows_(std::min(kBlockRows, plan.rows - first)),
        first_(first),
        blocks_(blocks),
        weights_(static_cast<size_t>(plan.columns * kBlockRows)),
        values_(static_cast<size_t>(size_)),
        decoded_(values_.size()),
        bytes_(static_cast<size_t>(plan.codec.bytes)) {
    const float* source = plan.weight + first * plan.columns;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < plan.columns; ++j)
        weights_[static_cast<size_t>(j * kBlockRows + r)] = source[r * plan.columns + j];
    }
  }

  Outcome run() {
    Outcome outcome;
    for (int64_t begin = 0; begin < plan_.columns; begin += size_) {
      const Lanes weights = block(weights_, begin);
      Lanes errors = weights;
      for (int64_t r = 0; r < rows_; ++r) {
        encode(weights, r, begin, errors);
        std::copy(bytes_.begin(), bytes_.end(), out(r, begin));
      }
      const std::vector<double> cost = costs(errors, begin);
      for (int64_t r = 0; r < rows_; ++r) outcome.before += cost[static_cast<size_t>(r)];
      if (plan_.trials > 0) outcome.taken += lower(weights, begin, errors, cost);
      std::copy(errors.begin(), errors.end(), weights_.begin() + begin * kBlockRows);
      for (int64_t at = begin; at < begin + size_; at += kStep) {
        Lanes e(static_cast<size_t>(kStep * kBlockRows));
        outcome.loss += carry(weights_.data() + at * kBlockRows, at, plan_.columns, e.data());
      }
    }
    return outcome;
  }

 private:
  using Lanes = std::vector<float>;  // [columns][kBlockRows]

  static Lanes block(const Lanes& all, int64_t begin, int64_t size) {
    const auto first = all.begin() + begin * kBlockRows;
    return {first, first + size * kBlockRows};
  }
  Lanes block(const Lanes& all, int64_t begin) const { return block(all, begin, size_); }

  uint8_t* out(int64_t r, int64_t begin) const {
    return blocks_ + (first_ + r) * plan_.codec.row_bytes(plan_.columns) + plan_.codec.row_bytes(begin);
  }

  // Row r of `target`, the columns from `begin` on, into bytes_; then what is left of the weights goes into `errors`.
  void encode(const Lanes& target, int64_t r, int64_t begin, Lanes& errors) {
    const Codec& codec = plan_.codec;
    for (int64_t j = 0; j < size_; ++j)
      values_[static_cast<size_t>(j)] = target[static_cast<size_t>(j * kBlockRows + r)];
    const float* importance = plan_.importance == nullptr ? nullptr : plan_.importance + begin;
    (plan_.anchored ? codec.anchored : codec.encode)(plan_.level, values_.data(), size_, importance,
                                                     bytes_.data());
    codec.decode(bytes_.data(), size_, decoded_.data());
    for (int64_t j = 0; j < size_; ++j) {
      const float q = decoded_[static_cast<size_t>(j)];
      if (!std::isfinite(q)) {
        throw Error(ErrorKind::numerical, "weight",
                    str("row ", first_ + r, ", columns ", begin, " to ", begin + size_ - 1,
                        " leave the range of ", codec.name),
                    "raise --damp-percent, or choose a type with more range");
      }
      const auto place = static_cast<size_t>(j * kBlockRows + r);
      errors[place] = weights_[static_cast<size_t>(begin * kBlockRows) + place] - q;
    }
  }

  // |D U⁻¹|² / 2 of each row.
  std::vector<double> costs(Lanes errors, int64_t begin) const {
    std::vector<double> cost(static_cast<size_t>(kBlockRows), 0.0);
    Lanes e(static_cast<size_t>(kStep * kBlockRows));
    for (int64_t at = 0; at < size_; at += kStep) {
      carry(errors.data() + at * kBlockRows, begin + at, begin + size_, e.data());
      for (int64_t i = 0; i < kStep; ++i) {
        if (plan_.dead[begin + at + i]) continue;
        for (int64_t r = 0; r < rows_; ++r) {
          const double error = e[static_cast<size_t>(i * kBlockRows + r)];
          cost[static_cast<size_t>(r)] += 0.5 * error * error;
        }
      }
    }
    return cost;
  }

  // Encodes, instead of the weights, where each column would best be in view of the errors of the others: q + D M / (c · diag M). What
  // lowers a row's cost is taken, else c is doubled.
  int64_t lower(const Lanes& weights, int64_t begin, Lanes& errors, std::vector<double> cost) {
    const float* metric = plan_.metric + begin * size_;
    std::vector<float> damping(static_cast<size_t>(kBlockRows), 1.0f);
    int64_t taken = 0;
    for (int trial = 0; trial < plan_.trials; ++trial) {
      Lanes target(weights.size());
      subtract_product({.rows = rows_,
                        .steps = errors.data(),
                        .columns = size_,
                        .matrix = metric,
                        .stride = size_,
                        .width = size_,
                        .into = target.data()},
                       plan_.level);
      for (int64_t j = 0; j < size_; ++j) {
        const float diagonal = metric[j * size_ + j];
        for (int64_t r = 0; r < rows_; ++r) {
          const auto place = static_cast<size_t>(j * kBlockRows + r);
          const float q = weights[place] - errors[place];
          target[place] = q - target[place] / (damping[static_cast<size_t>(r)] * diagonal);
        }
      }
      Lanes tried = errors;
      std::vector<std::vector<uint8_t>> encoded;
      for (int64_t r = 0; r < rows_; ++r) {
        encode(target, r, begin, tried);
        encoded.push_back(bytes_);
      }
      const std::vector<double> now = costs(tried, begin);
      for (int64_t r = 0; r < rows_; ++r) {
        const auto row = static_cast<size_t>(r);
        if (!(now[row] < cost[row])) {
          damping[row] *= 2;
          continue;
        }
        ++taken;
        cost[row] = now[row];
        std::copy(encoded[row].begin(), encoded[row].end(), out(r, begin));
        for (int64_t j = 0; j < size_; ++j) {
          const auto place = static_cast<size_t>(j * kBlockRows + r);
          errors[place] = tried[place];
        }
      }
    }
    return taken;
  }

  // e_i = (d_i - Σ e_h U_hi) / U_ii for kStep columns from `at` on, in their order; then the columns behind them, up to `end`, lose
  // e · U. `lanes` begins with column `at`. Returns Σ e² / 2 over what is not dead.
  double carry(float* lanes, int64_t at, int64_t end, float* e) const {
    const int64_t k = plan_.columns, behind = at + kStep;
    double loss = 0;
    for (int64_t i = 0; i < kStep; ++i) {
      float* error = e + i * kBlockRows;
      std::copy_n(lanes + i * kBlockRows, kBlockRows, error);
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
                      .width = end - behind,
                      .into = lanes + kStep * kBlockRows},
                     plan_.level);
    return loss;
  }

  const Plan& plan_;
  int64_t size_, rows_, first_;
  uint8_t* blocks_;
  Lanes weights_;  // of all columns; zeros in the lanes beyond the rows
  std::vector<float> values_, decoded_;
  std::vector<uint8_t> bytes_;
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
  const int64_t count = w.size(1) / codec.block;
  std::vector<float> metric;
  if (options.refine > 0) {
    metric.resize(static_cast<size_t>(w.size(1) * codec.block));
    pool.run(count, [&](int64_t b) {
      const int64_t at = b * codec.block;
      find_metric(upper.const_data_ptr<float>() + at * (w.size(1) + 1), w.size(1), codec.block,
                  metric.data() + at * codec.block);
    });
  }
  const Plan plan{codec,
                  anchored,
                  options.refine,
                  cpu_level(),
                  w.size(0),
                  w.size(1),
                  w.const_data_ptr<float>(),
                  upper.const_data_ptr<float>(),
                  metric.data(),
                  importance.defined() ? importance.const_data_ptr<float>() : nullptr,
                  dead.const_data_ptr<bool>()};
  QuantizedLinear result;
  result.codec = &codec;
  result.group_size = codec.block;
  result.blocks = tensor::empty({plan.rows, codec.row_bytes(plan.columns)}, at::kByte);
  auto* blocks = result.blocks.mutable_data_ptr<uint8_t>();
  const int64_t chunks = (plan.rows + kBlockRows - 1) / kBlockRows;
  std::vector<Outcome> outcomes(static_cast<size_t>(chunks));
  pool.run(chunks, [&](int64_t chunk) {
    outcomes[static_cast<size_t>(chunk)] = ChunkSolve(plan, chunk * kBlockRows, blocks).run();
  });
  Outcome all;
  for (const Outcome& outcome : outcomes) {
    all.loss += outcome.loss;
    all.before += outcome.before;
    all.taken += outcome.taken;
  }
  result.loss = all.loss / static_cast<double>(tokens);
  if (options.refine > 0)
    result.refined = {.codes = all.taken, .gain = all.before > 0 ? 1 - all.loss / all.before : 0};
  result.damp = factor.damp;
  result.damp_attempts = factor.attempts;
  result.diagonal_spread = factor.diagonal_spread;
  result.dead_columns = dead.sum().item<int64_t>();
  return result;
}

}  // namespace gramian
