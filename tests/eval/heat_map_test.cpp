#include "eval/heat_map.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"

namespace gramian {
namespace {

using testing_support::error_of;
using Texts = std::vector<std::string>;

std::vector<ReportModule> modules(const std::vector<std::pair<std::string, std::optional<double>>>& named) {
  std::vector<ReportModule> modules;
  modules.reserve(named.size());
  for (const auto& [name, error] : named)
    modules.push_back({.name = name, .out_features = 8, .in_features = 16, .relative_error = error});
  return modules;
}

HeatScale scale_of(const std::vector<double>& errors) {
  static std::vector<ReportModule> kept;
  kept.clear();
  for (const double error : errors)
    kept.push_back({.name = "layers." + std::to_string(kept.size()) + ".q",
                    .out_features = 1,
                    .in_features = 1,
                    .relative_error = error});
  return HeatScale({heat_map(kept, "x")});
}

TEST(HeatMap, LayersByKinds) {
  const auto list = modules({{"model.layers.0.self_attn.q_proj", 0.1},
                             {"model.layers.0.mlp.down_proj", 0.2},
                             {"model.layers.10.self_attn.q_proj", {}},
                             {"lm_head", 0.3}});
  const HeatMap map = heat_map(list, "x");
  EXPECT_EQ(map.layers, (Texts{"0", "10", ""}));
  EXPECT_EQ(map.kinds, (Texts{"self_attn.q_proj", "mlp.down_proj", "lm_head"}));
  const std::vector<const ReportModule*> expected{&list[0], &list[1], nullptr, &list[2], nullptr,
                                                  nullptr,  nullptr,  nullptr, &list[3]};
  EXPECT_EQ(map.cells, expected);
  EXPECT_TRUE(heat_map({}, "x").cells.empty());
}

TEST(HeatMap, ShortKinds) {
  EXPECT_EQ(short_kind("self_attn.q_proj"), "q");
  EXPECT_EQ(short_kind("mlp.experts.3.gate_proj"), "gate");
  EXPECT_EQ(short_kind("lm_head"), "lm_head");
  EXPECT_EQ(short_kind("_proj"), "_proj");
  EXPECT_EQ(short_kind("x."), "");
}

TEST(HeatMap, RefusesWhatIsNoTable) {
  const auto twice = modules({{"a.0.q", 0.1}, {"a.0.q", 0.2}});
  EXPECT_EQ(error_of([&] { heat_map(twice, "doc"); }).kind(), ErrorKind::corrupt_data);
  std::vector<ReportModule> sparse(400);
  for (size_t i = 0; i < sparse.size(); ++i) sparse[i].name = str("l.", i, ".k", i);
  EXPECT_EQ(error_of([&] { heat_map(sparse, "doc"); }).kind(), ErrorKind::corrupt_data);
  sparse.resize(300);
  EXPECT_EQ(heat_map(sparse, "doc").cells.size(), 90000u);
}

TEST(HeatScale, StepsOfEqualRatio) {
  const HeatScale scale = scale_of({0.01, 2.56, 0.3});
  for (int i = 0; i < HeatScale::kSteps; ++i) {
    EXPECT_NEAR(scale.bound(i), 0.01 * std::pow(2, i), 1e-12);
    EXPECT_EQ(scale.step(scale.bound(i) * 1.001), i);
    EXPECT_EQ(scale.step(scale.bound(i + 1) * 0.999), i);
  }
  EXPECT_EQ(scale.step(0), 0);
  EXPECT_EQ(scale.step(2.56), HeatScale::kSteps - 1);
  EXPECT_EQ(scale.step(1e9), HeatScale::kSteps - 1);
}

TEST(HeatScale, OneValueZerosAndNothing) {
  EXPECT_EQ(scale_of({0.05, 0.05}).step(0.05), 0);
  EXPECT_EQ(scale_of({0.05}).bound(HeatScale::kSteps), 0.05);
  const HeatScale zeros = scale_of({0, 0});
  EXPECT_EQ(zeros.step(0), 0);
  EXPECT_EQ(zeros.bound(0), 0);
  EXPECT_EQ(HeatScale({}).bound(0), 0);
}

}  // namespace
}  // namespace gramian
