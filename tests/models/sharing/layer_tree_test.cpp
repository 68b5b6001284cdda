#include "models/sharing/layer_tree.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;

LayerTree layer(const std::string& mapping) {
  return LayerTree::parse(Json::parse(R"(["model", "layers", "#", )" + mapping + "]"), "a test");
}
LayerTree variants(const std::vector<std::string>& mappings) {
  Json trees = Json::array();
  for (const std::string& mapping : mappings) trees.push_back({"model", "layers", "#", Json::parse(mapping)});
  return LayerTree::parse(trees, "a test");
}
std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(LayerTree, FlagsInAnyOrder) {
  const LayerTree tree = layer(R"({"a": ["p:in=x:!:2:role", "q:2:!:in=x", "r:k=v:?", "s:gate:0"]})");
  const LeafSpec silent{.digit = 2, .tag = "x", .quantize = false};
  EXPECT_EQ(*tree.find("a.p"), silent);
  EXPECT_EQ(*tree.find("a.q"), silent);
  EXPECT_EQ(*tree.find("a.r"), (LeafSpec{.digit = 0, .tag = "", .quantize = false}));
  EXPECT_EQ(*tree.find("a.s"), LeafSpec{});
  EXPECT_EQ(tree.find("a.t"), nullptr);
  EXPECT_EQ(tree.blocks(0), (Blocks{{"a.s"}}));
}

TEST(LayerTree, DigitsOrderBlocksOfOneParentWhateverTheyAre) {
  EXPECT_EQ(layer(R"({"a": ["p:3", "q:7", "r:0"], "b": ["p:3"]})").blocks(0),
            (Blocks{{"a.r"}, {"a.p"}, {"a.q"}, {"b.p"}}));
}

TEST(LayerTree, KeysWithDigitsHaveCommonBlocks) {
  const Blocks merged{{"m.s.g", "m.e.g"}, {"m.s.d", "m.e.d"}};
  EXPECT_EQ(layer(R"({"m": {"s:0": ["g:0", "d:1"], "e:0": ["g:0", "d:1"]}})").blocks(0), merged);
  const Blocks alone{{"m.s.g"}, {"m.s.d"}, {"m.e.g"}, {"m.e.d"}};
  EXPECT_EQ(layer(R"({"m": {"s": ["g:0", "d:1"], "e": ["g:0", "d:1"]}})").blocks(0), alone);
  EXPECT_EQ(layer(R"({"m": {"s": ["g:0", "d:1"], "e:0": ["g:0", "d:1"]}})").blocks(0), alone);
  const Blocks behind{{"m.s.g"}, {"m.s.d", "m.e.g"}, {"m.e.d"}};
  EXPECT_EQ(layer(R"({"m": {"s:0": ["g:0", "d:1"], "e:1": ["g:0", "d:1"]}})").blocks(0), behind);
}

TEST(LayerTree, ExpertsStandProjectionByProjection) {
  const LayerTree tree = layer(R"({"m:moe": {"experts": {"#": ["g:0:in=x", "u:0:in=x", "d:1"]}}})");
  EXPECT_EQ(tree.blocks(2), (Blocks{{"m.experts.0.g", "m.experts.1.g", "m.experts.0.u", "m.experts.1.u"},
                                    {"m.experts.0.d", "m.experts.1.d"}}));
  EXPECT_EQ(tree.blocks(0), Blocks{});
  EXPECT_EQ(tree.find("m.experts.17.u")->tag, "x");
  EXPECT_EQ(tree.find("m.experts.17.x"), nullptr);
}

TEST(LayerTree, AnExactNameGoesBeforeThePlaceholder) {
  const LayerTree tree = layer(R"({"m": {"#": ["g:0:in=x"], "0": ["h:1"]}, "m.0": ["g:5"]})");
  EXPECT_EQ(tree.find("m.0.g")->digit, 5);
  EXPECT_EQ(tree.find("m.1.g")->tag, "x");
}

TEST(LayerTree, LeavesThatAreTheirParent) {
  EXPECT_EQ(layer(R"({"m": {"e": {"#": ["#"]}, "u": ["u:0"], "": ["g"]}})").blocks(2),
            (Blocks{{"m.e.0", "m.e.1"}, {"m.u"}, {"m.g"}}));
}

TEST(LayerTree, AKeyThatIsNeverQuantized) {
  const LayerTree tree = layer(R"({"a": {"indexer:!": ["wk"]}, "b:?": ["p"]})");
  EXPECT_FALSE(tree.find("a.indexer.wk")->quantize);
  EXPECT_EQ(tree.blocks(0), (Blocks{{"b.p"}}));
}

TEST(LayerTree, LayersAreMetUnderTheNamesThatTheyHave) {
  const LayerTree tree = layer(R"({"a": ["q:0:in=x", "k:0:in=x"],
      "mlp|moe:moe": {"experts": {"#": ["gate|w1:0:in=x", "up|w3:0:in=x", "down|w2:1"]}, "": ["gate:0:in=x", "down:1"]}})");
  EXPECT_EQ(tree.blocks(1), (Blocks{{"a.q", "a.k"},
                                    {"mlp.experts.0.gate", "mlp.experts.0.up"},
                                    {"mlp.experts.0.down"},
                                    {"mlp.gate"},
                                    {"mlp.down"}}));
  EXPECT_EQ(
      tree.blocks_of(
          {"moe.experts.1.w2", "moe.experts.0.w1", "moe.experts.1.w3", "moe.experts.0.w3", "a.q", "b.c"}),
      (Blocks{{"a.q"}, {"moe.experts.0.w1", "moe.experts.0.w3", "moe.experts.1.w3"}, {"moe.experts.1.w2"}}));
  EXPECT_EQ(tree.blocks_of({"mlp.gate", "mlp.down"}), (Blocks{{"mlp.gate"}, {"mlp.down"}}));
  EXPECT_EQ(tree.find("moe.experts.3.w1")->tag, "x");
}

TEST(LayerTree, RepeatsThatAgree) {
  EXPECT_EQ(variants({R"({"a": ["q:0:in=x"]})", R"({"a": ["q:0:in=x", "o:1"]})"}).blocks(0),
            (Blocks{{"a.q"}, {"a.o"}}));
  EXPECT_EQ(layer(R"({"a": {"b": ["c:1"], "b|d": ["c:1"]}})").blocks(0), (Blocks{{"a.b.c"}}));
}

TEST(LayerTree, RepeatsInConflict) {
  for (const char* other : {"q:0:in=y", "q:0", "q:1:in=x", "q:0:in=x:!", "q:0:in=x:?"}) {
    const std::string said =
        refusal([&] { variants({R"({"a": ["q:0:in=x"]})", str(R"({"a": [")", other, R"("]})")}); });
    EXPECT_NE(said.find("'a.q'"), std::string::npos) << said;
    EXPECT_NE(said.find("block 0, in=x and block"), std::string::npos) << said;
  }
  EXPECT_NE(refusal([] { layer(R"({"a": {"b": ["c:1"], "b|d": ["c:0"]}})"); }).find("'a.b.c'"),
            std::string::npos);
}

TEST(LayerTree, WhatIsNoTree) {
  const auto refused = [](const std::string& tree, const std::string& says) {
    const std::string said = refusal([&] { LayerTree::parse(Json::parse(tree), "qwen9"); });
    EXPECT_NE(said.find(says), std::string::npos) << said;
    EXPECT_NE(said.find("qwen9"), std::string::npos) << said;
  };
  refused(R"({})", "must be a list");
  refused(R"([])", "must be a list");
  refused(R"(["model", {"a": ["b"]}])", "\"#\" and a mapping");
  refused(R"(["model", "#", ["a"]])", "\"#\" and a mapping");
  refused(R"([1, "#", {}])", "must be of names");
  refused(R"(["#", {"a": 1}])", "'a': must be a list");
  refused(R"(["#", {"a": [1]}])", "a leaf must be text");
  refused(R"(["#", {"a": [":0"]}])", "has no name");
  refused(R"(["#", {"a": ["b|:0"]}])", "a name is empty");
  refused(R"(["#", {"a": ["b:in="]}])", "tag is empty");
  refused(R"(["#", {"a": ["b:in=x:in=y"]}])", "two input tags");
  refused(R"(["#", {"a": ["b:0:1"]}])", "two block numbers");
  refused(R"(["#", {"a": ["b:12345678901234567890"]}])", "too large");
  refused(R"(["#", {"a:in=x": ["b"]}])", "belongs to a leaf");
  refused(R"(["#", {"e": {"#": {"f": {"#": ["b"]}}}}])", "experts inside experts");
  refused(R"(["#", {"e": {"#": ["a.2.b"]}}])", "beside '#'");
  refused(R"(["#", {"e": {"#": ["a..b"]}}])", "beside '#'");
}

}  // namespace
}  // namespace gramian
