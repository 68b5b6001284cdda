// Hessians, local Hessians and importance sums of Model Optimizer 0.47.0. Tolerances as the set's README states them.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "eval/generated_rows.h"
#include "formats/safetensors.h"
#include "golden_sets/modelopt/modelopt_golden.h"
#include "stats/hessian.h"
#include "stats/imatrix.h"
#include "stats/local_hessian.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Path = std::filesystem::path;

constexpr double kFloat32 = 5e-6, kBf16Products = 3e-5, kBlocks = 1e-5, kSums = 1e-5;

int64_t integer(const SafetensorsFile& file, const std::string& name) {
  return file.load(name).item<int64_t>();
}

// bf16 activations multiplied in fp32, and as the CPU likes best.
struct Mode {
  HessianInput input;
  double tolerance;
};
constexpr Mode kModes[] = {{HessianInput::float32, kFloat32}, {HessianInput::automatic, kBf16Products}};

// Largest error over the mean diagonal.
void expect_near(const at::Tensor& found, const at::Tensor& expected, double mean_diagonal,
                 double tolerance) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  const double error =
      found.to(at::kDouble).sub(expected.to(at::kDouble)).abs().max().item<double>() / mean_diagonal;
  EXPECT_LE(error, tolerance);
}

void check_hessian(const Path& path, const std::string& name, const Mode& mode) {
  const SafetensorsFile file(path);
  const size_t split = name.find("_n");
  const int64_t columns = std::stoll(name.substr(1, split - 1)), tokens = std::stoll(name.substr(split + 2));
  const at::Tensor x = generated_rows({.stream = 20}, tokens, columns).to(at::kBFloat16);
  ThreadPool pool(2);
  for (const int64_t batches : {1, 8}) {
    HessianAccumulator accumulator(columns, 2, {.input = mode.input});
    for (int64_t b = 0; b < batches; ++b)
      accumulator.add(static_cast<int>(b % 2), x.slice(0, b * tokens / batches, (b + 1) * tokens / batches),
                      &pool);
    EXPECT_EQ(accumulator.tokens(), tokens);
    const at::Tensor h = accumulator.merge();
    const double mean = file.load(name + ".mean_diag.f64").item<double>();
    expect_near(h.diagonal().to(at::kDouble).mean().reshape({1}), file.load(name + ".mean_diag.f64"), mean,
                mode.tolerance);
    if (file.contains(name + ".diag.f64"))
      expect_near(h.diagonal(), file.load(name + ".diag.f64"), mean, mode.tolerance);
    if (!file.contains(name + ".rows.f64")) continue;
    const at::Tensor rows = file.load(name + ".rows.f64");
    expect_near(h.slice(0, 0, columns, columns / rows.size(0)), rows, mean, mode.tolerance);
  }
}

// One after another with a merge behind each, and in two lanes merged once.
void check_merges(const Path& path, const Mode& mode) {
  const SafetensorsFile file(path);
  const at::Tensor x = file.load("small.x"), whole = file.load("small.h.f64");
  const double mean = whole.diagonal().mean().item<double>();
  HessianAccumulator accumulator(x.size(1), 1, {.input = mode.input});
  int64_t first = 0;
  for (int step = 0; file.contains("small.count" + std::to_string(step)); ++step) {
    const int64_t count = integer(file, "small.count" + std::to_string(step));
    accumulator.add(0, x.slice(0, first, count));
    first = count;
    EXPECT_EQ(accumulator.tokens(), count);
    const at::Tensor expected = file.load("small.after" + std::to_string(step) + ".peer");
    expect_near(accumulator.merge(), expected, expected.diagonal().mean().item<double>(), mode.tolerance);
  }
  EXPECT_EQ(first, x.size(0));
  expect_near(accumulator.merge(), whole, mean, mode.tolerance);

  HessianAccumulator lanes(x.size(1), 2, {.input = mode.input});
  const std::vector<std::pair<int64_t, int64_t>> ranges = {{0, 100}, {100, x.size(0)}};
  for (int lane = 0; lane < 2; ++lane) {
    const at::Tensor part = x.slice(0, ranges[lane].first, ranges[lane].second);
    HessianAccumulator alone(x.size(1), 1, {.input = mode.input});
    alone.add(0, part);
    expect_near(alone.merge(), file.load("small.partial" + std::to_string(lane + 1) + ".f64"), mean,
                mode.tolerance);
    lanes.add(1 - lane, part);
  }
  expect_near(lanes.merge(), whole, mean, mode.tolerance);
}

