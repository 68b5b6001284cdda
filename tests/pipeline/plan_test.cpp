#include "pipeline/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/qqq_format.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::random_normal;
using testing_support::TinyModel;

struct FittingModel : TinyModel {
  FittingModel()
      : TinyModel({.hidden = 256, .intermediate = 384, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 20}) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kHalf);
  }
};

const PlannedTensor* tensor_of(const QuantizePlan& plan, const std::string& name) {
  const auto found =
      std::find_if(plan.tensors.begin(), plan.tensors.end(), [&](const auto& t) { return t.name == name; });
  return found == plan.tensors.end() ? nullptr : &*found;
}

void expect_tensor(const QuantizePlan& plan, const std::string& name, DType dtype,
                   const std::vector<int64_t>& shape) {
  const PlannedTensor* found = tensor_of(plan, name);
  ASSERT_NE(found, nullptr) << name;
  EXPECT_EQ(found->dtype, dtype) << name;
  EXPECT_EQ(found->shape, shape) << name;
}

TEST(Plan, ReplacesEveryLinearAndCopiesTheRest) {
  FittingModel tiny;
  tiny.tensors["model.extra.buffer"] = tensor::zeros({3}, at::kLong);
  const Model model = tiny.open();
  const QuantizePlan plan = make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, false);
  ASSERT_EQ(plan.layers.size(), 2u);
  int64_t weights = 0;
  for (int64_t i = 0; i < 2; ++i) {
    std::vector<std::string> expected;
    for (const auto& group : model.module_names(i))
      expected.insert(expected.end(), group.begin(), group.end());
    ASSERT_EQ(plan.layers[static_cast<size_t>(i)].size(), expected.size());
    for (size_t m = 0; m < expected.size(); ++m) {
      const PlannedModule& module = plan.layers[static_cast<size_t>(i)][m];
      EXPECT_EQ(module.linear.name, expected[m]);
      EXPECT_TRUE(module.quantize);
      const int64_t n = module.linear.out_features, k = module.linear.in_features;
      weights += n * k;
      expect_tensor(plan, module.linear.name + ".B", DType::i32, {k / 16, 2 * n});
      expect_tensor(plan, module.linear.name + ".s_channel", DType::f32, {1, n});
      expect_tensor(plan, module.linear.name + ".s_group", DType::f16, {k / 128, n});
      EXPECT_EQ(tensor_of(plan, module.linear.name + ".weight"), nullptr);
      EXPECT_EQ(plan.find(module.linear.name), &module);
    }
  }
  EXPECT_EQ(plan.quantized_weights(), weights);
  EXPECT_TRUE(plan.skipped().empty());
  EXPECT_EQ(plan.find("lm_head"), nullptr);
  expect_tensor(plan, "lm_head.weight", DType::f16, {20, 256});
  expect_tensor(plan, "model.extra.buffer", DType::i64, {3});
  // Embedding, head, final norm, the buffer, and two norms a layer.
  EXPECT_EQ(plan.copied.size(), 8u);
  EXPECT_EQ(plan.tensors.size(), 8u + 14 * 3);
  EXPECT_TRUE(std::is_sorted(plan.tensors.begin(), plan.tensors.end(),
                             [](const PlannedTensor& a, const PlannedTensor& b) { return a.name < b.name; }));
}

// Vision tensors, multi-token-prediction layers and layers beyond num_hidden_layers are copied byte for byte.
TEST(Plan, TouchesTheDecoderOfAWrappedModelOnly) {
  FittingModel tiny;
  std::map<std::string, at::Tensor> renamed;
  for (const auto& [name, tensor] : tiny.tensors)
    renamed[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] = tensor;
  const std::vector<std::string> foreign{"model.vision_tower.layers.0.self_attn.q_proj.weight",
                                         "model.language_model.layers.2.self_attn.q_proj.weight",
                                         "mtp.layers.0.self_attn.q_proj.weight"};
  for (const std::string& name : foreign) renamed[name] = random_normal({256, 256}, 3);
  tiny.tensors = renamed;
  tiny.config = {{"model_type", "whole"}, {"text_config", tiny.config}};
  const QuantizePlan plan = make_plan(tiny.open(), qqq_format(), {.grid = {.group_size = 128}}, false);
  for (const std::string& name : foreign) {
    EXPECT_NE(std::find(plan.copied.begin(), plan.copied.end(), name), plan.copied.end()) << name;
    expect_tensor(plan, name, DType::f32, {256, 256});
  }
  expect_tensor(plan, "model.language_model.layers.1.self_attn.q_proj.B", DType::i32, {16, 512});
  EXPECT_EQ(plan.layers.size(), 2u);
  EXPECT_EQ(tensor_of(plan, "model.language_model.layers.0.mlp.up_proj.weight"), nullptr);
}

