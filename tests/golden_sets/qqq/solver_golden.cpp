// Gram matrices, factors, scalar quantizer and solver against GPT-QModel 7.7.0, under its own rules
// (one-sided range, dead columns cleared). Tolerances as the set's README derives them.
#include <ATen/core/Tensor.h>

#include <cfloat>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "golden_sets/qqq/qqq_golden.h"
#include "kernels/solve/grid.h"
#include "solve/solvers.h"
#include "stats/hessian.h"
#include "stats/patch_rows.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Json = nlohmann::ordered_json;
using Path = std::filesystem::path;

Json read_index(const Path& folder) {
  return parse_json(read_text(folder / "index.json"), (folder / "index.json").string());
}

double relative(double found, double expected) {
  return std::fabs(found - expected) / std::max(std::fabs(expected), 1e-300);
}

// prefix0, prefix1, ... as far as they go.
std::vector<at::Tensor> numbered(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<at::Tensor> found;
  while (file.contains(prefix + std::to_string(found.size())))
    found.push_back(file.load(prefix + std::to_string(found.size())));
  return found;
}

// max |ΔH_ij| / √(H_ii H_jj); where a diagonal entry is 0 both must be 0.
void expect_same_gram(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  const at::Tensor e = expected.to(at::kDouble), difference = found.to(at::kDouble).sub(e).abs();
  const at::Tensor root = e.diagonal().sqrt();
  const at::Tensor scale = root.unsqueeze(0).mul(root.unsqueeze(1));
  EXPECT_EQ(difference.masked_select(scale.eq(0)).sum().item<double>(), 0) << "dead columns";
  EXPECT_LE(
      difference.masked_fill(scale.eq(0), 0).div(scale.masked_fill(scale.eq(0), 1)).max().item<double>(),
      1e-5);
}

at::Tensor gram_of(const std::vector<at::Tensor>& batches, int64_t columns, int64_t* tokens) {
  HessianAccumulator accumulator(columns, 1);
  for (const at::Tensor& batch : batches) accumulator.add(0, batch);
  *tokens = accumulator.tokens();
  return accumulator.merge();
}

void collect_gram(const Path& folder, const std::string& suite, const Json& index) {
  const Path path = folder / "gram.safetensors";
  if (!std::filesystem::exists(path)) return;
  add(suite, "gram.linear", [path, index] {
    const SafetensorsFile file(path);
    const auto batches = numbered(file, "linear.x");
    ASSERT_FALSE(batches.empty());
    int64_t tokens = 0;
    const at::Tensor expected = file.load("linear.H");
    expect_same_gram(gram_of(batches, expected.size(0), &tokens), expected);
    EXPECT_EQ(tokens, index.at("gram_linear_samples").get<int64_t>());
  });
  if (SafetensorsFile(path).contains("conv.H")) {
    add(suite, "gram.conv", [path, index] {
      const SafetensorsFile file(path);
      const Json& given = index.at("gram_conv_params");
      const PatchRule rule{.kernel = given.at("kernel"),
                           .stride = given.at("stride"),
                           .padding = given.at("padding"),
                           .dilation = given.at("dilation")};
      auto batches = numbered(file, "conv.x");
      ASSERT_FALSE(batches.empty());
      for (at::Tensor& batch : batches) batch = patch_rows(batch, rule);
      int64_t tokens = 0;
      const at::Tensor expected = file.load("conv.H");
      expect_same_gram(gram_of(batches, expected.size(0), &tokens), expected);
      EXPECT_EQ(tokens, index.at("gram_conv_samples").get<int64_t>());
    });
  }
}

struct ScalarCase {
  GridRule rule;
  std::string name;
};

// A candidate may be any whose stored error is within 1e-5 of the stored minimum. Sums that leave fp32 say
// nothing.
void check_grid(const ScalarCase& test, const SafetensorsFile& file, const at::Tensor& x,
                const GridScaler& scaler) {
  const at::Tensor expected = file.load(test.name + ".grid_err");
  const at::Tensor best = file.load(test.name + ".grid_best");
  const at::Tensor scale = file.load(test.name + ".scale");
  ASSERT_EQ(expected.size(1), kGridCandidates);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* values = x.const_data_ptr<float>() + row * x.size(1);
    const float* stored = expected.const_data_ptr<float>() + row * kGridCandidates;
    float errors[kGridCandidates];
    if (x.select(0, row).abs().max().item<float>() == 0) continue;
    const int winner = scaler.errors(values, x.size(1), errors);
    bool in_range = true;
    for (int i = 0; i < kGridCandidates; ++i) in_range &= stored[i] >= FLT_MIN * 1e6f && stored[i] <= FLT_MAX;
    for (int i = 0; i < kGridCandidates && in_range; ++i) {
      EXPECT_LE(relative(errors[i], stored[i]), 1e-4) << "row " << row << " candidate " << i;
    }
    const int stored_best = best.const_data_ptr<int>()[row];
    if (winner != stored_best && in_range) {
      EXPECT_LE(stored[winner], stored[stored_best] * (1 + 1e-5f)) << "row " << row;
    }
    float found = 0;
    scaler.scales(values, x.size(1), 1, x.size(1), &found, 1);
    if (winner == stored_best) {
      EXPECT_EQ(found, scale.const_data_ptr<float>()[row]) << "row " << row;
    }
  }
}

