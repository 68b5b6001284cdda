#include "formats/module_patterns.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "support/files.h"

namespace gramian {
namespace {

using Names = std::vector<std::string>;
using testing_support::error_of;

Names layer(int index, const Names& parts) {
  Names names;
  for (const std::string& part : parts) names.push_back(str("model.layers.", index, ".", part));
  return names;
}

const Names kParts{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                   "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

Names dense(int layers) {
  Names all;
  for (int i = 0; i < layers; ++i) {
    for (const std::string& name : layer(i, kParts)) all.push_back(name);
  }
  return all;
}

// The patterns match what they are of, and nothing else.
Names checked(const Names& names, const Names& all) {
  Names patterns = patterns_of(names, all);
  for (const std::string& name : all) {
    const bool wanted = std::find(names.begin(), names.end(), name) != names.end();
    int matches = 0;
    for (const std::string& pattern : patterns) matches += ModulePattern(pattern, "").matches(name) ? 1 : 0;
    EXPECT_EQ(matches, wanted ? 1 : 0) << name;
  }
  return patterns;
}

TEST(ModulePatterns, OneNameHasItsOwnPattern) {
  EXPECT_EQ(checked({"model.layers.1.mlp.down_proj"}, dense(12)),
            Names{"^model\\.layers\\.1\\.mlp\\.down_proj$"});
  EXPECT_EQ(exact_pattern("model.layers.1.mlp.down_proj"), "^model\\.layers\\.1\\.mlp\\.down_proj$");
  EXPECT_EQ(checked({"lm_head"}, {"lm_head", "a.b"}), Names{"^lm_head$"});
}

TEST(ModulePatterns, LayersAndNeighboursAreJoined) {
  Names down;
  for (int i = 0; i < 12; ++i) down.push_back(str("model.layers.", i, ".mlp.down_proj"));
  EXPECT_EQ(checked(down, dense(12)), Names{"^model\\.layers\\.\\d+\\.mlp\\.down_proj$"});
  down.pop_back();
  EXPECT_EQ(checked(down, dense(12)), Names{"^model\\.layers\\.(0|1|2|3|4|5|6|7|8|9|10)\\.mlp\\.down_proj$"});
  checked({"model.layers.1.mlp.down_proj", "model.layers.10.mlp.down_proj", "model.layers.10.mlp.up_proj"},
          dense(12));
}

TEST(ModulePatterns, WholeMatricesOfLoadersAreNamedToo) {
  const Names all = dense(2);
  const Names patterns = checked(layer(1, {kParts[0], kParts[1], kParts[2]}), all);
  EXPECT_EQ(patterns, Names{"^model\\.layers\\.1\\.self_attn\\.(k_proj|q_proj|v_proj|qkv_proj)$"});
  EXPECT_TRUE(ModulePattern(patterns[0], "").matches("model.layers.1.self_attn.qkv_proj"));
  // A part alone does not speak for the whole.
  EXPECT_FALSE(ModulePattern(checked(layer(1, {kParts[0], kParts[1]}), all)[0], "")
                   .matches("model.layers.1.self_attn.qkv_proj"));
  EXPECT_EQ(fused_name("model.layers.1.self_attn.q_proj"), "model.layers.1.self_attn.qkv_proj");
  EXPECT_EQ(fused_name("model.layers.1.mlp.experts.17.down_proj"), "model.layers.1.mlp.experts");
  EXPECT_EQ(fused_name("model.layers.1.mlp.shared_experts.up_proj"),
            "model.layers.1.mlp.shared_experts.gate_up_proj");
  EXPECT_EQ(fused_name("model.layers.1.mlp.down_proj"), "");
}

TEST(ModulePatterns, MixturesAreOneMatrix) {
  Names all = dense(1), experts;
  for (const int index : {1, 2}) {
    for (int e = 0; e < 3; ++e) {
      for (const std::string& name :
           layer(index, {str("mlp.experts.", e, ".gate_proj"), str("mlp.experts.", e, ".down_proj")}))
        experts.push_back(name);
    }
  }
  all.insert(all.end(), experts.begin(), experts.end());
  const Names patterns = checked(experts, all);
  EXPECT_EQ(patterns, Names{"^model\\.layers\\.\\d+\\.mlp\\.experts(\\..+)?$"});
  EXPECT_TRUE(ModulePattern(patterns[0], "").matches("model.layers.2.mlp.experts"));
  Names some(experts.begin(), experts.end() - 1);
  checked(some, all);
}

TEST(ModulePatterns, HostilePatternsEnd) {
  for (const char* text : {"(", "a)|(b", "[a", "*a", "(?P<", "(a{1000}){1000}{1000}"})
    EXPECT_EQ(error_of([&] { ModulePattern(text, "recipe"); }).kind(), ErrorKind::corrupt_data) << text;
  const ModulePattern costly("(?:(?:(?:.+)+)+)+[A-Z]", "recipe: dynamic");
  const Error error =
      error_of([&] { costly.matches("model.layers.0.self_attn.q_projmodel.layers.0.self_attn.q_proj"); });
  EXPECT_NE(std::string(error.what()).find("too many steps"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace gramian
