#include "eval/kernel_speed.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "eval/generated_rows.h"
#include "kernels/factor/factor.h"
#include "kernels/gram/gram.h"
#include "kernels/peak.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

// Means from 1 to 30 deviations, one after another over the columns.
at::Tensor far_from_zero(const at::Tensor& x) {
  return x.add_(tensor::arange(x.size(1), at::kFloat).remainder(30).add_(1).mul_(1.1547));
}

// Adds X's Gram matrix to a sum of its own, on as many threads.
class GramRun {
 public:
  GramRun(const at::Tensor& x, CpuLevel level, int threads)
      : x_(x),
        level_(level),
        pool_(threads),
        parts_(threads == 1 ? 1 : 2 * threads),
        workspaces_(static_cast<size_t>(parts_)),
        sum_(tensor::zeros({x.size(1), x.size(1)}, at::kFloat)) {}

  void operator()() {
    const gram::Rows rows{.type = tensor::dtype_of(x_),
                          .data = x_.const_data_ptr(),
                          .stride = x_.stride(0),
                          .count = x_.size(0),
                          .columns = x_.size(1)};
    pool_.run(parts_, [&](int64_t part) {
      gram::add_lower(level_, rows, gram::part_begin(rows.columns, parts_, part),
                      gram::part_begin(rows.columns, parts_, part + 1), sum_.mutable_data_ptr<float>(),
                      rows.columns, workspaces_[static_cast<size_t>(part)]);
    });
  }
  at::Tensor clear() { return sum_.zero_(); }

 private:
  at::Tensor x_;
  CpuLevel level_;
  ThreadPool pool_;
  int64_t parts_;
  std::vector<gram::Workspace> workspaces_;
  at::Tensor sum_;
};

double gram_error(const at::Tensor& h, const at::Tensor& exact) {
  const at::Tensor root = exact.diagonal().sqrt();
  const at::Tensor relative = wide(h).sub_(exact).div_(root.unsqueeze(0)).div_(root.unsqueeze(1)).tril_();
  const auto columns = static_cast<double>(h.size(0));
  return std::sqrt(relative.square_().sum().item<double>() / (columns * (columns + 1) / 2));
}

at::Tensor factor_matrix(const KernelCase& which, int64_t tokens) {
  at::Tensor x = generated_rows({.stream = 2}, tokens, which.columns);
  if (which.hard) x.mul_(0.1).add_(generated_rows({.stream = 3}, tokens, 1));
  GramRun run(x, which.level, 1);
  const at::Tensor h = run.clear();
  run();
  gram::scale_and_mirror(h.mutable_data_ptr<float>(), which.columns, which.columns,
                         2.0f / static_cast<float>(tokens));
  if (which.hard) h.diagonal().add_(h.diagonal().mean().mul_(0.005));
  return h;
}

at::Tensor chain(const at::Tensor& h) {
  const auto lower = tensor::cholesky(h);
  const auto upper = lower ? tensor::cholesky(tensor::cholesky_inverse(*lower)) : lower;
  if (!upper) throw Error(ErrorKind::numerical, "bench factor", "LibTorch did not factor the test matrix");
  return upper->t().contiguous();
}

double factor_error(const at::Tensor& upper, const at::Tensor& exact) {
  const at::Tensor relative = wide(upper).sub_(exact).div_(exact.diagonal().unsqueeze(1)).square_().sum();
  return std::sqrt(relative.item<double>()) / static_cast<double>(upper.size(0));
}

KernelFigure figure(const std::string& name, const KernelCase& which, int64_t tokens) {
  return {.name = name,
          .dtype = which.dtype,
          .columns = which.columns,
          .tokens = tokens,
          .threads = which.threads,
          .level = which.level,
          .peak = multiply_add_peak(which.level, which.dtype)};
}

// `times`: ours and LibTorch's, and with several threads ours on one.
void set_times(KernelFigure& figure, const std::vector<double>& times) {
  figure.seconds = times[0];
  figure.torch_seconds = times[1];
  if (times.size() > 2) figure.scaling = times[2] / times[0];
}

}  // namespace

std::map<std::string, double> KernelFigure::counters() const {
  std::map<std::string, double> found{{"FLOP/s", operations_per_second()},
                                      {"times_libtorch", ratio()},
                                      {"error", error},
                                      {"times_error", error / torch_error}};
  if (peak > 0) found["share_of_peak"] = peak_share();
  return found;
}

std::vector<double> shortest_in_turns(const std::vector<std::function<void()>>& tasks, int repeats,
                                      int threads) {
  std::vector<double> best(tasks.size(), std::numeric_limits<double>::infinity());
  for (int i = 0; i < repeats; ++i) {
    for (size_t task = 0; task < tasks.size(); ++task) {
      const double start = now(threads);
      tasks[task]();
      best[task] = std::min(best[task], now(threads) - start);
    }
  }
  return best;
}

KernelFigure measure_gram(const KernelCase& which) {
  const tensor::InferenceScope inference;
  tensor::set_threads(which.threads);
  at::Tensor x = generated_rows({.stream = 1}, which.tokens, which.columns);
  if (which.hard) x = far_from_zero(x);
  x = x.to(tensor::scalar_type(which.dtype));
  KernelFigure result = figure(which.hard ? "gram_large_means" : "gram", which, which.tokens);
  const auto columns = static_cast<double>(which.columns);
  result.operations = static_cast<double>(which.tokens) * columns * (columns + 1);

  GramRun ours(x, which.level, which.threads), single(x, which.level, 1);
  const at::Tensor theirs = tensor::zeros({which.columns, which.columns}, at::kFloat);
  const auto libtorch = [&] {
    const at::Tensor rows = x.to(at::kFloat);
    theirs.addmm_(rows.t(), rows);
  };
  const at::Tensor h = ours.clear();
  ours();
  libtorch();
  const at::Tensor exact = wide(x).t().matmul(wide(x));
  result.error = gram_error(h, exact);
  result.torch_error = gram_error(theirs, exact);
  std::vector<std::function<void()>> tasks = {std::ref(ours), libtorch};
  if (which.threads > 1) tasks.emplace_back(std::ref(single));
  set_times(result, shortest_in_turns(tasks, which.repeats, which.threads));
  return result;
}

KernelFigure measure_factor(const KernelCase& which) {
  const tensor::InferenceScope inference;
  tensor::set_threads(which.threads);
  const int64_t columns = which.columns, tokens = which.hard ? columns / 4 + 1 : 2 * columns;
  const at::Tensor h = factor_matrix(which, tokens), work = h.clone();
  KernelFigure result = figure(which.hard ? "factor_damped" : "factor", which, tokens);
  const auto k = static_cast<double>(columns);
  result.operations = 2 * k * k * k / 3;

  ThreadPool pool(which.threads);
  const auto invert = [&](ThreadPool* threads) {
    work.copy_(h);
    if (!factor::invert_factor(which.level, work.mutable_data_ptr<float>(), columns, columns, threads))
      throw Error(ErrorKind::numerical, "bench factor", "the kernel did not factor the test matrix");
  };
  at::Tensor theirs;
  std::vector<std::function<void()>> tasks = {[&] { invert(&pool); }, [&] { theirs = chain(h); }};
  if (which.threads > 1) tasks.emplace_back([&] { invert(nullptr); });
  set_times(result, shortest_in_turns(tasks, which.repeats, which.threads));
  const at::Tensor exact = chain(wide(h));
  result.error = factor_error(work, exact);
  result.torch_error = factor_error(theirs, exact);
  return result;
}

}  // namespace gramian
