#include "formats/linear_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "formats/gptq_format.h"
#include "formats/qqq_format.h"
#include "solve/float_grids.h"
#include "solve/scale_search.h"
#include "solve/solvers.h"
#include "support/tiny_model.h"
#include "tensor/ops.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;
using testing_support::random_normal;

struct Module {
  SolveOptions solve;
  PackSource source;
  QuantizedLinear quantized;
  PackedParts parts;
};

Module packed(const LinearFormat& format, const GridOptions& grid, int64_t n, int64_t k) {
  ThreadPool pool(2);
  Module module;
  module.source = {"layer.proj",
                   {n, k, true},
                   random_normal({n, k}, 3).add_(0.5).mul_(0.05).to(at::kBFloat16),
                   random_normal({n}, 4).to(at::kBFloat16)};
  module.solve = format.settle({.grid = grid}, DType::bf16);
  const at::Tensor& weight = module.source.weight;
  module.quantized = grid.kind == GridKind::nvfp4
                         ? solve_scale_search(weight, {}, largest_magnitude(weight), {}, pool)
                     : grid.kind == GridKind::fp8 ? solve_fp8(weight, module.solve.grid, pool)
                                                  : solve_rtn(weight, module.solve.grid, pool);
  module.parts = format.pack(module.quantized, module.source, module.solve.grid);
  return module;
}

struct Kind {
  const char* format;
  GridOptions grid;
  int64_t n = 64, k = 256;
};

class LinearFormatTest : public testing::TestWithParam<Kind> {};

// What a reader multiplies with is what the solver chose, to the last bit, and the tensors are those that were planned.
TEST_P(LinearFormatTest, StoresWhatTheSolverChose) {
  const Kind& kind = GetParam();
  const LinearFormat& format = find_format(kind.format);
  const Module module = packed(format, kind.grid, kind.n, kind.k);
  const GridOptions& grid = module.solve.grid;
  const std::vector<PlannedTensor> planned = format.parts(module.source.shape, grid);
  ASSERT_EQ(planned.size(), module.parts.size());
  for (const PlannedTensor& part : planned) {
    ASSERT_TRUE(module.parts.contains(part.name)) << part.name;
    EXPECT_EQ(tensor::dtype_of(module.parts.at(part.name)), part.dtype) << part.name;
    EXPECT_EQ(module.parts.at(part.name).sizes(), at::IntArrayRef(part.shape)) << part.name;
  }
  const DecodedLinear decoded = format.unpack(module.parts, kind.n, kind.k, grid, "layer.proj");
  if (grid.kind != GridKind::qqq) {
    EXPECT_TRUE(decoded.weight.equal(module.quantized.weight()));
  }
  EXPECT_LT(decoded.weight.sub(module.source.weight).abs().max().item<double>(), 0.2);
  EXPECT_TRUE(decoded.bias.to(at::kFloat).allclose(module.source.bias.to(at::kFloat), 1e-3));
}

// config.json gives the grid back, and no other format takes it for its own.
TEST_P(LinearFormatTest, ConfigurationReadsBack) {
  const LinearFormat& format = find_format(GetParam().format);
  const SolveOptions solve = format.settle({.grid = GetParam().grid}, DType::bf16);
  const Json fields = format.config({.solve = solve, .method = "rtn", .skipped = {}, .plain = {"lm_head"}});
  const auto stored = stored_format({{"quantization_config", fields}}, "config.json");
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->format, &format);
  EXPECT_EQ(stored->grid.bits, solve.grid.bits);
  EXPECT_EQ(stored->grid.group_size, solve.grid.group_size);
  EXPECT_EQ(stored->grid.symmetric, solve.grid.symmetric);
  EXPECT_EQ(stored->grid.activation_bits, solve.grid.activation_bits);
  EXPECT_EQ(stored->grid.kind, solve.grid.kind);
}

