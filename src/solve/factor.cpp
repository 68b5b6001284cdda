#include "solve/factor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/factor/factor.h"
#include "kernels/gram/rows.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

bool is_finite(const at::Tensor& matrix) {
  const gram::Rows rows = {.data = matrix.const_data_ptr(),
                           .stride = matrix.size(1),
                           .count = matrix.size(0),
                           .columns = matrix.size(1)};
  return gram::first_non_finite(cpu_level(), rows) < 0;
}

// Mean over median of the diagonal, dead columns apart; 1 when all are dead.
double spread(const at::Tensor& diagonal, const at::Tensor& dead) {
  const at::Tensor alive = diagonal.masked_select(dead.logical_not()).to(at::kDouble);
  return alive.numel() == 0 ? 1 : alive.mean().div(alive.median()).item<double>();
}

// damp, damp + step, ... below 1, each by one more addition in double, as the peer builds its list.
std::vector<double> damp_candidates(double damp, double step) {
  std::vector<double> candidates = {damp};
  if (!(step > 0)) return candidates;
  for (double next = damp + step; next < 1.0 && candidates.size() < 100000; next += step)
    candidates.push_back(next);
  return candidates;
}

// into[i, j] = from[order[i], order[j]], both f32 [K, K], contiguous.
void copy_ordered(const at::Tensor& from, const at::Tensor& order, const at::Tensor& into) {
  const int64_t columns = from.size(0);
  const auto* place = order.const_data_ptr<int64_t>();
  float* row = into.mutable_data_ptr<float>();
  for (int64_t i = 0; i < columns; ++i, row += columns) {
    const float* source = from.const_data_ptr<float>() + place[i] * columns;
    for (int64_t j = 0; j < columns; ++j) row[j] = source[place[j]];
  }
}

struct Ladder {
  const at::Tensor& hessian;
  ThreadPool* pool;
  Factor& result;
  at::Tensor work;  // f32 [K, K]: the one copy, filled anew for each attempt

  float* damped(const at::Tensor& diagonal, float lambda) {
    if (!work.defined()) work = tensor::empty(hessian.sizes(), at::kFloat);
    if (result.order.defined()) {
      copy_ordered(hessian, result.order, work);
    } else {
      work.copy_(hessian);
    }
    work.diagonal().copy_(diagonal.add(lambda));
    ++result.attempts;
    return work.mutable_data_ptr<float>();
  }

  // One candidate list over one diagonal.
  bool climb(const at::Tensor& diagonal, const std::vector<double>& candidates) {
    const int64_t columns = hessian.size(0);
    // fp32 throughout, as the peer computes it.
    const float mean = diagonal.mean().item<float>();
    const auto lambda = [&](size_t i) { return static_cast<float>(candidates[i]) * mean; };
    const auto accept = [&](size_t i) {
      float* const a = damped(diagonal, lambda(i));
      if (!factor::invert_factor(cpu_level(), a, columns, columns, pool) || !is_finite(work)) return false;
      result.upper = work;
      result.damp = lambda(i);
      return true;
    };
    if (accept(0)) return true;
    if (candidates.size() == 1) return false;
    const auto good_at = [&](size_t i) {
      return factor::factors(cpu_level(), damped(diagonal, lambda(i)), columns, columns, pool);
    };
    size_t failed = 0, good = candidates.size() - 1;
    if (!good_at(good)) return false;
    while (good - failed > 1) {
      const size_t middle = failed + (good - failed) / 2;
      (good_at(middle) ? good : failed) = middle;
    }
    // A factor whose inverse overflows: more damping.
    while (good < candidates.size()) {
      if (accept(good++)) return true;
    }
    return false;
  }
};

}  // namespace

Factor factorize(const at::Tensor& hessian, double damp_percent, double damp_step, ThreadPool* pool,
                 const at::Tensor& order) {
  if (hessian.dim() != 2 || hessian.size(0) != hessian.size(1) || hessian.size(0) == 0) {
    throw Error(ErrorKind::internal, "Hessian", "expected a square matrix");
  }
  if (!(damp_percent >= 0 && damp_percent < 1) || !(damp_step >= 0)) {
    throw Error(ErrorKind::invalid_argument, "damp",
                str("damp_percent ", damp_percent, ", damp_step ", damp_step),
                "use 0 <= damp_percent < 1 and damp_step >= 0");
  }
  const at::Tensor h = hessian.to(at::kCPU, at::kFloat).contiguous();
  if (!is_finite(h)) {
    throw Error(ErrorKind::numerical, "Hessian", "holds NaN or infinite entries",
                "check the calibration data");
  }
  Factor result;
  result.order = order;
  at::Tensor diagonal = order.defined() ? h.diagonal().index_select(0, order) : h.diagonal().clone();
  result.dead = diagonal.eq(0);
  result.diagonal_spread = spread(diagonal, result.dead);
  diagonal.masked_fill_(result.dead, 1);
  const std::vector<double> candidates = damp_candidates(damp_percent, damp_step);
  Ladder ladder{h, pool, result, {}};
  if (ladder.climb(diagonal, candidates)) return result;
  const double largest = diagonal.abs().max().item<double>();
  for (int level = 1; level <= 6; ++level) {
    const double floor = 1e-6 * largest * std::pow(10.0, level - 1);
    if (ladder.climb(diagonal.add(floor).clamp_min(floor), candidates)) return result;
  }
  result.damp = 0;
  return result;
}

int64_t factor_bytes(int64_t columns) { return 4 * columns * columns + factor::workspace_bytes(columns); }

}  // namespace gramian
