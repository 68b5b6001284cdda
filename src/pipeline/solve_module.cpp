#include "pipeline/solve_module.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

QuantizedLinear solve_unnamed(const ModuleSource& source, const Factor* factor, int64_t tokens,
                              const SolveOptions& options, ThreadPool& pool) {
  if (factor != nullptr && tokens > 0 && factor->ok())
    return solve_gptq(source.weight, *factor, tokens, options, pool);
  QuantizedLinear result = solve_rtn(source.weight, options.grid, pool);
  if (factor != nullptr) {
    result.fallback =
        tokens == 0 ? "rtn: no calibration tokens" : "rtn: Hessian does not factor with damping below 1";
    result.damp_attempts = factor->attempts;
  }
  return result;
}

// The solvers know matrices, not their names.
QuantizedLinear solve(const ModuleSource& source, const Factor* factor, int64_t tokens,
                      const SolveOptions& options, ThreadPool& pool) {
  try {
    return solve_unnamed(source, factor, tokens, options, pool);
  } catch (const Error& error) {
    throw Error(error.kind(), source.name, error.what());
  }
}

std::shared_ptr<const LinearOp> dense(const qqq::Decoded& decoded, at::ScalarType dtype) {
  return std::make_shared<DenseLinear>(decoded.weight().to(dtype),
                                       decoded.bias.defined() ? decoded.bias.to(dtype) : at::Tensor());
}

}  // namespace

SolvedModule solve_module(const ModuleSource& source, const Factor* factor, int64_t tokens,
                          const SolveOptions& options, bool compat_gptqmodel, ThreadPool& pool) {
  SolvedModule solved;
  solved.quantized = solve(source, factor, tokens, options, pool);
  solved.method = factor != nullptr && solved.quantized.fallback.empty() ? "qqq" : "rtn";
  const at::Tensor channel_scale = compat_gptqmodel ? qqq::channel_scale_from_weight(source.weight)
                                                    : qqq::channel_scale_from_codes(solved.quantized);
  solved.packed = qqq::pack(solved.quantized, channel_scale, source.bias, source.name);
  solved.decoded = qqq::unpack(solved.packed, source.weight.size(0), source.weight.size(1), source.name);
  return solved;
}

double relative_error(const ModuleSource& source, const SolvedModule& solved, const at::Tensor& hessian) {
  constexpr int64_t kRowsMax = 128;
  const int64_t n = source.weight.size(0), rows = std::min(n, kRowsMax);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < rows; ++i) chosen.push_back(i * n / rows);
  const at::Tensor index = tensor::wrap(chosen.data(), {rows}, at::kLong, nullptr);
  const at::Tensor weight = source.weight.index_select(0, index).to(at::kFloat);
  const at::Tensor scale = solved.decoded.s_channel.index_select(0, index).unsqueeze(1);
  const at::Tensor error =
      weight.sub(solved.decoded.values.index_select(0, index).to(at::kFloat).mul_(scale));
  const auto energy = [&](const at::Tensor& x) {
    return x.matmul(hessian).mul_(x).sum(at::kDouble).item<double>();
  };
  // H is not negative; rounding may make the sum so where the error is next to nothing.
  return std::sqrt(std::max(energy(error), 0.0) / energy(weight));
}

std::shared_ptr<const LinearOp> replacement(const SolvedModule& solved, const ModuleSource& source,
                                            at::ScalarType dtype, bool compat_gptqmodel) {
  if (compat_gptqmodel) {
    const QuantizedLinear& q = solved.quantized;
    const int64_t n = q.codes.size(0), k = q.codes.size(1);
    const at::Tensor weight = q.codes.view({n, k / q.group_size, q.group_size})
                                  .to(at::kFloat)
                                  .mul(q.scale.unsqueeze(-1))
                                  .view({n, k});
    return std::make_shared<DenseLinear>(weight.to(source.weight.scalar_type()).to(dtype),
                                         source.bias.defined() ? source.bias.to(dtype) : at::Tensor());
  }
  return dense(solved.decoded, dtype);
}

std::shared_ptr<const LinearOp> stored_replacement(const qqq::Packed& packed, const Linear& linear,
                                                   at::ScalarType dtype) {
  return dense(qqq::unpack(packed, linear.out_features, linear.in_features, linear.name), dtype);
}

}  // namespace gramian