// A part that is missing, of another type or another shape is named.
TEST_P(LinearFormatTest, DamagedPartsAreNamed) {
  const Kind& kind = GetParam();
  const LinearFormat& format = find_format(kind.format);
  const Module module = packed(format, kind.grid, kind.n, kind.k);
  for (const auto& [name, tensor] : module.parts) {
    // Without group scales it is another layout; a bias may be missing.
    const bool optional = name == "s_group" || name == "bias";
    for (const auto& damage : {at::Tensor(), tensor.to(at::kDouble), tensor.slice(0, 1)}) {
      if (!damage.defined() && optional) continue;
      PackedParts parts = module.parts;
      parts[name] = damage;
      if (!damage.defined()) parts.erase(name);
      const Error error =
          error_of([&] { format.unpack(parts, kind.n, kind.k, module.solve.grid, "layer.proj"); });
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << name;
      EXPECT_NE(std::string(error.what()).find("layer.proj"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LinearFormatTest,
    testing::Values(
        Kind{"qqq", {}}, Kind{"qqq", {.group_size = -1}}, Kind{"gptq", {.bits = 4}},
        Kind{"gptq", {.bits = 2, .group_size = 32}}, Kind{"gptq", {.bits = 3, .group_size = 16}},
        Kind{"gptq", {.bits = 8, .group_size = -1}},
        Kind{"gptq", {.bits = 4, .symmetric = false, .group_size = 64, .mse = 0}},
        Kind{"gptq", {.bits = 4, .group_size = 96}, 32, 160},
        Kind{"gptq_v2", {.bits = 2, .symmetric = false, .group_size = 32}},
        Kind{"gptq_v2", {.bits = 3, .symmetric = false, .group_size = 32}},
        Kind{"gptq_v2", {.bits = 8, .symmetric = false, .group_size = -1}},
        Kind{"compressed-tensors", {.bits = 4}},
        Kind{"compressed-tensors", {.bits = 4, .symmetric = false, .group_size = 32}},
        Kind{"compressed-tensors", {.bits = 8, .group_size = -1}},
        Kind{"compressed-tensors", {.bits = 8, .group_size = -1, .activation_bits = 8}},
        Kind{"compressed-tensors", {.bits = 4, .group_size = 128, .activation_bits = 8}},
        Kind{"compressed-tensors", {.kind = GridKind::nvfp4, .group_size = 16, .mse = 0}},
        Kind{"compressed-tensors", {.kind = GridKind::fp8, .bits = 8, .group_size = -1, .mse = 0}},
        Kind{"compressed-tensors",
             {.kind = GridKind::fp8, .bits = 8, .group_size = -1, .mse = 0, .activation_bits = 16},
             24,
             40}));

TEST(LinearFormats, ZeroPointsOfZeroAreNotBorrowedFromTheNeighbour) {
  ThreadPool pool(1);
  // The second output has no negative weight: its zero point is 0.
  at::Tensor weight = random_normal({32, 32}, 9);
  weight.select(0, 1).abs_();
  const LinearShape shape{32, 32, false};
  const auto grid =
      gptq_format().settle({.grid = {.symmetric = false, .group_size = 32, .mse = 0}}, DType::f32).grid;
  const QuantizedLinear module = solve_rtn(weight, grid, pool);
  const PackSource source{"layer.proj", shape, weight, {}};
  const Error error = error_of([&] { gptq_format().pack(module, source, grid); });
  EXPECT_NE(std::string(error.what()).find("gptq_v2"), std::string::npos) << error.what();
  const PackedParts parts = gptq_v2_format().pack(module, source, grid);
  EXPECT_TRUE(gptq_v2_format().unpack(parts, 32, 32, grid, "layer.proj").weight.equal(module.weight()));
}

TEST(LinearFormats, WhatAFormatCannotHoldIsRefused) {
  const auto refused = [](const char* format, const SolveOptions& solve) {
    return std::string(error_of([&] { find_format(format).settle(solve, DType::bf16); }).what());
  };
  EXPECT_NE(refused("qqq", {.grid = {.bits = 8}}).find("--bits"), std::string::npos);
  EXPECT_NE(refused("qqq", {.grid = {.symmetric = false}}).find("--asym"), std::string::npos);
  EXPECT_NE(refused("qqq", {.grid = {.group_size = 64}}).find("--group-size"), std::string::npos);
  EXPECT_NE(refused("qqq", {.grid = {.activation_bits = 16}}).find("--activation-bits"), std::string::npos);
  EXPECT_NE(refused("qqq", {.grid = {}, .order = ColumnOrder::activation}).find("--static-groups"),
            std::string::npos);
  EXPECT_NE(refused("gptq", {.grid = {.activation_bits = 8}}).find("compressed-tensors"), std::string::npos);
  EXPECT_NE(refused("compressed-tensors", {.grid = {.bits = 3}}).find("--bits"), std::string::npos);
  EXPECT_NE(refused("compressed-tensors", {.grid = {.symmetric = false, .activation_bits = 8}}).find("--sym"),
            std::string::npos);
  EXPECT_NE(refused("compressed-tensors", {.grid = {}, .order = ColumnOrder::activation}).find("group-aware"),
            std::string::npos);
  EXPECT_EQ(error_of([] { find_format("awq"); }).kind(), ErrorKind::invalid_argument);
}

// Rules of other tools: negative ones apart, the first that matches counts.
TEST(LinearFormats, RulesAreReadInTheirOrder) {
  const Json fields = {{"quant_method", "gptq"},
                       {"bits", 4},
                       {"group_size", 128},
                       {"dynamic",
                        {{"-:.*k_proj", Json::object()},
                         {"+:.*\\.down_proj", {{"bits", 8}, {"group_size", 64}, {"mse", 2.4}}},
                         {".*_proj", {{"sym", false}}},
                         {"lm_head", {{"bits", 2}}}}},
                       {"lm_head", true}};
  const auto stored = stored_format({{"quantization_config", fields}}, "config.json");
  ASSERT_TRUE(stored);
  EXPECT_TRUE(stored->head);
  const GridOptions down = stored->of("model.layers.0.mlp.down_proj").grid;
  EXPECT_EQ(down.bits, 8);
  EXPECT_EQ(down.group_size, 64);
  EXPECT_TRUE(down.symmetric);
  EXPECT_FALSE(stored->of("model.layers.0.mlp.up_proj").grid.symmetric);
  EXPECT_EQ(stored->of("lm_head").grid.bits, 2);
  EXPECT_EQ(stored->of("model.other").grid.bits, 4);

  const Json weights = {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}};
  Json wide = weights;
  wide["num_bits"] = 8;
  const Json groups = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"ignore", {"lm_head"}},
      {"config_groups",
       {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}},
        {"group_1", {{"targets", {"re:.*down_proj", "model.layers.1.mlp.up_proj"}}, {"weights", wide}}}}}};
  const auto several = stored_format({{"quantization_config", groups}}, "config.json");
  ASSERT_TRUE(several);
  EXPECT_FALSE(several->head);
  EXPECT_EQ(several->of("model.layers.0.mlp.down_proj").grid.bits, 8);
  EXPECT_EQ(several->of("model.layers.1.mlp.up_proj").grid.bits, 8);
  EXPECT_EQ(several->of("model.layers.11.mlp.up_proj").grid.bits, 4);
}

TEST(LinearFormats, ConfigurationsThatAreNotReadAreRefused) {
  const auto refused = [](const Json& fields) {
    return error_of([&] { stored_format({{"quantization_config", fields}}, "config.json"); });
  };
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  for (const auto& [key, value] : {std::pair<const char*, Json>{"bits", 5},
                                   {"bits", "4"},
                                   {"group_size", 0},
                                   {"sym", "yes"},
                                   {"checkpoint_format", "marlin"},
                                   {"lm_head", "yes"},
                                   {"dynamic", {{".*v_proj", {{"bits", 5}}}}},
                                   {"dynamic", {{".*v_proj", 8}}}}) {
    Json fields = gptq;
    fields[key] = value;
    EXPECT_EQ(refused(fields).kind(), ErrorKind::unsupported) << key << " " << value;
  }
  EXPECT_EQ(refused({{"quant_method", "awq"}}).kind(), ErrorKind::unsupported);
  EXPECT_EQ(refused("gptq").kind(), ErrorKind::unsupported);
  EXPECT_EQ(refused({{"quant_method", "compressed-tensors"}, {"config_groups", Json::object()}}).kind(),
            ErrorKind::unsupported);
}

}  // namespace
}  // namespace gramian
