// The probe on made-up inputs, and on a real forward with true and false trees.
#include "pipeline/sharing_probe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/tiny_model.h"

namespace gramian {
namespace {

using testing_support::random_normal;
using testing_support::random_rows;
using testing_support::TinyModel;
using Pair = std::pair<std::string, std::string>;

LayerTree tree(const std::string& children) {
  return LayerTree::parse(nlohmann::ordered_json::parse(R"(["layers", "#", {)" + children + "}]"), "a test");
}

SharingPlan plan(const std::string& leaves) {
  const LayerTree parsed = tree(R"("a": [)" + leaves + "]");
  return {parsed, parsed.blocks(0), true};
}

const SharingPlan kQk = plan(R"("q:in=x", "k:in=x")");

std::string reason(const std::vector<at::Tensor>& q, const std::vector<at::Tensor>& k) {
  const ProbedLayer found = compare_inputs(kQk, {{"a.q", q}, {"a.k", k}});
  EXPECT_EQ(found.has_errors(), found.verified.empty());
  return found.mismatches.empty() ? "" : found.mismatches[0].reason;
}

TEST(CompareInputs, EveryKindOfMismatchIsNamed) {
  const at::Tensor x = random_normal({3, 4}, 1);
  EXPECT_EQ(reason({x}, {x.clone()}), "");
  EXPECT_EQ(reason({x, x}, {x}), "called 1 times, not 2");
  EXPECT_EQ(reason({x}, {}), "called 0 times, not 1") << "a member that did not run";
  EXPECT_EQ(reason({x}, {x.slice(0, 0, 2)}), "shape [2, 4], not [3, 4]");
  EXPECT_EQ(reason({x}, {x.to(at::kBFloat16)}), "type BFloat16, not Float");
  EXPECT_EQ(reason({x.mul(0)}, {x.mul(0).add(0.5)}), "values differ by up to 0.5");
}

TEST(CompareInputs, WhatIsNotThereOrNotCalled) {
  const at::Tensor x = random_normal({3, 4}, 1);
  ProbedLayer found = compare_inputs(kQk, {{"a.q", {x}}});
  EXPECT_EQ(found.missing, (std::vector<std::string>{"a.k"}));
  EXPECT_FALSE(found.has_errors());
  EXPECT_FALSE(found.fully_verified());
  EXPECT_EQ(found.verified, (std::vector<std::string>{"a:in=x"}));
  found = compare_inputs(kQk, {{"a.q", {}}, {"a.k", {}}});
  EXPECT_EQ(found.uncalled, (std::vector<std::string>{"a:in=x"}));
  EXPECT_FALSE(found.has_errors());
  EXPECT_FALSE(found.fully_verified());
  found = compare_inputs(kQk, {{"a.q", {x}}, {"a.k", {x}}, {"a.z", {x}}});
  EXPECT_EQ(found.unlisted, (std::vector<std::string>{"a.z"}));
  EXPECT_FALSE(found.fully_verified());
  EXPECT_EQ(found.calls.at("a.q"), 1);
  found = compare_inputs(kQk, {});
  EXPECT_EQ(found.missing.size(), 2u);
  EXPECT_TRUE(found.verified.empty());
}

TEST(CompareInputs, WhatIsSharedAndNotDeclared) {
  const at::Tensor x = random_normal({3, 4}, 1), y = random_normal({3, 4}, 2);
  const RecordedInputs inputs{{"a.q", {x}}, {"a.k", {x}}, {"a.v", {y}}, {"a.o", {x}}};
  EXPECT_EQ(compare_inputs(plan(R"("q", "k", "v", "o:1")"), inputs).undeclared,
            (std::vector<Pair>{{"a.q", "a.k"}}))
      << "o stands in another block";
  EXPECT_EQ(compare_inputs(plan(R"("q:in=x", "k:in=y", "v", "o:1")"), inputs).undeclared.size(), 1u);
  EXPECT_TRUE(compare_inputs(plan(R"("q:in=x", "k:in=x", "v", "o:1")"), inputs).fully_verified());
}

class SharingProbe : public testing::Test {
 protected:
  std::vector<ProbedLayer> probe(const LayerTree& tree) {
    return probe_sharing(model_, tree, random_rows({5, 2}, 50), {});
  }
  TinyModel tiny_;
  Model model_ = tiny_.open();
};

TEST_F(SharingProbe, TheFamilysTreeIsTrue) {
  const std::vector<ProbedLayer> layers = probe(model_.family().tree);
  ASSERT_EQ(layers.size(), 2u);
  for (const ProbedLayer& layer : layers) {
    EXPECT_TRUE(layer.fully_verified());
    EXPECT_EQ(layer.verified.size(), 4u);
    EXPECT_EQ(layer.calls.size(), 7u);
  }
}

TEST_F(SharingProbe, FalseTreesAreFound) {
  const std::string mlp = R"(, "mlp": ["gate_proj:in=x", "up_proj:in=x", "down_proj:1"])";
  ProbedLayer found =
      probe(tree(R"("self_attn": ["q_proj:in=x", "k_proj:in=x", "v_proj:in=x", "o_proj:1:in=x"])" + mlp))[0];
  ASSERT_EQ(found.mismatches.size(), 1u);
  EXPECT_EQ(found.mismatches[0].module, "self_attn.o_proj");
  EXPECT_TRUE(found.has_errors());
  found = probe(tree(R"("self_attn": ["q_proj", "k_proj", "v_proj", "o_proj:1"])" + mlp))[1];
  EXPECT_EQ(found.undeclared.size(), 3u);
  found = probe(tree(R"("self_attn": ["q_proj:in=x", "k_proj:in=x", "v_proj:in=x"])" + mlp))[0];
  EXPECT_EQ(found.unlisted, (std::vector<std::string>{"self_attn.o_proj"}));
}

}  // namespace
}  // namespace gramian
