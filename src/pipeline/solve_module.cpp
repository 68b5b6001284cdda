#include "pipeline/solve_module.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "solve/encode.h"
#include "solve/float_grids.h"
#include "solve/refine.h"
#include "solve/scale_search.h"
#include "solve/solvers.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

// Why a module whose method takes statistics does without; empty where it need not.
std::string reason_without(const InputStatistic& input, const SolveSettings& settings) {
  if (!settings.lacking.empty()) return settings.lacking;
  if (input.tokens == 0) return "no calibration tokens";
  if (input.factor != nullptr && !input.factor->ok()) return "Hessian does not factor with damping below 1";
  return "";
}

QuantizedLinear solve_floats(const PackSource& source, const InputStatistic& input,
                             const SolveSettings& settings, ThreadPool& pool) {
  const std::string reason =
      input.taken() || !settings.lacking.empty() ? reason_without(input, settings) : "";
  const bool fp8 = settings.options.grid.kind == GridKind::fp8;
  QuantizedLinear result =
      fp8 ? solve_fp8(source.weight, settings.options.grid, pool)
          : solve_scale_search(source.weight, reason.empty() ? input.blocks : at::Tensor(),
                               std::max(settings.largest, largest_magnitude(source.weight)),
                               settings.options.search, pool);
  if (!reason.empty()) {
    result.fallback = (fp8 ? "rtn: " : "nvfp4_mse: ") + reason;
  } else if (input.factor != nullptr) {
    compensate_floats(result, source.weight, *input.factor, input.tokens, pool);
  }
  return result;
}

QuantizedLinear solve_blocks(const PackSource& source, const InputStatistic& input,
                             const SolveSettings& settings, ThreadPool& pool) {
  const GridOptions& grid = settings.options.grid;
  const std::string reason =
      input.taken() || !settings.lacking.empty() ? reason_without(input, settings) : "";
  // Of one value a block, each is rounded for itself: nothing is left to carry on.
  if (reason.empty() && input.factor != nullptr && grid.codec->block > 1)
    return solve_gptq_blocks(source.weight, *input.factor, input.hessian, input.tokens, settings.options,
                             pool);
  ColumnImportance importance;
  if (reason.empty() && input.squares.defined()) importance = mean_squares(input.squares, input.tokens);
  QuantizedLinear result = solve_encode(source.weight, importance, grid, pool);
  if (!reason.empty()) result.fallback = "rtn: " + reason;
  return result;
}

QuantizedLinear solve_unnamed(const PackSource& source, const InputStatistic& input,
                              const SolveSettings& settings, ThreadPool& pool) {
  const GridOptions& grid = settings.options.grid;
  if (is_float(grid.kind)) return solve_floats(source, input, settings, pool);
  if (grid.kind == GridKind::ggml) return solve_blocks(source, input, settings, pool);
  if (!input.taken()) return solve_rtn(source.weight, grid, pool);
  const std::string reason = reason_without(input, settings);
  if (reason.empty()) {
    QuantizedLinear solved = solve_gptq(source.weight, *input.factor, input.tokens, settings.options, pool);
    if (settings.options.refine > 0) refine(solved, source.weight, input.hessian, settings.options, pool);
    return solved;
  }
  QuantizedLinear result = solve_fallback(source.weight, grid, settings.fallback, pool);
  result.fallback = str(to_text(settings.fallback.strategy), ": ", reason);
  result.damp_attempts = input.factor->attempts;
  return result;
}

std::shared_ptr<const LinearOp> dense(const DecodedLinear& decoded, at::ScalarType dtype) {
  return std::make_shared<DenseLinear>(decoded.weight.to(dtype),
                                       decoded.bias.defined() ? decoded.bias.to(dtype) : at::Tensor());
}

}  // namespace

QuantizedLinear solve_linear(const PackSource& source, const InputStatistic& input,
                             const SolveSettings& settings, ThreadPool& pool) {
  // The solvers know matrices, not their names.
  try {
    return solve_unnamed(source, input, settings, pool);
  } catch (const Error& error) {
    throw Error(error.kind(), source.name, error.what());
  }
}

SolvedModule solve_module(const PackSource& source, const InputStatistic& input,
                          const SolveSettings& settings, ThreadPool& pool) {
  SolvedModule solved;
  solved.quantized = solve_linear(source, input, settings, pool);
  const GridOptions& grid = settings.options.grid;
  solved.packed = settings.format.pack(solved.quantized, source, grid);
  solved.decoded = settings.format.unpack(solved.packed, source.shape.out_features, source.shape.in_features,
                                          grid, source.name);
  return solved;
}

double relative_error(const at::Tensor& weight, const at::Tensor& decoded, const InputStatistic& input) {
  constexpr int64_t kRowsMax = 128;
  const int64_t n = weight.size(0), rows = std::min(n, kRowsMax);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < rows; ++i) chosen.push_back(i * n / rows);
  const at::Tensor index = tensor::wrap(chosen.data(), {rows}, at::kLong, nullptr);
  const at::Tensor some = weight.index_select(0, index).to(at::kFloat);
  const at::Tensor error = some.sub(decoded.index_select(0, index).to(at::kFloat));
  const auto energy = [&](const at::Tensor& x) {
    if (input.hessian.defined()) return x.matmul(input.hessian).mul_(x).sum(at::kDouble).item<double>();
    if (input.squares.defined())
      return x.square().matmul(input.squares.to(at::kFloat)).sum(at::kDouble).item<double>();
    if (!input.blocks.defined()) return std::nan("");
    const at::Tensor parts = x.view({rows, input.blocks.size(0), -1}).transpose(0, 1);
    return parts.matmul(input.blocks).mul_(parts).sum(at::kDouble).item<double>();
  };
  // H is not negative; rounding may make the sum so where the error is next to nothing.
  return std::sqrt(std::max(energy(error), 0.0) / energy(some));
}

std::shared_ptr<const LinearOp> replacement(const SolvedModule& solved, const PackSource& source,
                                            at::ScalarType dtype) {
  if (source.compat_gptqmodel) {
    return dense({solved.quantized.weight().to(source.weight.scalar_type()), source.bias}, dtype);
  }
  return dense(solved.decoded, dtype);
}

std::shared_ptr<const LinearOp> stored_replacement(const LinearFormat& format, const PackedParts& packed,
                                                   const Linear& linear, const GridOptions& grid,
                                                   at::ScalarType dtype) {
  return dense(format.unpack(packed, linear.out_features, linear.in_features, grid, linear.name), dtype);
}

}  // namespace gramian
