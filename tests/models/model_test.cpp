#include "models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "support/sealed_tensor.h"
#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::error_of;
using testing_support::max_difference;
using testing_support::random_normal;
using testing_support::TinyModel;

bool holds(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

TEST(Survey, ListsTheLinearsInTheOrderOfThePauses) {
  TinyModel tiny;
  const Model model = tiny.open();
  const auto layers = model.survey();
  ASSERT_EQ(layers.size(), 2u);
  for (int64_t i = 0; i < 2; ++i) {
    std::vector<std::string> expected, found;
    for (const auto& group : model.module_names(i))
      expected.insert(expected.end(), group.begin(), group.end());
    for (const Linear& linear : layers[static_cast<size_t>(i)]) {
      found.push_back(linear.name);
      EXPECT_EQ(linear.op, nullptr);
      EXPECT_FALSE(linear.has_bias);
      EXPECT_EQ(tiny.tensors.at(linear.name + ".weight").sizes(),
                at::IntArrayRef({linear.out_features, linear.in_features}));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Survey, ReportsAllProblemsAtOnce) {
  TinyModel tiny;
  tiny.config["attention_bias"] = true;
  tiny.tensors.erase("model.layers.1.mlp.down_proj.weight");
  tiny.tensors["model.layers.0.input_layernorm.weight"] = random_normal({31}, 1);
  tiny.tensors["model.layers.0.self_attn.k_proj.weight"] = tensor::zeros({16, 32}, at::kInt);
  const Model model = tiny.open();
  const Error error = error_of([&] { model.survey(); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  // Three faults and four biases a layer.
  EXPECT_TRUE(holds(error, "11 tensors")) << error.what();
  for (const char* text :
       {"model.layers.1.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight", "[31]", "[32]",
        "model.layers.0.self_attn.k_proj.weight", "I32", "model.layers.1.self_attn.q_proj.bias"}) {
    EXPECT_TRUE(holds(error, text)) << text << " is not in: " << error.what();
  }
}

TEST(Model, RefusesDamageOutsideTheLayers) {
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    TinyModel tiny;
    tiny.tensors.erase(name);
    const Error error = error_of([&] { tiny.open(); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
    EXPECT_TRUE(holds(error, name)) << error.what();
  }
  TinyModel tiny;
  tiny.config["vocab_size"] = 51;
  EXPECT_EQ(error_of([&] { tiny.open(); }).kind(), ErrorKind::corrupt_data);
}

at::Tensor logits_of(const Model& model) { return model.logits(random_normal({3, 32}, 9)); }

TEST(Head, TiedOrStoredOrRefused) {
  const at::Tensor states = random_normal({3, 32}, 9);
  TinyModel stored;
  const at::Tensor by_head = states.matmul(stored.tensors.at("lm_head.weight").t());
  const at::Tensor by_embedding = states.matmul(stored.tensors.at("model.embed_tokens.weight").t());
  EXPECT_LT(max_difference(logits_of(stored.open()), by_head), 1e-5);
  // An explicit "treat as tied" fills a gap, it does not replace a head.
  EXPECT_LT(max_difference(logits_of(stored.open({.treat_as_tied = true})), by_head), 1e-5);

  TinyModel missing;
  missing.tensors.erase("lm_head.weight");
  const Error error = error_of([&] { missing.open(); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  EXPECT_TRUE(holds(error, "lm_head.weight")) << error.what();
  EXPECT_TRUE(holds(error, "--treat-as-tied")) << error.what();
  EXPECT_LT(max_difference(logits_of(missing.open({.treat_as_tied = true})), by_embedding), 1e-5);
  missing.config["tie_word_embeddings"] = true;
  EXPECT_LT(max_difference(logits_of(missing.open()), by_embedding), 1e-5);

  stored.config["tie_word_embeddings"] = true;
  EXPECT_LT(max_difference(logits_of(stored.open()), by_head), 1e-5);
}

TEST(Model, LogitsAreTakenInChunksOfTheVocabulary) {
  TinyModel tiny(
      {.hidden = 8, .intermediate = 8, .heads = 1, .kv_heads = 1, .layers = 1, .vocab = 2 * 8192 + 3});
  const Model model = tiny.open({.dtype = at::kBFloat16});
  const at::Tensor states = random_normal({5, 8}, 3).to(at::kBFloat16);
  const at::Tensor head = tiny.tensors.at("lm_head.weight").to(at::kBFloat16).to(at::kDouble);
  const at::Tensor found = model.logits(states);
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_LT(max_difference(found, states.to(at::kDouble).matmul(head.t())), 1e-5);
}

TEST(Model, CapsItsLogits) {
  TinyModel tiny;
  const at::Tensor states = random_normal({3, 32}, 9).mul(4);
  const at::Tensor plain = tiny.open().logits(states);
  ASSERT_GT(plain.abs().max().item<double>(), 10);
  tiny.config["model_type"] = "gemma3_text";
  tiny.config["final_logit_softcapping"] = 3.0;
  EXPECT_LT(max_difference(tiny.open().logits(states), plain.div(3).tanh().mul(3)), 1e-5);
}

TEST(Model, ScalesItsEmbeddingByARoundedFactor) {
  TinyModel tiny;
  tiny.config["model_type"] = "gemma";
  const at::Tensor ids = tensor::arange(50, at::kLong);
  const at::Tensor stored = tiny.tensors.at("model.embed_tokens.weight");
  EXPECT_LT(max_difference(tiny.open().embed(ids), stored.mul(std::sqrt(32.0))), 1e-5);
  // sqrt(32) is 5.65625 in bf16.
  const at::Tensor rows = stored.to(at::kBFloat16);
  const at::Tensor found = tiny.open({.dtype = at::kBFloat16}).embed(ids);
  EXPECT_TRUE(found.equal(rows.to(at::kFloat).mul(5.65625).to(at::kBFloat16)));
  EXPECT_FALSE(found.equal(rows.mul(std::sqrt(32.0))));
}

// Neither opening a model nor its hidden states touch the head, also where logits will widen it.
TEST(Model, OnlyLogitsReadTheHead) {
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
    TinyModel tiny({.vocab = 4096});
    at::Tensor& head = tiny.tensors.at("lm_head.weight");
    head = head.to(stored);
    const auto checkpoint = std::make_shared<const Checkpoint>(tiny.save());
    std::optional<testing_support::SealedTensor> sealed(std::in_place, *checkpoint, "lm_head.weight");
    const Model model(checkpoint, {.dtype = at::kFloat, .treat_as_tied = false, .quantized = {}});
    const at::Tensor states = testing_support::forward(model, testing_support::random_rows({6}, 4096));
    sealed.reset();
    EXPECT_LT(max_difference(model.logits(states), states.matmul(head.to(at::kFloat).t())), 1e-4);
  }
}

TEST(Model, PacksRowsAndChecksIds) {
  TinyModel tiny;
  const Model model = tiny.open();
  const at::Tensor packed = model.pack_rows({{0, 49}, {3}});
  EXPECT_TRUE(packed.equal(tensor::cat(
      {tensor::full({1}, 0, at::kLong), tensor::full({1}, 49, at::kLong), tensor::full({1}, 3, at::kLong)},
      0)));
  for (const int64_t id : {int64_t{-1}, int64_t{50}, int64_t{1} << 40}) {
    const Error error = error_of([&] { model.pack_rows({{0}, {1, id}}); });
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_TRUE(holds(error, "row 1, position 1")) << error.what();
    EXPECT_TRUE(holds(error, std::to_string(id))) << error.what();
  }
}

TEST(Model, QuantizedModulesComeFromTheFactory) {
  // Doubles its input, whatever the module.
  class Twice final : public LinearOp {
   public:
    at::Tensor forward(const at::Tensor& x) const override { return x.mul(2); }
  };
  TinyModel tiny;
  std::vector<std::string> asked;
  const Model model = tiny.open({.quantized = [&](const Checkpoint&, const Linear& linear) {
    asked.push_back(linear.name);
    return linear.name.ends_with("o_proj") ? std::make_shared<Twice>() : std::shared_ptr<const LinearOp>();
  }});
  const auto layer = model.load_layer(0);
  EXPECT_EQ(asked.size(), 7u);
  const auto rows = testing_support::random_rows({4}, 50);
  const BatchContext context = model.context(rows);
  Execution execution(layer->forward(model.embed(model.pack_rows(rows)), context));
  int doubled = 0;
  while (Pause* pause = execution.advance()) {
    const at::Tensor input = pause->input;
    multiply(*pause);
    if (!pause->modules[0]->name.ends_with("o_proj")) continue;
    EXPECT_TRUE(pause->outputs[0].equal(input.mul(2)));
    ++doubled;
  }
  EXPECT_EQ(doubled, 1);
}

TEST(Model, SurveysWithoutReading) {
  TinyModel tiny;
  tiny.tensors.erase("lm_head.weight");
  tiny.tensors["model.embed_tokens.weight"] = random_normal({49, 32}, 1);
  tiny.tensors["model.norm.weight"] = tiny.tensors["model.norm.weight"].to(at::kInt);
  tiny.tensors.erase("model.layers.0.mlp.up_proj.weight");
  tiny.tensors.erase("model.layers.1.mlp.up_proj.weight");
  Weights::Survey survey;
  survey.is_packed = [](const std::string& module) { return module == "model.layers.1.mlp.up_proj"; };
  const Model model = tiny.open({.headers = &survey});
  EXPECT_EQ(survey.problems.size(), 3u);
  const auto layers = model.survey(survey);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].size(), 7u);
  ASSERT_EQ(survey.problems.size(), 4u);
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight",
                           "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_EQ(std::count_if(survey.problems.begin(), survey.problems.end(),
                            [&](const std::string& line) { return line.find(name) != std::string::npos; }),
              1)
        << name;
  }
}

TEST(ParseDtype, KnowsFourNames) {
  EXPECT_EQ(parse_dtype("float32"), at::kFloat);
  EXPECT_EQ(parse_dtype("bfloat16"), at::kBFloat16);
  EXPECT_EQ(parse_dtype("float16"), at::kHalf);
  EXPECT_EQ(parse_dtype("auto"), tensor::cpu_has_bf16() ? at::kBFloat16 : at::kFloat);
  EXPECT_EQ(error_of([] { parse_dtype("int8"); }).kind(), ErrorKind::invalid_argument);
}

TEST(Run, CountsProducts) {
  TinyModel tiny;
  const Model model = tiny.open();
  const auto rows = testing_support::random_rows({4, 2}, 50);
  const BatchContext context = model.context(rows);
  const auto layer = model.load_layer(0);
  int64_t products = 0;
  run(layer->forward(model.embed(model.pack_rows(rows)), context), &products);
  EXPECT_EQ(products, 7);
}

}  // namespace
}  // namespace gramian
