// Every family's tree against what its layers were measured to share: groups of modules whose inputs are one tensor, found by
// comparing all inputs of the original implementations bit by bit. Groups that cross parents cannot be tagged and are cut there.
#include "models/families/trees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/family.h"
#include "models/sharing/sharing_plan.h"

namespace gramian {
namespace {

using Names = std::vector<std::string>;

const Family& family_of(const nlohmann::ordered_json& config) {
  return find_family(ConfigReader(config, "a test"));
}

struct LayerFacts {
  std::vector<Names> groups;  // of what is quantized; of one expert
  Names alone;
};

Names under(const std::string& parent, Names names) {
  for (std::string& name : names) name.insert(0, parent);
  return names;
}

const LayerFacts kAttention{{under("self_attn.", {"q_proj", "k_proj", "v_proj"})}, {"self_attn.o_proj"}};
const LayerFacts kQLatent{{under("self_attn.", {"q_a_proj", "kv_a_proj_with_mqa"})},
                          under("self_attn.", {"q_b_proj", "kv_b_proj", "o_proj"})};
const LayerFacts kNoQLatent{{under("self_attn.", {"q_proj", "kv_a_proj_with_mqa"})},
                            under("self_attn.", {"kv_b_proj", "o_proj"})};
const LayerFacts kDelta{{under("linear_attn.", {"in_proj_qkv", "in_proj_z"})}, {"linear_attn.out_proj"}};
const LayerFacts kDeltaByKeyHead{{}, under("linear_attn.", {"in_proj_qkvz", "out_proj"})};
const LayerFacts kDeltaOneByOne{{under("linear_attn.", {"q_proj", "k_proj", "v_proj", "g_proj"})},
                                {"linear_attn.o_proj"}};
const LayerFacts kFused{{}, {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}};

// A gated MLP, and mixtures of two experts with or without one that all tokens go to.
LayerFacts mlp(const std::string& parent) {
  return {{under(parent, {"gate_proj", "up_proj"})}, {parent + "down_proj"}};
}
LayerFacts mixture(const std::string& parent, const std::string& shared, bool short_names = false) {
  LayerFacts facts;
  if (!shared.empty()) facts = mlp(parent + shared + ".");
  for (const char* expert : {"experts.0.", "experts.1."}) {
    facts.groups.push_back(
        under(parent + expert, short_names ? Names{"w1", "w3"} : Names{"gate_proj", "up_proj"}));
    facts.alone.push_back(parent + expert + (short_names ? "w2" : "down_proj"));
  }
  return facts;
}
LayerFacts both(LayerFacts a, const LayerFacts& b) {
  a.groups.insert(a.groups.end(), b.groups.begin(), b.groups.end());
  a.alone.insert(a.alone.end(), b.alone.begin(), b.alone.end());
  return a;
}

struct TypeFacts {
  Names types;
  std::vector<LayerFacts> layers;  // of each kind
};

std::vector<TypeFacts> all_facts() {
  const LayerFacts dense = mlp("mlp."), experts = mixture("mlp.", ""),
                   qwen = mixture("mlp.", "shared_expert"), grouped = mixture("mlp.", "shared_experts");
  const LayerFacts kimi_experts = mixture("block_sparse_moe.", "shared_experts", true);
  return {
      {{"cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2",
        "qwen2", "qwen3", "stablelm"},
       {both(kAttention, dense)}},
      {{"phi3"}, {kFused}},
      {{"gpt_oss"}, {both(kAttention, experts)}},
      {{"mixtral"}, {both(kAttention, experts), both(kAttention, mixture("block_sparse_moe.", "", true))}},
      {{"qwen3_moe"}, {both(kAttention, experts), both(kAttention, dense)}},
      {{"qwen2_moe"}, {both(kAttention, qwen), both(kAttention, dense)}},
      {{"qwen3_next"}, {both(kDeltaByKeyHead, qwen), both(kDeltaByKeyHead, dense), both(kAttention, qwen)}},
      {{"qwen3_5_text"}, {both(kDelta, dense), both(kAttention, dense)}},
      {{"qwen3_5_moe_text"}, {both(kDelta, qwen), both(kAttention, qwen)}},
      {{"glm4_moe"}, {both(kAttention, dense), both(kAttention, grouped)}},
      {{"deepseek_v3"}, {both(kQLatent, dense), both(kQLatent, grouped), both(kNoQLatent, grouped)}},
      {{"kimi_linear"},
       {both(kAttention, dense), both(kAttention, grouped), both(kNoQLatent, kimi_experts),
        both(kQLatent, grouped)}},
      {{"llama4_text"},
       {both(kAttention, mlp("feed_forward.")), both(kAttention, mixture("feed_forward.", "shared_expert"))}},
      {{"glm5_next_text"}, {both(kAttention, dense), both(kAttention, grouped), both(kQLatent, grouped)}},
      {{"qwen4_exp_text"}, {both(kDelta, qwen), both(kAttention, qwen)}},
      {{"olmo_hybrid"}, {both(kDeltaOneByOne, dense), both(kAttention, dense)}},
  };
}

Names sorted(Names names) {
  std::sort(names.begin(), names.end());
  return names;
}

void expect_facts(const LayerTree& tree, const LayerFacts& facts) {
  Names names = facts.alone;
  for (const Names& group : facts.groups) names.insert(names.end(), group.begin(), group.end());
  const Blocks blocks = tree.blocks_of(names);
  const SharingPlan plan(tree, blocks, true);
  EXPECT_EQ(sorted(plan.modules()), sorted(names));
  std::set<Names> found, expected;
  int64_t followers = 0;
  for (const SharingGroup& group : plan.shared_groups()) found.insert(sorted(group.modules));
  for (const Names& group : facts.groups) {
    expected.insert(sorted(group));
    followers += static_cast<int64_t>(group.size()) - 1;
  }
  EXPECT_EQ(found, expected);
  // Whoever shares stands in one block, so that nothing is summed twice.
  EXPECT_EQ(plan.dedup_count(), followers);
  EXPECT_EQ(SharingPlan(tree, blocks, false).dedup_count(), 0);
}

TEST(Trees, SayWhatWasMeasured) {
  std::set<std::string> known;
  for (const TypeFacts& facts : all_facts()) {
    for (const std::string& type : facts.types) {
      SCOPED_TRACE(type);
      known.insert(type);
      for (const LayerFacts& layer : facts.layers)
        expect_facts(family_of({{"model_type", type}}).tree, layer);
    }
  }
  for (const Family* family : all_families()) {
    EXPECT_TRUE(!family->verified || known.contains(family->model_type)) << family->model_type;
  }
}

// What has no family yet, or stays as it is stored.
TEST(Trees, IndexersAndWeighersAreNotQuantized) {
  const Family indexed = Family{}.with_tree(
      {trees::kIndexedAttention, trees::kDeltaNet, trees::kQwenMixture, trees::kHyperConnections});
  expect_facts(indexed.tree, both(kAttention, mixture("mlp.", "shared_expert")));
  const Family latent = Family{}.with_tree({trees::kLatentAttention, trees::kGroupedMixture});
  expect_facts(latent.tree, both(kQLatent, mixture("mlp.", "shared_experts")));
  for (const char* name : {"self_attn.indexer.index_qk_proj", "attn_hyper_connection.block_inject_weight",
                           "mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_a"}) {
    ASSERT_NE(indexed.tree.find(name), nullptr) << name;
    EXPECT_FALSE(indexed.tree.find(name)->quantize) << name;
  }
  EXPECT_FALSE(latent.tree.find("self_attn.indexer.wk")->quantize);
}

TEST(Trees, OnlyAFamilysOwnTypeShares) {
  const auto shares = [](const nlohmann::ordered_json& config) {
    return family_of(config).shares_inputs(ConfigReader(config, "a test"));
  };
  EXPECT_TRUE(shares({{"model_type", "llama"}}));
  EXPECT_TRUE(shares({{"model_type", "qwen2"}}));
  EXPECT_FALSE(shares({{"model_type", "qwen2_5_vl"}})) << "qwen2's tree, another type";
  EXPECT_FALSE(shares({{"model_type", "qwen2_5_vl_text"}})) << "inherited";
  EXPECT_FALSE(shares({{"architectures", {"LlamaForCausalLM"}}})) << "no type";
  EXPECT_FALSE(shares({{"model_type", "gemma3"}, {"text_config", {{"model_type", "gemma3_text"}}}}))
      << "wrapped";
}

}  // namespace
}  // namespace gramian