TEST(Plan, OneScalePerRowHasNoGroupTensor) {
  FittingModel tiny;
  const QuantizePlan plan = make_plan(tiny.open(), qqq_format(), {.grid = {.group_size = -1}}, false);
  EXPECT_NE(tensor_of(plan, "model.layers.0.mlp.up_proj.s_channel"), nullptr);
  EXPECT_EQ(tensor_of(plan, "model.layers.0.mlp.up_proj.s_group"), nullptr);
  // A group that spans the row is the same layout.
  TinyModel narrow({.hidden = 128, .intermediate = 256, .heads = 4, .kv_heads = 2, .layers = 1, .vocab = 20});
  const QuantizePlan mixed = make_plan(narrow.open(), qqq_format(), {.grid = {.group_size = 128}}, false);
  EXPECT_EQ(tensor_of(mixed, "model.layers.0.mlp.up_proj.s_group"), nullptr);
  EXPECT_NE(tensor_of(mixed, "model.layers.0.mlp.down_proj.s_group"), nullptr);
}

TEST(Plan, BiasesAreStoredInHalf) {
  FittingModel tiny;
  tiny.config["mlp_bias"] = true;
  for (int i = 0; i < 2; ++i) {
    for (const std::string part : {"gate", "up", "down"}) {
      const std::string name = str("model.layers.", i, ".mlp.", part, "_proj");
      tiny.tensors[name + ".bias"] = random_normal({tiny.tensors.at(name + ".weight").size(0)}, 3);
    }
  }
  const QuantizePlan plan = make_plan(tiny.open(), qqq_format(), {.grid = {.group_size = 128}}, false);
  expect_tensor(plan, "model.layers.1.mlp.up_proj.bias", DType::f16, {384});
  EXPECT_EQ(std::count(plan.copied.begin(), plan.copied.end(), "model.layers.1.mlp.up_proj.bias"), 0);
}

TEST(Plan, ListsEveryLayerThatDoesNotFit) {
  // 320 columns are no multiple of 128: down_proj reads them, gate and up write them.
  TinyModel tiny({.hidden = 256, .intermediate = 320, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 20});
  const Model model = tiny.open();
  const Error error = error_of([&] { make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, false); });
  EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  const std::string text = error.what();
  EXPECT_NE(text.find("2 linear layer(s)"), std::string::npos) << text;
  EXPECT_NE(text.find("model.layers.0.mlp.down_proj [256 x 320]"), std::string::npos) << text;
  EXPECT_NE(text.find("model.layers.1.mlp.down_proj [256 x 320]"), std::string::npos) << text;
  EXPECT_NE(text.find("--skip-unfit"), std::string::npos) << text;

  const QuantizePlan plan = make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, true);
  EXPECT_EQ(plan.skipped(),
            (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}));
  EXPECT_FALSE(plan.find("model.layers.0.mlp.down_proj")->skip_reason.empty());
  expect_tensor(plan, "model.layers.0.mlp.down_proj.weight", DType::f32, {256, 320});
  EXPECT_EQ(tensor_of(plan, "model.layers.0.mlp.down_proj.B"), nullptr);
  EXPECT_NE(tensor_of(plan, "model.layers.0.mlp.up_proj.B"), nullptr);
}

TEST(Plan, RefusesAModelThatFitsNowhere) {
  TinyModel tiny;  // 32 columns
  const Model model = tiny.open();
  for (const bool skip : {false, true}) {
    EXPECT_EQ(error_of([&] { make_plan(model, qqq_format(), {.grid = {.group_size = 128}}, skip); }).kind(),
              ErrorKind::unsupported);
  }
}

TEST(Plan, ChecksTheCheckpointFirst) {
  FittingModel tiny;
  tiny.tensors.erase("model.layers.1.mlp.up_proj.weight");
  const Error error =
      error_of([&] { make_plan(tiny.open(), qqq_format(), {.grid = {.group_size = 128}}, false); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  EXPECT_NE(std::string(error.what()).find("model.layers.1.mlp.up_proj.weight"), std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace gramian
