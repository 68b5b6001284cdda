// What the families with mixtures, latent attention and layers of several kinds read from a config.json.
#include <gtest/gtest.h>

#include <cmath>

#include "models/family.h"
#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

Json sizes(const std::string& type, const Json& more = Json::object()) {
  Json json{{"model_type", type},    {"hidden_size", 32},        {"intermediate_size", 48},
            {"vocab_size", 9},       {"num_attention_heads", 4}, {"num_key_value_heads", 4},
            {"num_hidden_layers", 4}};
  json.update(more);
  return json;
}

DecoderSpec describe(const Json& json) {
  const ConfigReader config(json, "config.json");
  return find_family(config).describe(config);
}

// The key that a refusal names.
void expect_refused(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  const Error error = error_of([&] { describe(json); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << key;
  EXPECT_NE(std::string(error.what()).find("'" + key + "'"), std::string::npos) << error.what();
}

std::vector<bool> mixed(const DecoderSpec& spec) {
  std::vector<bool> found;
  for (const MixtureSpec& layer : spec.mixture) found.push_back(layer.router.experts > 0);
  return found;
}

TEST(QwenMoe, WhichLayersHaveAMixture) {
  Json json = sizes("qwen2_moe", {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}});
  DecoderSpec spec = describe(json);
  EXPECT_EQ(mixed(spec), std::vector<bool>({false, true, false, false}));
  const MixtureSpec& mixture = spec.mixture[1];
  EXPECT_EQ(mixture.router.experts, 60);
  EXPECT_EQ(mixture.router.top_k, 4);
  EXPECT_FALSE(mixture.router.norm_top_k);
  EXPECT_EQ(mixture.expert.intermediate, 1408);
  EXPECT_EQ(mixture.shared_expert.intermediate, 5632);
  EXPECT_TRUE(mixture.shared_gate);
  EXPECT_TRUE(describe(sizes("qwen3_moe")).mixture[0].shared.empty());
  expect_refused(json, "num_experts_per_tok", 61);
  expect_refused(json, "mlp_only_layers", "none");
}

TEST(QwenMoe, WindowsInTurnBelowTheLastOfThem) {
  Json json =
      sizes("qwen2_moe", {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 3}});
  const DecoderSpec spec = describe(json);
  EXPECT_EQ(spec.attention[0].window, 5);
  EXPECT_EQ(spec.attention[1].window, 0);
  EXPECT_EQ(spec.attention[2].window, 5);
  json["max_window_layers"] = 2;
  EXPECT_EQ(describe(json).attention[2].window, 0);
}

TEST(DeepSeek, LatentsGroupsAndSharpness) {
  Json json = sizes("deepseek_v3", {{"n_routed_experts", 8},
                                    {"n_group", 4},
                                    {"topk_group", 2},
                                    {"num_experts_per_tok", 3},
                                    {"n_shared_experts", 2},
                                    {"moe_intermediate_size", 10}});
  DecoderSpec spec = describe(json);
  ASSERT_TRUE(spec.latent);
  EXPECT_EQ(spec.latent->q_rank, 1536);
  EXPECT_EQ(spec.latent->norm.eps, 1e-6);
  EXPECT_DOUBLE_EQ(spec.latent->scale, 1 / std::sqrt(192.0));
  EXPECT_TRUE(spec.ropes[0].pairs);
  EXPECT_EQ(spec.ropes[0].rotary_dim, 64);
  EXPECT_EQ(mixed(spec), std::vector<bool>({false, false, false, true}));
  EXPECT_EQ(spec.mixture[3].shared_expert.intermediate, 20);
  EXPECT_EQ(spec.mixture[3].router.scale, 2.5);
  EXPECT_TRUE(spec.mixture[3].router.norm_top_k);
  json["q_lora_rank"] = nullptr;
  json["rope_interleave"] = false;
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}, {"mscale_all_dim", 1.0}};
  spec = describe(json);
  EXPECT_EQ(spec.latent->q_rank, 0);
  EXPECT_FALSE(spec.ropes[0].pairs);
  EXPECT_NEAR(spec.latent->scale, std::pow(0.1 * std::log(4.0) + 1, 2) / std::sqrt(192.0), 1e-12);
  expect_refused(json, "n_group", 3);
  expect_refused(json, "n_group", 8);  // groups of one have no two best
  expect_refused(json, "topk_group", 5);
  expect_refused(json, "num_experts_per_tok", 5);  // of the 4 in two groups
}