void check_scalar(const ScalarCase& test, const SafetensorsFile& file, CpuLevel level) {
  at::Tensor x = file.load("x");
  // "b8_row_bf16" and its like: the row rule over x in that type.
  if (test.name.find("bf16") != std::string::npos) x = x.to(at::kBFloat16).to(at::kFloat);
  x = x.contiguous();
  const GridScaler scaler(test.rule, level);
  if (test.rule.mse > 0) check_grid(test, file, x, scaler);
  const at::Tensor scale = file.load(test.name + ".scale");
  const at::Tensor dequant = file.load(test.name + ".dequant");
  EXPECT_TRUE(
      file.load(test.name + ".zero").eq(test.rule.narrow ? 0 : -test.rule.code_min()).all().item<bool>());
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* values = x.const_data_ptr<float>() + row * x.size(1);
    const float stored = scale.const_data_ptr<float>()[row];
    float found = 0;
    scaler.scales(values, x.size(1), 1, x.size(1), &found, 1);
    if (test.rule.mse == 0) {
      EXPECT_EQ(found, stored) << "row " << row;
    }
    if (found != stored) continue;
    std::vector<int8_t> codes(x.size(1));
    quantize(values, x.size(1), found, 0, test.rule, codes.data());
    for (int64_t j = 0; j < x.size(1); ++j) {
      EXPECT_EQ(static_cast<float>(codes[j]) * found, dequant.const_data_ptr<float>()[row * x.size(1) + j])
          << "row " << row << " column " << j;
    }
  }
}

void collect_scalar(const Path& folder, const std::string& suite, const Json& index) {
  const Path path = folder / "find_params.safetensors";
  if (!std::filesystem::exists(path)) return;
  for (const Json& entry : index.at("find_params")) {
    ScalarCase test;
    test.name = entry.at("name").get<std::string>();
    test.rule = {.bits = entry.at("bits").get<int>(),
                 .narrow = entry.at("group_size").get<int64_t>() <= 0,
                 .one_sided = true,
                 .mse = entry.at("mse").get<bool>() ? entry.at("norm").get<double>() : 0.0};
    for (int level = 0; level <= static_cast<int>(detected_cpu_level()); ++level) {
      add(suite, "find_params." + test.name + "." + std::string(name(static_cast<CpuLevel>(level))),
          [path, test, level] { check_scalar(test, SafetensorsFile(path), static_cast<CpuLevel>(level)); });
    }
  }
}

void check_statistics(const Path& path, const Json& layer) {
  const SafetensorsFile file(path);
  int64_t tokens = 0;
  const at::Tensor expected = file.load("H");
  const at::Tensor h = gram_of(numbered(file, "calib_"), expected.size(0), &tokens);
  EXPECT_EQ(tokens, layer.at("nsamples").get<int64_t>());
  expect_same_gram(h, expected);
}

// Fewer token rows than columns leave directions that only damping holds up: the factor is known to fewer
// digits there.
double factor_tolerance(const Json& layer) {
  return layer.at("nsamples").get<int64_t>() < layer.at("K").get<int64_t>() ? 1e-3 : 1e-4;
}

void check_factor(const Path& path, const Json& layer, const std::string& name, double damp) {
  const SafetensorsFile file(path);
  const Factor factor = factorize(file.load("H"), damp, 0);
  ASSERT_TRUE(factor.ok());
  const at::Tensor expected = file.load(name).to(at::kDouble);
  const at::Tensor difference = factor.upper.to(at::kDouble).sub(expected).abs();
  EXPECT_LE(difference.div(expected.diagonal().unsqueeze(1)).max().item<double>(), factor_tolerance(layer));
  EXPECT_EQ(factor.upper.tril(-1).abs().max().item<float>(), 0);
}

double proxy_trace(const at::Tensor& difference, const at::Tensor& h) {
  return difference.matmul(h.to(at::kDouble)).mul(difference).sum().item<double>();
}

// A fraction of the entries, in words.
void expect_few(const at::Tensor& wrong, double fraction_max, const std::string& what) {
  const int64_t count = wrong.sum().item<int64_t>();
  EXPECT_LE(static_cast<double>(count), fraction_max * static_cast<double>(wrong.numel()))
      << what << ": " << count << " of " << wrong.numel();
}

