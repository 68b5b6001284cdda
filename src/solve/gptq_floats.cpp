#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_level.h"
#include "kernels/small_floats.h"
#include "kernels/solve/product.h"
#include "solve/float_grids.h"
#include "solve/grouping.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kStep = 32;  // columns whose errors are carried on at a time

struct E2m1 {
  static constexpr uint8_t kSign = 8;
  static uint8_t code(float magnitude) noexcept { return e2m1_from_f32(magnitude); }
  static float value(uint8_t code) noexcept { return kE2m1[code]; }
};
struct E4m3 {
  static constexpr uint8_t kSign = 0x80;
  static uint8_t code(float magnitude) noexcept { return e4m3_from_f32(magnitude); }
  static float value(uint8_t code) noexcept { return kE4m3[code]; }
};

// What all chunks share; columns lie in the order of the solve.
struct Plan {
  CpuLevel level;
  int64_t rows, columns, groups;
  const float* weight;               // [N, K]
  const float* upper;                // [K, K]
  const bool* dead;                  // [K]
  const float* scale;                // [N, groups], what a code's value is multiplied with; 0: stays zero
  const std::vector<int64_t> group;  // [K]
};

// Up to kBlockRows rows from first column to last; rows do not depend on one another.
template <class Float>
class ChunkSolve {
 public:
  ChunkSolve(const Plan& plan, int64_t first, uint8_t* codes)
      : plan_(plan),
        rows_(std::min(kBlockRows, plan.rows - first)),
        codes_(codes + first * plan.columns),
        scale_(plan.scale + first * plan.groups),
        weights_(rows_to_lanes(plan.weight + first * plan.columns, rows_, plan.columns)) {}

  // Σ e² / 2 over all columns that are not dead.
  double run() {
    double loss = 0;
    for (int64_t at = 0; at < plan_.columns; at += kStep) {
      const int64_t end = std::min(at + kStep, plan_.columns), k = plan_.columns;
      alignas(64) float errors[kStep * kBlockRows] = {};
      for (int64_t i = at; i < end; ++i) {
        float* error = errors + (i - at) * kBlockRows;
        round(i, error);
        for (int64_t j = i + 1; j < end; ++j) {
          const float u = plan_.upper[i * k + j];
          float* w = column(j);
          for (int64_t r = 0; r < kBlockRows; ++r) w[r] -= error[r] * u;
        }
        if (plan_.dead[i]) continue;
        for (int64_t r = 0; r < rows_; ++r) loss += 0.5 * static_cast<double>(error[r]) * error[r];
      }
      subtract_product({.rows = rows_,
                        .steps = errors,
                        .columns = end - at,
                        .matrix = plan_.upper + at * k + end,
                        .stride = k,
                        .width = k - end,
                        .into = column(end)},
                       plan_.level);
    }
    return loss;
  }

 private:
  float* column(int64_t j) { return weights_.data() + j * kBlockRows; }

  // Codes of column i, and what they leave divided by U_ii.
  void round(int64_t i, float* error) {
    const float* w = column(i);
    const float diagonal = plan_.upper[i * plan_.columns + i];
    for (int64_t r = 0; r < rows_; ++r) {
      const float scale = scale_[r * plan_.groups + plan_.group[static_cast<size_t>(i)]];
      uint8_t code = 0;
      float value = 0;
      if (scale > 0) {
        code = Float::code(std::fabs(w[r] / scale));
        value = Float::value(code) * scale;
        if (w[r] < 0) {
          code |= Float::kSign;
          value = -value;
        }
      }
      codes_[r * plan_.columns + i] = code;
      error[r] = (w[r] - value) / diagonal;
    }
  }

  const Plan& plan_;
  int64_t rows_;
  uint8_t* codes_;
  const float* scale_;
  std::vector<float> weights_;  // [K][kBlockRows]; zeros in the lanes beyond the rows
};

// The scales that codes are multiplied with, 0 for groups of zeros.
at::Tensor scales_of(const QuantizedLinear& rounded, const at::Tensor& weight) {
  const at::Tensor scale = rounded.e4m3 ? rounded.scale : rounded.scale.mul(1 / rounded.global_scale);
  const at::Tensor empty =
      weight.view({weight.size(0), rounded.scale.size(1), rounded.group_size}).abs().amax({2}).eq(0);
  return scale.masked_fill(empty, 0).contiguous();
}

}  // namespace

void compensate_floats(QuantizedLinear& rounded, const at::Tensor& weight, const Factor& factor,
                       int64_t tokens, ThreadPool& pool) {
  GRAMIAN_CHECK(rounded.e4m3 || rounded.global_scale > 0, "not a grid of floats");
  GRAMIAN_CHECK(factor.ok() && tokens > 0, "error compensation without a factor or tokens");
  GRAMIAN_CHECK(weight.size(1) == factor.upper.size(0), "weight and Hessian differ in columns");
  const at::Tensor source = finite_weight(weight), scale = scales_of(rounded, source);
  const at::Tensor w = factor.order.defined() ? source.index_select(1, factor.order) : source;
  const at::Tensor upper = factor.upper.contiguous(), dead = factor.dead.contiguous();
  std::vector<int64_t> group(static_cast<size_t>(w.size(1)));
  for (int64_t place = 0; place < w.size(1); ++place) {
    const int64_t column = factor.order.defined() ? factor.order.const_data_ptr<int64_t>()[place] : place;
    group[static_cast<size_t>(place)] = column / rounded.group_size;
  }
  const Plan plan{cpu_level(),
                  w.size(0),
                  w.size(1),
                  scale.size(1),
                  w.const_data_ptr<float>(),
                  upper.const_data_ptr<float>(),
                  dead.const_data_ptr<bool>(),
                  scale.const_data_ptr<float>(),
                  std::move(group)};
  const at::Tensor codes = tensor::empty(w.sizes(), at::kChar);
  auto* out = reinterpret_cast<uint8_t*>(codes.mutable_data_ptr<int8_t>());
  const int64_t chunks = (plan.rows + kBlockRows - 1) / kBlockRows;
  std::vector<double> losses(static_cast<size_t>(chunks));
  pool.run(chunks, [&](int64_t chunk) {
    const int64_t first = chunk * kBlockRows;
    losses[static_cast<size_t>(chunk)] =
        rounded.e4m3 ? ChunkSolve<E4m3>(plan, first, out).run() : ChunkSolve<E2m1>(plan, first, out).run();
  });
  rounded.codes = factor.order.defined()
                      ? tensor::empty(codes.sizes(), at::kChar).index_copy_(1, factor.order, codes)
                      : codes;
  rounded.loss = 0;
  for (const double loss : losses) rounded.loss += loss / static_cast<double>(tokens);
  note_factor(rounded, factor);
}

}  // namespace gramian