void check_local(const Path& path, const Mode& mode) {
  const SafetensorsFile file(path);
  const at::Tensor x = generated_rows({.stream = 10}, 4096, 256).to(at::kBFloat16);
  EXPECT_TRUE(x.slice(0, 0, 8).to(at::kFloat).equal(file.load("x_first8")));
  LocalHessianAccumulator accumulator(256, 2, {.input = mode.input});
  int64_t first = 0;
  for (const int64_t count : {1, 699, 1348, 2048}) {
    accumulator.add(static_cast<int>(first % 2), x.slice(0, first, first + count));
    first += count;
  }
  EXPECT_EQ(accumulator.tokens(), 4096);
  const at::Tensor found = accumulator.merge();
  for (const char* reference : {"hessian_sum.f64", "hessian_sum.peer"}) {
    const at::Tensor expected = file.load(reference).to(at::kDouble);
    ASSERT_EQ(found.sizes(), expected.sizes());
    for (int64_t b = 0; b < expected.size(0); ++b) {
      expect_near(found.select(0, b), expected.select(0, b),
                  expected.select(0, b).diagonal().mean().item<double>(), kBlocks);
    }
  }
}

void expect_same_sums(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor e = expected.to(at::kDouble);
  ASSERT_EQ(found.sizes(), e.sizes());
  EXPECT_LE(found.sub(e).abs().div(e.clamp_min(1e-300)).max().item<double>(), kSums);
}

void check_imatrix(const Path& path) {
  const SafetensorsFile file(path);
  const at::Tensor route = file.load("route"), sums = file.load("expert_sumsq.f64");
  const at::Tensor x = generated_rows({.stream = 40}, route.size(0), sums.size(1)).to(at::kBFloat16);
  ImatrixAccumulator all(sums.size(1), 2);
  for (int64_t first = 0; first < x.size(0); first += 128)
    all.add(static_cast<int>(first / 128 % 2), x.slice(0, first, first + 128));
  EXPECT_EQ(all.tokens(), integer(file, "count"));
  expect_same_sums(all.merge(), file.load("sumsq.f64"));
  expect_same_sums(all.merge(), file.load("sumsq.f32"));
  const at::Tensor counts = file.load("expert_count");
  for (int64_t expert = 0; expert < sums.size(0); ++expert) {
    ImatrixAccumulator routed(sums.size(1), 1);
    routed.add(0, x, route.eq(expert));
    EXPECT_EQ(routed.tokens(), counts.select(0, expert).item<int64_t>());
    expect_same_sums(routed.merge(), sums.select(0, expert));
  }
}

void collect_hessians(const Path& path) {
  const SafetensorsFile file(path);
  for (const Mode& mode : kModes) {
    const std::string word = to_text(mode.input);
    const std::string suffix = ".mean_diag.f64";
    for (const auto& [key, stored] : file.tensors()) {
      if (!key.ends_with(suffix)) continue;
      const std::string name = key.substr(0, key.size() - suffix.size());
      add("modelopt_hessian", name + "." + word, [path, name, mode] { check_hessian(path, name, mode); });
    }
    if (file.contains("small.x"))
      add("modelopt_hessian", "merges." + word, [path, mode] { check_merges(path, mode); });
  }
}

}  // namespace

void collect_statistics(const Path& root) {
  for (const Path& folder : folders_with(root, "gptq_hessian.safetensors"))
    collect_hessians(folder / "gptq_hessian.safetensors");
  for (const Path& folder : folders_with(root, "local_hessian.safetensors")) {
    for (const Mode& mode : kModes) {
      add("modelopt_local_hessian", to_text(mode.input),
          [folder, mode] { check_local(folder / "local_hessian.safetensors", mode); });
    }
  }
  for (const Path& folder : folders_with(root, "imatrix.safetensors"))
    add("modelopt_imatrix", "sums", [folder] { check_imatrix(folder / "imatrix.safetensors"); });
}

}  // namespace gramian::golden
