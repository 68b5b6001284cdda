#include "eval/solve_speed.h"

#include <ATen/core/Tensor.h>

#include <chrono>

#include "base/error.h"
#include "base/parallel.h"
#include "eval/generated_rows.h"
#include "solve/factor.h"
#include "solve/refine.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

constexpr int64_t kBlock = 128;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double relative_error(const at::Tensor& weight, const at::Tensor& q, const at::Tensor& hessian) {
  const auto energy = [&](const at::Tensor& x) {
    return x.matmul(hessian).mul_(x).sum(at::kDouble).item<double>();
  };
  return energy(weight.sub(q)) / energy(weight);
}

// Scales [N, 1] of a slab [N, g], from the largest magnitude or searched, as tensor operations.
at::Tensor slab_scale(const at::Tensor& slab, double steps, double least, double most, double norm) {
  const at::Tensor high = slab.abs().amax({1}, true).clamp_min(1e-30).div(steps);
  if (norm == 0) return high;
  at::Tensor best = high.clone(), best_error;
  for (int i = 0; i < 80; ++i) {
    const at::Tensor scale = high.mul(1 - i / 100.0);
    const at::Tensor error =
        slab.div(scale).round_().clamp_(least, most).mul_(scale).sub_(slab).abs_().pow_(norm).sum(1, true);
    if (i == 0) {
      best_error = error;
      continue;
    }
    const at::Tensor better = error.lt(best_error);
    best = scale.where(better, best);
    best_error = error.where(better, best_error);
  }
  return best;
}

// GPTQ column by column, as papers and other tools write it. -> [N, K].
at::Tensor solve_with_torch(const at::Tensor& weight, const at::Tensor& hessian,
                            const SolveOptions& options) {
  at::Tensor h = hessian.clone();
  h.diagonal().add_(h.diagonal().mean().mul(options.damp_percent));
  const auto lower = tensor::cholesky(h);
  const auto upper_t = lower ? tensor::cholesky(tensor::cholesky_inverse(*lower)) : lower;
  if (!upper_t) throw Error(ErrorKind::numerical, "bench solve", "LibTorch did not factor the test matrix");
  const at::Tensor upper = upper_t->t().contiguous();
  const bool per_row = options.grid.group_size == -1;
  const int64_t columns = weight.size(1), group = per_row ? columns : options.grid.group_size;
  const double steps = per_row ? 7 : 7.5, least = per_row ? -7 : -8;
  at::Tensor w = weight.clone(), q = tensor::zeros(weight.sizes(), at::kFloat), scale;
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, columns);
    at::Tensor block = w.slice(1, begin, end).clone();
    const at::Tensor errors = tensor::zeros(block.sizes(), at::kFloat);
    for (int64_t j = begin; j < end; ++j) {
      if (j % group == 0)
        scale = slab_scale(w.slice(1, j, std::min(j + group, columns)), steps, least, 7, options.grid.mse);
      const at::Tensor column = block.slice(1, j - begin, j - begin + 1);
      const at::Tensor value = column.div(scale).round_().clamp_(least, 7).mul_(scale);
      const at::Tensor error = column.sub(value).div_(upper.select(0, j).select(0, j));
      q.slice(1, j, j + 1).copy_(value);
      errors.slice(1, j - begin, j - begin + 1).copy_(error);
      block.slice(1, j - begin, end - begin).sub_(error.matmul(upper.slice(0, j, j + 1).slice(1, j, end)));
    }
    if (end < columns)
      w.slice(1, end, columns).sub_(errors.matmul(upper.slice(0, begin, end).slice(1, end, columns)));
  }
  return q;
}

}  // namespace

SolveFigure measure_solve(const SolveCase& which) {
  const tensor::InferenceScope inference;
  tensor::set_threads(which.threads);
  const at::Tensor x = generated_rows({.stream = 1}, 2 * which.columns, which.columns);
  const at::Tensor hessian = x.t().matmul(x).div_(static_cast<double>(which.columns));
  const at::Tensor weight = generated_rows({.stream = 2}, which.rows, which.columns).mul_(0.02);
  ThreadPool pool(which.threads);
  SolveFigure figure;
  const double start = now();
  const Factor factor = factorize(hessian, which.options.damp_percent, which.options.damp_step, &pool);
  figure.factor_seconds = now() - start;
  QuantizedLinear solved = solve_gptq(weight, factor, 2 * which.columns, which.options, pool);
  if (which.options.refine > 0) refine(solved, weight, hessian, which.options, pool);
  figure.solve_seconds = now() - start - figure.factor_seconds;
  figure.error = relative_error(weight, solved.weight(), hessian);
  if (!which.with_torch) return figure;
  const double begin = now();
  const at::Tensor theirs = solve_with_torch(weight, hessian, which.options);
  figure.torch_seconds = now() - begin;
  figure.torch_error = relative_error(weight, theirs, hessian);
  return figure;
}

}  // namespace gramian
