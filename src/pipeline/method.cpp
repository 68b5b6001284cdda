#include "pipeline/method.h"

#include "base/error.h"
#include "base/format.h"

namespace gramian {
namespace {

// Sweeps beyond the second gain next to nothing (docs/quality.md).
constexpr int kRefine = 2;

SolveOptions nvfp4(ScaleSearch::Candidates candidates) {
  return {.grid = {.kind = GridKind::nvfp4, .group_size = 16, .mse = 0},
          .search = {.candidates = candidates},
          .static_groups = true};
}

SolveOptions fp8() {
  return {.grid = {.kind = GridKind::fp8, .bits = 8, .group_size = -1, .mse = 0}, .static_groups = true};
}

// Scales come before all codes, so that any order of columns will do.
SolveOptions compensated(SolveOptions options) {
  options.order = ColumnOrder::activation;
  options.damp_percent = 0.05;
  options.damp_step = 0.01;
  return options;
}

}  // namespace

const std::vector<Method>& all_methods() {
  static const std::vector<Method> kMethods{
      {"qqq",
       "GPTQ error compensation for 4-bit weights and 8-bit activations",
       Statistic::hessian,
       "qqq",
       {.grid = {.activation_bits = 8}, .refine = kRefine},
       {.grid = {.activation_bits = 8}}},
      {"gptq",
       "GPTQ error compensation on an integer grid of 2, 3, 4 or 8 bits",
       Statistic::hessian,
       "gptq",
       {.grid = {},
        .damp_percent = 0.05,
        .damp_step = 0.01,
        .order = ColumnOrder::group_aware,
        .refine = kRefine},
       {.grid = {.mse = 0}, .damp_percent = 0.05, .damp_step = 0.01, .order = ColumnOrder::group_aware}},
      {"rtn",
       "plain rounding, without calibration: the floor to compare with",
       Statistic::none,
       "qqq",
       {},
       {}},
      {"local_hessian",
       "NVFP4 whose block scales are searched by the output error that 16 x 16 blocks of the Hessian give",
       Statistic::local_hessian, "compressed-tensors", nvfp4(ScaleSearch::Candidates::all)},
      {"nvfp4_mse", "the same search by the squared error of the weights, without calibration",
       Statistic::none, "compressed-tensors", nvfp4(ScaleSearch::Candidates::all)},
      {"nvfp4_max", "NVFP4 with scales from the largest magnitudes, without calibration", Statistic::none,
       "compressed-tensors", nvfp4(ScaleSearch::Candidates::largest)},
      {"gptq_nvfp4", "GPTQ error compensation on NVFP4, with the block scales of nvfp4_mse",
       Statistic::hessian, "compressed-tensors", compensated(nvfp4(ScaleSearch::Candidates::all))},
      {"fp8", "8-bit floats (E4M3) with one scale per row, without calibration", Statistic::none,
       "compressed-tensors", fp8()},
      {"gptq_fp8", "GPTQ error compensation on these", Statistic::hessian, "compressed-tensors",
       compensated(fp8())},
      {"imatrix",
       "blocks of llama.cpp's types, their errors weighted by the mean squares of the inputs",
       Statistic::importance,
       "gguf",
       {.grid = {.kind = GridKind::ggml, .mse = 0}},
       {},
       true},
  };
  return kMethods;
}

const Method& find_method(const std::string& name) {
  for (const Method& method : all_methods()) {
    if (method.name == name) return method;
  }
  throw Error(ErrorKind::invalid_argument, "--method", str("unknown method '", name, "'"),
              "choose one of: " + listed(all_methods(), [](const Method& method) { return method.name; }));
}

}  // namespace gramian