void check_solver(const Path& folder, const Json& layer, const Json& config) {
  const SafetensorsFile data(folder / (layer.at("name").get<std::string>() + ".safetensors"));
  const SafetensorsFile expected(folder / config.at("file").get<std::string>());
  const SolveOptions options = {.grid = {.group_size = config.at("group_size").get<int64_t>(),
                                         .mse = config.at("mse").get<double>(),
                                         .one_sided_range = true},
                                .damp_percent = config.at("damp_percent").get<double>(),
                                .static_groups = config.at("static_groups").get<bool>(),
                                .clear_dead_columns = true,
                                .fill_zero_groups = true};
  const at::Tensor weight = data.load("weight"), h = data.load("H");
  const Factor factor = factorize(h, options.damp_percent, options.damp_step);
  ASSERT_TRUE(factor.ok());
  EXPECT_EQ(factor.attempts, 1);
  EXPECT_EQ(factor.dead.sum().item<int64_t>(), static_cast<int64_t>(layer.at("dead_columns").size()));
  for (const Json& column : layer.at("dead_columns"))
    EXPECT_TRUE(factor.dead.select(0, column.get<int64_t>()).item<bool>());
  ThreadPool pool(2);
  const QuantizedLinear found =
      solve_gptq(weight, factor, config.at("nsamples").get<int64_t>(), options, pool);

  const at::Tensor code = expected.load("code"), scale = expected.load("scale");
  ASSERT_EQ(found.codes.sizes(), code.sizes());
  ASSERT_EQ(found.scale.sizes(), scale.sizes());
  const bool exact = layer.at("orthogonal").get<bool>();
  const at::Tensor scale_error = found.scale.sub(scale).abs().div(scale.abs());
  expect_few(found.codes.ne(code), exact ? 0 : 0.005, "codes");
  if (exact) {
    EXPECT_TRUE(found.scale.equal(scale));
  } else {
    // A scale may jump one step of the grid, and a step of 1/100 is at most 1/20 of a factor in [0.2, 1].
    expect_few(scale_error.gt(1e-4), 0.005, "scales");
    EXPECT_LE(scale_error.max().item<double>(), options.grid.mse > 0 ? 0.06 : 1e-4);
  }
  EXPECT_LE(relative(found.loss, config.at("avg_loss").get<double>()), 1e-3);
  EXPECT_LE(relative(found.damp, config.at("damp").get<double>()), 1e-5);
  EXPECT_EQ(found.dead_columns, static_cast<int64_t>(layer.at("dead_columns").size()));

  const at::Tensor zero = expected.load("zero");
  EXPECT_TRUE(zero.eq(options.grid.group_size == -1 ? 0 : 8).all().item<bool>());
  // wq in the weight's type, as the index's trace was taken.
  const at::Tensor wq = found.codes.to(at::kFloat)
                            .mul(found.scale.repeat_interleave(found.group_size, 1))
                            .to(weight.scalar_type());
  const at::Tensor difference = wq.to(at::kDouble).sub(weight.to(at::kDouble));
  EXPECT_LE(relative(proxy_trace(difference, h), config.at("proxy_trace").get<double>()), 5e-3);
  if (found.scale.equal(scale) && found.codes.equal(code)) {
    EXPECT_TRUE(wq.equal(expected.load("wq")));
  }
  testing::Test::RecordProperty("codes_differ", std::to_string(found.codes.ne(code).sum().item<int64_t>()));
}

// "Hinv_d<damp>" -> damp.
constexpr const char* kFactorPrefix = "Hinv_d";

void collect_layers(const Path& folder, const std::string& suite, const Json& index) {
  for (const Json& layer : index.at("layers")) {
    const std::string name = layer.at("name").get<std::string>();
    const Path path = folder / (name + ".safetensors");
    add(suite, name + ".H", [path, layer] { check_statistics(path, layer); });
    const SafetensorsFile file(path);
    for (const auto& [key, stored] : file.tensors()) {
      if (!key.starts_with(kFactorPrefix)) continue;
      const double damp = std::stod(key.substr(std::string(kFactorPrefix).size()));
      add(suite, name + "." + key, [path, layer, key, damp] { check_factor(path, layer, key, damp); });
    }
    for (const Json& config : layer.at("configs")) {
      const Path result = config.at("file").get<std::string>();
      add(suite, result.stem().string() + ".solve",
          [folder, layer, config] { check_solver(folder, layer, config); });
    }
  }
}

}  // namespace

void collect_solver(const Path& root) {
  for (const Path& folder : folders_with(root, "index.json")) {
    const Json index = read_index(folder);
    const std::string suite = "qqq_solver." + folder.filename().string();
    collect_gram(folder, suite, index);
    collect_scalar(folder, suite, index);
    if (index.contains("layers")) collect_layers(folder, suite, index);
  }
}

}  // namespace gramian::golden
