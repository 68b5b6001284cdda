// Error compensation of Model Optimizer 0.47.0 on scales that were fixed before it: NVFP4 column by column, IQ2_XXS block by block.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "eval/generated_rows.h"
#include "formats/safetensors.h"
#include "golden_sets/modelopt/modelopt_golden.h"
#include "kernels/cpu_level.h"
#include "solve/encode.h"
#include "solve/float_grids.h"
#include "solve/scale_search.h"
#include "stats/hessian.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;

// tr(E H Eᵀ) / tr(W H Wᵀ).
double lost(const at::Tensor& weight, const at::Tensor& quantized, const at::Tensor& hessian) {
  const at::Tensor h = hessian.to(at::kDouble), w = weight.to(at::kDouble),
                   e = w.sub(quantized.to(at::kDouble));
  return e.matmul(h).mul(e).sum().item<double>() / w.matmul(h).mul(w).sum().item<double>();
}

// The peer takes columns of zero weights out of the Hessian, whatever they are multiplied with, and leaves in those that are never
// excited; a factor of ours serves several modules and does it the other way round.
Factor peers_factor(const SafetensorsFile& file) {
  const at::Tensor h = file.load("hessian.peer").clone(), empty = file.load("w").abs().sum({0}).eq(0);
  h.diagonal().masked_fill_(h.diagonal().eq(0), 1e-30);
  h.masked_fill_(empty.unsqueeze(0).logical_or(empty.unsqueeze(1)), 0);
  return factorize(h, 0.01, 0.01);
}

void check_factor(const Path& path) {
  const SafetensorsFile file(path);
  const Factor factor = peers_factor(file);
  ASSERT_TRUE(factor.ok());
  EXPECT_EQ(factor.attempts, 1);
  const at::Tensor expected = file.load("u.f64"), off = factor.upper.to(at::kDouble).sub(expected);
  EXPECT_LT(off.norm().item<double>() / expected.norm().item<double>(), 1e-6);
}

// 99.9 % of the entries within 1e-5, the error within 0.5 %: a value halfway between two codes may fall to either.
void check_nvfp4(const Path& path, const std::string& expected_name) {
  const SafetensorsFile file(path);
  const at::Tensor w = file.load("w"), hessian = file.load("hessian.peer"),
                   expected = file.load(expected_name);
  ThreadPool pool(2);
  QuantizedLinear solved =
      solve_scale_search(w, {}, largest_magnitude(w), {.candidates = ScaleSearch::Candidates::largest}, pool);
  const at::Tensor scale = solved.scale.mul(1 / solved.global_scale);
  EXPECT_LT(scale.sub(file.load("nvfp4.scale")).div(scale).abs().max().item<float>(), 1e-6f);
  EXPECT_LE(solved.weight().sub(file.load("nvfp4.rtn")).abs().max().item<float>(), 1e-6f);
  compensate_floats(solved, w, peers_factor(file), 512, pool);
  const at::Tensor off = solved.weight().sub(expected).abs();
  EXPECT_LE(off.gt(1e-5).sum().item<int64_t>(), w.numel() / 1000);
  const double error = lost(w, solved.weight(), hessian), peer = lost(w, expected, hessian);
  EXPECT_NEAR(error / peer, 1, 0.005);
  EXPECT_LT(error, 0.8 * lost(w, file.load("nvfp4.rtn"), hessian));
}

// The reference searches in float64: errors are compared, as the set's README says.
void check_blocks(const Path& path) {
  constexpr int64_t kTokens = 1024;
  const SafetensorsFile file(path);
  const at::Tensor w = file.load("iq2xxs.w");
  const at::Tensor x = generated_rows({.stream = 32}, kTokens, w.size(1)).to(at::kBFloat16);
  HessianAccumulator sums(w.size(1), 1);
  sums.add(0, x);
  const at::Tensor hessian = sums.merge();
  SolveOptions options;
  options.grid = {
      .kind = GridKind::ggml, .group_size = 256, .codec = find_codec("IQ2_XXS"), .anchored = true};
  options.importance_weighted = true;
  ThreadPool pool(2);
  const QuantizedLinear solved =
      solve_gptq_blocks(w, factorize(hessian, 0.3, 0.01), hessian, kTokens, options, pool);
  const double reference = lost(w, file.load("iq2xxs.weight.f64"), hessian);
  EXPECT_NEAR(lost(w, solved.weight(), hessian) / reference, 1, 0.02);
  const at::Tensor same = solved.blocks.eq(file.load("iq2xxs.payload.f64").view(solved.blocks.sizes()));
  EXPECT_GT(same.to(at::kFloat).mean().item<float>(), 0.9f);
}

}  // namespace

void collect_updates(const Path& root) {
  for (const Path& folder : folders_with(root, "gptq_update.safetensors")) {
    const Path path = folder / "gptq_update.safetensors";
    add("modelopt_update", "factor", [path] { check_factor(path); });
    for (const std::string name : {"nvfp4.block32.peer", "nvfp4.block128.peer", "nvfp4.block128.f64"})
      add("modelopt_update", name, [path, name] { check_nvfp4(path, name); });
    add("modelopt_update", "iq2_xxs", [path] { check_blocks(path); });
  }
}

}  // namespace gramian::golden
