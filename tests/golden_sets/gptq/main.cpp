// GPTQ under GPT-QModel 7.7.0's rules: solver, orders, fallbacks and packed tensors of every case of the set, with the
// tolerances that its README gives.
#include <ATen/core/Tensor.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "formats/bit_stream.h"
#include "formats/compressed_tensors.h"
#include "formats/gptq.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "solve/fallback.h"
#include "solve/solvers.h"
#include "stats/hessian.h"
#include "stats/patch_rows.h"
#include "support/golden.h"
#include "tensor/ops.h"

namespace gramian::golden {
namespace {

using Json = nlohmann::ordered_json;
using Path = std::filesystem::path;

double relative(double found, double expected) {
  return std::fabs(found - expected) / std::max(std::fabs(expected), 1e-300);
}

double share_of(const at::Tensor& wrong) {
  return wrong.sum().item<double>() / static_cast<double>(wrong.numel());
}

at::Tensor codes_of(const at::Tensor& qweight, int bits, int64_t k) {
  const gptq::Packed packed = {.qweight = qweight,
                               .qzeros = tensor::zeros({1, qweight.size(1) * bits / 32}, at::kInt),
                               .scales = tensor::full({1, qweight.size(1)}, 1, at::kHalf),
                               .g_idx = tensor::zeros({k}, at::kInt),
                               .bias = {}};
  return gptq::unpack(packed, bits, gptq::Version::v2, qweight.size(1), k, "golden").codes;
}

// One case's result and the file's tensors of it.
struct Expected {
  const SafetensorsFile& file;
  std::string name;
  Json config;
  int bits() const { return config.at("bits").get<int>(); }
  at::Tensor load(const char* field) const { return file.load(name + "." + field); }
};

bool has_zero_point_of_zero(const QuantizedLinear& module) {
  return module.zero.defined() && module.zero.eq(-(1 << (module.bits - 1))).any().item<bool>();
}

QuantizedLinear decoded(const Expected& expected, int64_t k) {
  QuantizedLinear module;
  module.bits = expected.bits();
  module.codes = codes_of(expected.load("qweight"), module.bits, k);
  module.scale = expected.load("scale");
  module.group_size = expected.config.at("gs").get<int64_t>();
  if (module.group_size == -1) module.group_size = k;
  module.zero = expected.load("zero").sub(1 << (module.bits - 1)).to(at::kChar);
  module.group_index = expected.load("g_idx");
  return module;
}

// Bytes of packed tensors made of the file's own codes, scales and zeros, so that they do not depend on the solver.
void check_format(const Expected& expected, int64_t k) {
  const at::Tensor qweight = expected.load("qweight");
  const int64_t n = qweight.size(1);
  const QuantizedLinear module = decoded(expected, k);
  const gptq::Packed packed = gptq::pack(module, {}, gptq::Version::v2, "golden");
  EXPECT_TRUE(packed.qweight.equal(qweight));
  EXPECT_TRUE(packed.qzeros.equal(expected.load("qzeros_v2")));
  EXPECT_TRUE(packed.g_idx.equal(expected.load("g_idx")));
  // From the right values: fields of version 1 that no neighbour borrowed from.
  const gptq::Packed stored = {.qweight = qweight,
                               .qzeros = expected.load("qzeros_v1"),
                               .scales = packed.scales,
                               .g_idx = packed.g_idx,
                               .bias = {}};
  const QuantizedLinear read = gptq::unpack(stored, module.bits, gptq::Version::v1, n, k, "golden");
  EXPECT_TRUE(
      (read.zero.defined() ? read.zero : tensor::zeros(module.zero.sizes(), at::kChar)).equal(module.zero));
  if (has_zero_point_of_zero(module)) {
    EXPECT_THROW(gptq::pack(module, {}, gptq::Version::v1, "golden"), Error);
  } else {
    EXPECT_TRUE(gptq::pack(module, {}, gptq::Version::v1, "golden").qzeros.equal(stored.qzeros));
  }
}

void compare(const QuantizedLinear& found, const Expected& expected, double codes_max) {
  const int64_t k = found.codes.size(1), offset = int64_t{1} << (found.bits - 1);
  const at::Tensor codes = codes_of(expected.load("qweight"), found.bits, k), scale = expected.load("scale");
  const double differ = share_of(found.codes.ne(codes));
  EXPECT_LE(differ, codes_max) << "codes";
  testing::Test::RecordProperty("codes_differ", std::to_string(differ));
  const at::Tensor zero = found.zero.defined() ? found.zero : tensor::zeros(scale.sizes(), at::kChar);
  EXPECT_LE(share_of(zero.to(at::kFloat).add(offset).ne(expected.load("zero"))), codes_max) << "zeros";
  EXPECT_LE(share_of(found.scale.sub(scale).abs().div(scale).gt(1e-5)), 2 * codes_max + 0.01) << "scales";
  const at::Tensor natural = tensor::arange(k, at::kInt).div_(found.group_size, "trunc");
  EXPECT_TRUE((found.group_index.defined() ? found.group_index : natural).equal(expected.load("g_idx")));
}

SolveOptions options_of(const Json& config, const std::string& name) {
  const std::string order = config.value("order", "");
  SolveOptions options;
  options.grid = {.kind = GridKind::integer,
                  .bits = config.at("bits").get<int>(),
                  .symmetric = config.at("sym").get<bool>(),
                  .group_size = config.at("gs").get<int64_t>(),
                  .mse = name.find("_mse2.4") != std::string::npos ? 2.4 : 0.0,
                  .one_sided_range = true};
  options.damp_percent = config.value("damp_cfg", config.value("damp", 0.05));
  options.damp_step = config.value("auto", 0.01);
  if (order == "desc" || config.value("desc_act", false)) options.order = ColumnOrder::activation;
  if (order == "gar" || config.value("gar", false)) options.order = ColumnOrder::group_aware;
  options.static_groups = name.ends_with("_static");
  options.clear_dead_columns = true;
  options.fill_zero_groups = true;
  return options;
}

void check_solve(const at::Tensor& weight, const at::Tensor& hessian, const Expected& expected) {
  SolveOptions options = options_of(expected.config, expected.name);
  // Of a rank-deficient Hessian, rounding decides which of many tiny dampings is the first that factors.
  const bool lowrank = expected.name.starts_with("lowrank");
  if (lowrank) options.damp_percent = expected.config.at("damp").get<double>();
  ThreadPool pool(2);
  const Factor factor = factorize(hessian, options.damp_percent, options.damp_step, &pool,
                                  column_order(hessian, options.order, options.grid.group_size));
  ASSERT_TRUE(factor.ok());
  const QuantizedLinear found =
      solve_gptq(weight, factor, expected.config.at("nsamples").get<int64_t>(), options, pool);
  const bool ties = expected.name.starts_with("zerogroup");
  check_format(expected, weight.size(1));
  if (lowrank) {
    // Eight tokens, 128 columns, next to no damping: fp32 decides the factor. Ours, exacter, must not do worse on H.
    const auto objective = [&](const at::Tensor& quantized) {
      const at::Tensor e = quantized.sub(weight).to(at::kDouble);
      return e.matmul(hessian.to(at::kDouble)).mul(e).sum().item<double>();
    };
    EXPECT_LE(objective(found.weight()), 1.05 * objective(decoded(expected, weight.size(1)).weight()));
    return;
  }
  compare(found, expected, ties ? 0.011 : 0.006);
  EXPECT_LE(relative(found.loss, expected.config.at("loss").get<double>()), 1e-3);
}

Smoother smoother_of(const Json& config) {
  if (!config.contains("smooth")) return {};
  const Json& smooth = config.at("smooth");
  std::string text = smooth.at("name").get<std::string>();
  if (text == "rowcol") text = smooth.at("axis").get<std::string>() == "row" ? "row" : "column";
  for (const char* number : {"percentile", "low", "high", "k", "pct", "mu", "steps", "maxshrink"}) {
    if (smooth.contains(number)) text += ":" + smooth.at(number).dump();
  }
  Smoother smoother = parse_smoother(text);
  smoother.group_size_min = smooth.at("group_size_threshold").get<int64_t>();
  return smoother;
}

void check_fallback(const at::Tensor& weight, const Expected& expected) {
  const std::string strategy = expected.name.substr(std::string("fallback_").size());
  ThreadPool pool(2);
  const QuantizedLinear found =
      solve_fallback(weight, options_of(expected.config, expected.name).grid,
                     {.strategy = parse_fallback_strategy(strategy.substr(0, strategy.find('_'))),
                      .smoother = smoother_of(expected.config)},
                     pool);
  compare(found, expected, 0.003);
  // "fallback(rtn): 0.0044370"
  const std::string loss = expected.config.at("loss").get<std::string>();
  EXPECT_NEAR(found.weight().sub(weight).abs().mean().item<double>(),
              std::stod(loss.substr(loss.find(':') + 1)), 2e-7);
  check_format(expected, weight.size(1));
}

void check_factor(const SafetensorsFile& file, const std::string& name, const Json& config) {
  const at::Tensor hessian = file.load(name + ".H");
  if (!hessian.isfinite().all().item<bool>()) {
    // The peer goes on without a factor; ours names the damage.
    EXPECT_THROW(factorize(hessian, 0.05, 0.01), Error);
    return;
  }
  const Factor factor =
      factorize(hessian, config.at("damp_cfg").get<double>(), config.at("auto").get<double>());
  ASSERT_EQ(factor.ok(), config.at("factor").get<bool>());
  if (!factor.ok()) return;
  const at::Tensor expected = file.load(name + ".Hinv_upper");
  const double error =
      factor.upper.triu().sub(expected).norm().item<double>() / expected.norm().item<double>();
  EXPECT_LE(error, 2e-4);
}

// What compressed-tensors stored of one layer: decoded as it says, and packed again to the same bytes.
void check_compressed(const SafetensorsFile& file, const std::string& preset) {
  const LinearFormat& format = compressed_tensors_format();
  GridOptions grid = {.bits = preset == "W8A8" ? 8 : 4,
                      .symmetric = preset != "W4A16_ASYM",
                      .group_size = preset == "W8A8" ? -1 : 128,
                      .activation_bits = preset == "W8A8" ? 8 : 16};
  grid = format.settle({.grid = grid}, DType::bf16).grid;
  const at::Tensor source = file.load("weight_bf16");
  const int64_t n = source.size(0), k = source.size(1);
  const LinearShape shape{n, k, false, DType::bf16};
  PackedParts stored;
  for (const PlannedTensor& part : format.parts(shape, grid)) {
    stored[part.name] = file.load(preset + "." + part.name);
    EXPECT_EQ(tensor::dtype_of(stored.at(part.name)), part.dtype) << part.name;
    EXPECT_EQ(stored.at(part.name).sizes(), at::IntArrayRef(part.shape)) << part.name;
  }
  const at::Tensor weight = format.unpack(stored, n, k, grid, "golden").weight;
  // Within half a step and the rounding of bf16 of the source.
  const int64_t width = grid.group_size == -1 ? k : grid.group_size;
  const at::Tensor scale = stored.at("weight_scale").to(at::kFloat).repeat_interleave(width, 1);
  EXPECT_LE(weight.sub(source.to(at::kFloat)).abs().div(scale).max().item<double>(),
            grid.bits == 8 ? 1 : 0.6);
  QuantizedLinear module;
  module.bits = grid.bits;
  module.group_size = width;
  module.scale = stored.at("weight_scale").to(at::kFloat);
  module.codes = weight.div(scale).round().to(at::kChar);
  if (!grid.symmetric) {
    module.zero = unpack_bits(stored.at("weight_zero_point").t(), n, 4, 8).t().contiguous();
    module.codes.add_(module.zero.repeat_interleave(width, 1));
  }
  for (const auto& [name, tensor] : format.pack(module, {"golden", shape, source, {}}, grid))
    EXPECT_TRUE(tensor.equal(stored.at(name))) << name;
}

at::Tensor hessian_of(const at::Tensor& x) {
  HessianAccumulator accumulator(x.size(-1), 1);
  accumulator.add(0, x);
  return accumulator.merge();
}

// The cases of convolutions: their names say kernel, stride, padding and channels.
const std::map<std::string, PatchRule>& convolutions() {
  static const std::map<std::string, PatchRule> known = {
      {"hess_conv1d_k3_s2_p1_c8", {.kernel = {3, 1}, .stride = {2, 1}, .padding = {1, 0}}},
      {"hess_conv2d_k3x2_s2_c4", {.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}}},
      {"hess_conv2d_groups2_c8", {.kernel = {3, 3}, .groups = 2}}};
  return known;
}

void collect(const Path& root) {
  for (const Path& folder : folders_with(root, "index.json")) {
    const Json index = parse_json(read_text(folder / "index.json"), (folder / "index.json").string());
    const Path compressed = folder / "compressed_tensors_q_proj.safetensors";
    for (const char* preset : {"W4A16", "W4A16_ASYM", "W8A8"}) {
      if (!std::filesystem::exists(compressed) ||
          !SafetensorsFile(compressed).contains(std::string(preset) + ".weight_scale"))
        continue;
      add("gptq.compressed_tensors", preset, [=] { check_compressed(SafetensorsFile(compressed), preset); });
    }
    for (const auto& [key, config] : index.at("cases").items()) {
      const size_t slash = key.find('/');
      const std::string layer = key.substr(0, slash), name = key.substr(slash + 1);
      if (layer != "edge") {
        add("gptq." + layer, name, [=] {
          const SafetensorsFile data(folder / ("layer_" + layer + ".safetensors"));
          const SafetensorsFile cases(folder / ("cases_" + layer + ".safetensors"));
          check_solve(data.load("w"), data.load("H"), {cases, name, config});
        });
        continue;
      }
      add("gptq.edge", name, [=] {
        const SafetensorsFile file(folder / "edge.safetensors");
        const Expected expected = {file, name, config};
        if (name.starts_with("inv_")) return check_factor(file, name, config);
        if (name.starts_with("hess_")) {
          const at::Tensor x = expected.load("x"), h = expected.load("H");
          const auto convolution = convolutions().find(name);
          const at::Tensor rows =
              convolution == convolutions().end() ? x : patch_rows(x, convolution->second);
          EXPECT_EQ(rows.numel() / rows.size(-1), config.at("nsamples").get<int64_t>());
          EXPECT_LE(hessian_of(rows).sub(h).abs().max().item<double>(), 1e-5 * h.abs().max().item<double>());
          return;
        }
        const at::Tensor weight = file.load(name.starts_with("zerogroup") ? "zerogroup.w" : "edge.w");
        if (name.starts_with("fallback_")) return check_fallback(weight, expected);
        check_solve(weight, hessian_of(expected.load("x")), expected);
      });
    }
  }
}

}  // namespace
}  // namespace gramian::golden

int main(int argc, char** argv) { return gramian::golden::run(argc, argv, "gptq", gramian::golden::collect); }