TEST(GptOss, PositionsOfAFileThatSaysNothing) {
  Json json = sizes("gpt_oss");
  DecoderSpec spec = describe(json);
  EXPECT_EQ(spec.ropes[0].type, "yarn");
  EXPECT_EQ(spec.ropes[0].factor, 32);
  EXPECT_FALSE(spec.ropes[0].truncate);
  EXPECT_EQ(spec.ropes[0].theta, 150000);
  EXPECT_EQ(spec.attention[0].window, 128);
  EXPECT_EQ(spec.attention[1].window, 0);
  EXPECT_TRUE(spec.attention[1].sinks && spec.attention[1].o_bias);
  EXPECT_EQ(spec.mixture[0].stack, ExpertStack::columns_paired);
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  spec = describe(json);
  EXPECT_EQ(spec.ropes[0].type, "default");
  expect_refused(json, "swiglu_limit", 0);
}

TEST(Llama4, LayersOfTwoKinds) {
  Json json = sizes("llama4_text", {{"interleave_moe_layer_step", 2}});
  DecoderSpec spec = describe(json);
  EXPECT_EQ(mixed(spec), std::vector<bool>({false, true, false, true}));
  EXPECT_EQ(spec.mlp.intermediate, 16384);
  EXPECT_EQ(spec.mixture[1].expert.intermediate, 48);
  EXPECT_EQ(spec.attention[2].chunk, 8192);
  EXPECT_TRUE(spec.attention[2].rope && spec.attention[2].qk_norm && !spec.attention[2].position_scale);
  EXPECT_EQ(spec.attention[3].chunk, 0);
  EXPECT_FALSE(spec.attention[3].rope || spec.attention[3].qk_norm);
  ASSERT_TRUE(spec.attention[3].position_scale);
  EXPECT_EQ(spec.attention[3].position_scale->floor, 8192);
  json["moe_layers"] = {0};
  json["no_rope_layers"] = {0, 1, 0, 1};
  json["attn_temperature_tuning"] = false;
  spec = describe(json);
  EXPECT_EQ(mixed(spec), std::vector<bool>({true, false, false, false}));
  EXPECT_FALSE(spec.attention[0].rope || spec.attention[0].position_scale);
  EXPECT_TRUE(spec.attention[3].rope);
  expect_refused(json, "no_rope_layers", {1});
  expect_refused(json, "moe_layers", 3);
}

TEST(Cohere, FullLayersOfTheSecondHaveNoPositions) {
  const DecoderSpec first = describe(sizes("cohere")), second = describe(sizes("cohere2"));
  EXPECT_EQ(first.ropes[0].theta, 500000);
  EXPECT_EQ(second.ropes[0].theta, 10000);
  EXPECT_TRUE(first.ropes[0].pairs && first.residual.parallel && first.tied);
  EXPECT_EQ(first.logit_scale, 0.0625);
  for (const AttentionSpec& layer : first.attention) EXPECT_TRUE(layer.rope && layer.window == 0);
  EXPECT_TRUE(second.attention[0].rope && second.attention[0].window == 4096);
  EXPECT_TRUE(!second.attention[3].rope && second.attention[3].window == 0);
}

TEST(Phi3, LongPositionsHadOtherNames) {
  for (const char* name : {"longrope", "su", "yarn"}) {
    const Json scaling{{"type", name}, {"short_factor", {1, 2, 3, 4}}, {"long_factor", {5, 6, 7, 8}}};
    const DecoderSpec spec = describe(sizes("phi3", {{"rope_scaling", scaling}, {"sliding_window", 7}}));
    EXPECT_EQ(spec.ropes[0].type, "longrope") << name;
    EXPECT_TRUE(spec.attention[0].fused && spec.mlp.fused);
    EXPECT_EQ(spec.attention[0].window, 7);
  }
}

TEST(Granite, FourMultipliers) {
  const Json json = sizes("granite", {{"embedding_multiplier", 12},
                                      {"residual_multiplier", 0.22},
                                      {"attention_multiplier", 0.5},
                                      {"logits_scaling", 8}});
  const DecoderSpec spec = describe(json);
  EXPECT_EQ(spec.embedding_scale, 12);
  EXPECT_EQ(spec.residual.scale, 0.22);
  EXPECT_EQ(spec.attention[0].scale, 0.5);
  EXPECT_EQ(spec.logit_scale, 0.125);
  expect_refused(json, "logits_scaling", 0);
}

TEST(LayerTypes, AnUnknownKindIsRefused) {
  for (const std::string type : {"cohere2", "gpt_oss", "llama4_text"}) {
    const Json json =
        sizes(type, {{"layer_types", {"full_attention", "odd", "full_attention", "full_attention"}}});
    const Error error = error_of([&] { describe(json); });
    EXPECT_EQ(error.kind(), ErrorKind::unsupported) << type;
    EXPECT_NE(std::string(error.what()).find("'odd'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gramian
