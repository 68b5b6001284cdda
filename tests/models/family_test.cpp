// What the families read from a config.json: defaults of missing keys, windows, rotary kinds, and what they refuse.
#include "models/family.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

Json sizes(const std::string& type) {
  return {{"model_type", type}, {"hidden_size", 32},        {"intermediate_size", 48},
          {"vocab_size", 9},    {"num_attention_heads", 8}, {"num_hidden_layers", 3}};
}

DecoderSpec describe(const Json& json) {
  const ConfigReader config(json, "config.json");
  return find_family(config).describe(config);
}

std::vector<int64_t> windows(const DecoderSpec& spec) {
  std::vector<int64_t> found;
  for (const AttentionSpec& layer : spec.attention) found.push_back(layer.window);
  return found;
}
using Windows = std::vector<int64_t>;

TEST(Mistral, WindowInEveryLayer) {
  Json json = sizes("mistral");
  DecoderSpec spec = describe(json);
  EXPECT_EQ(windows(spec), Windows({4096, 4096, 4096}));
  EXPECT_EQ(spec.attention[0].kv_heads, 8);
  EXPECT_EQ(spec.attention[0].head_dim, 4);
  EXPECT_EQ(spec.ropes[0].max_positions, 131072);
  json["sliding_window"] = nullptr;
  json["num_key_value_heads"] = 2;
  json["head_dim"] = 6;
  spec = describe(json);
  EXPECT_EQ(windows(spec), Windows({0, 0, 0}));
  EXPECT_EQ(spec.attention[0].kv_heads, 2);
  EXPECT_EQ(spec.attention[0].head_dim, 6);
}

TEST(Qwen3, NormsHeadsAndDefaults) {
  Json json = sizes("qwen3");
  json["num_key_value_heads"] = 4;
  json["rms_norm_eps"] = 0.01;
  DecoderSpec spec = describe(json);
  EXPECT_EQ(spec.attention[0].head_dim, 128);
  EXPECT_DOUBLE_EQ(spec.attention[0].scale, 1 / std::sqrt(128.0));
  EXPECT_FALSE(spec.attention[0].qkv_bias);
  ASSERT_TRUE(spec.attention[2].qk_norm);
  EXPECT_EQ(spec.attention[2].qk_norm->kind, NormKind::rms);
  EXPECT_EQ(spec.attention[2].qk_norm->eps, 0.01);
  json["attention_bias"] = true;
  json["use_sliding_window"] = true;
  json["sliding_window"] = 7;
  json["max_window_layers"] = 2;
  spec = describe(json);
  EXPECT_TRUE(spec.attention[0].qkv_bias && spec.attention[0].o_bias);
  EXPECT_EQ(windows(spec), Windows({0, 0, 7}));
}

TEST(Gemma, DefaultsOfTheThree) {
  for (const std::string type : {"gemma", "gemma2", "gemma3_text"}) {
    Json json = sizes(type);
    json["num_key_value_heads"] = 4;
    const DecoderSpec spec = describe(json);
    EXPECT_EQ(spec.attention[0].head_dim, 256) << type;
    EXPECT_DOUBLE_EQ(spec.attention[0].scale, 1.0 / 16) << type;
    EXPECT_DOUBLE_EQ(spec.embedding_scale, std::sqrt(32.0)) << type;
    EXPECT_EQ(spec.norms.spec.kind, NormKind::rms_offset) << type;
    EXPECT_EQ(spec.norms.after_mlp.empty(), type == "gemma") << type;
    EXPECT_EQ(spec.mlp.activation, Activation::gelu_tanh) << type;
    EXPECT_TRUE(spec.tied) << type;
    EXPECT_EQ(spec.logit_softcap, type == "gemma2" ? 30 : 0) << type;
    EXPECT_EQ(spec.attention[0].softcap, type == "gemma2" ? 50 : 0) << type;
    EXPECT_EQ(spec.attention[0].qk_norm.has_value(), type == "gemma3_text") << type;
    json["use_bidirectional_attention"] = true;
    EXPECT_EQ(error_of([&] { describe(json); }).kind(), ErrorKind::unsupported) << type;
  }
}

TEST(Gemma, GeluOfTheFirstFilesIsItsTanhForm) {
  Json json = sizes("gemma");
  json["num_key_value_heads"] = 1;
  json["hidden_act"] = "gelu";
  EXPECT_EQ(describe(json).mlp.activation, Activation::gelu_tanh);
  json["hidden_act"] = "silu";
  json["hidden_activation"] = "gelu";
  EXPECT_EQ(describe(json).mlp.activation, Activation::silu);
}

TEST(Gemma2, WindowsInTurnAndSoftcaps) {
  Json json = sizes("gemma2");
  EXPECT_EQ(windows(describe(json)), Windows({4096, 0, 4096}));
  json["sliding_window"] = 5;
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = 7;
  json["query_pre_attn_scalar"] = 4;
  DecoderSpec spec = describe(json);
  EXPECT_EQ(windows(spec), Windows({0, 5, 0}));
  EXPECT_EQ(spec.attention[0].softcap, 0);
  EXPECT_EQ(spec.logit_softcap, 7);
  EXPECT_EQ(spec.attention[0].scale, 0.5);
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"sliding_window", nullptr}, {"final_logit_softcapping", 0}, {"query_pre_attn_scalar", -1}}) {
    Json bad = json;
    bad[key] = value;
    EXPECT_EQ(error_of([&] { describe(bad); }).kind(), ErrorKind::corrupt_data) << key;
  }
}

TEST(Gemma3, SlidingAndFullLayersTurnOnTheirOwn) {
  Json json = sizes("gemma3_text");
  json["sliding_window_pattern"] = 3;
  DecoderSpec spec = describe(json);
  EXPECT_EQ(windows(spec), Windows({4096, 4096, 0}));
  EXPECT_EQ(spec.attention[0].rope, 0);
  EXPECT_EQ(spec.attention[2].rope, 1);
  ASSERT_EQ(spec.ropes.size(), 2u);
  EXPECT_EQ(spec.ropes[0].theta, 1e4);
  EXPECT_EQ(spec.ropes[1].theta, 1e6);

  json["rope_local_base_freq"] = 11;
  json["rope_theta"] = 22;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  spec = describe(json);
  EXPECT_EQ(spec.ropes[0].theta, 11);
  EXPECT_EQ(spec.ropes[0].type, "default");
  EXPECT_EQ(spec.ropes[1].theta, 22);
  EXPECT_EQ(spec.ropes[1].type, "linear");
  EXPECT_EQ(spec.ropes[1].factor, 8);

  json.erase("rope_scaling");
  json["rope_parameters"] = {{"full_attention", {{"type", "linear"}, {"factor", 4}, {"rope_theta", 33}}},
                             {"sliding_attention", nullptr}};
  spec = describe(json);
  EXPECT_EQ(spec.ropes[0].theta, 11);
  EXPECT_EQ(spec.ropes[1].theta, 33);
  EXPECT_EQ(spec.ropes[1].factor, 4);
}

TEST(Gemma3, AnOddHeadIsBlamedOnItsOwnKey) {
  Json json = sizes("gemma3_text");
  json["head_dim"] = 7;
  const Error error = error_of([&] { describe(json); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data);
  EXPECT_NE(std::string(error.what()).find("'head_dim'"), std::string::npos) << error.what();
}

// A nested configuration leaves out what its class has anyway; a plain one is damaged when a size is missing.
TEST(TextConfig, MissingKeysTakeTheDefaultsOfTheClass) {
  Json text{{"model_type", "gemma3_text"}, {"num_hidden_layers", 2}};
  const DecoderSpec spec = describe({{"model_type", "gemma3"}, {"text_config", text}});
  EXPECT_EQ(spec.vocab, 262208);
  EXPECT_EQ(spec.hidden, 2304);
  EXPECT_EQ(spec.attention[0].heads, 8);
  EXPECT_EQ(spec.attention[0].kv_heads, 4);
  EXPECT_EQ(spec.layers(), 2);
  const Error missing = error_of([&] { describe(text); });
  EXPECT_EQ(missing.kind(), ErrorKind::corrupt_data);
  EXPECT_NE(std::string(missing.what()).find("is missing"), std::string::npos) << missing.what();

  text["model_type"] = "unheard";
  const Error unknown = error_of([&] { describe({{"model_type", "gemma3"}, {"text_config", text}}); });
  EXPECT_EQ(unknown.kind(), ErrorKind::unsupported);
  EXPECT_NE(std::string(unknown.what()).find("config.json, text_config"), std::string::npos)
      << unknown.what();
  EXPECT_EQ(error_of([] { describe({{"text_config", "none"}}); }).kind(), ErrorKind::corrupt_data);
}

TEST(TextConfig, ATiedHeadIsDeclaredAtTheTopOrInside) {
  const auto tied = [](const std::string& type, const Json& top, const Json& inside) {
    Json text = sizes(type);
    if (!inside.is_null()) text["tie_word_embeddings"] = inside;
    Json json{{"model_type", "whole"}, {"text_config", text}};
    if (!top.is_null()) json["tie_word_embeddings"] = top;
    return describe(json).tied;
  };
  EXPECT_FALSE(tied("llama", {}, {}));
  EXPECT_TRUE(tied("llama", true, {}));
  EXPECT_TRUE(tied("llama", {}, true));
  EXPECT_TRUE(tied("llama", false, true));
  EXPECT_TRUE(tied("llama", true, false));
  EXPECT_TRUE(tied("gemma3_text", {}, {}));
  EXPECT_FALSE(tied("gemma3_text", false, {}));
  EXPECT_FALSE(tied("gemma3_text", {}, false));
}

TEST(Families, OlderMultimodalFilesKeepTheTextAtTheTop) {
  Json json = sizes("qwen2_5_vl");
  json["vision_config"] = Json::object();
  const DecoderSpec spec = describe(json);
  EXPECT_TRUE(spec.attention[0].qkv_bias);
  EXPECT_EQ(spec.attention[0].kv_heads, 8);
  EXPECT_EQ(spec.norms.spec.eps, 1e-5);
  EXPECT_EQ(spec.ropes[0].theta, 1e6);
}

// Each family's defaults describe a whole model.
TEST(Families, DefaultsAreComplete) {
  for (const Family* family : all_families()) {
    Json json{{"model_type", "whole"}, {"text_config", {{"model_type", family->model_type}}}};
    // The sizes of this class make heads of which no half can turn, in transformers either; its files name another.
    if (family->model_type == "glm4_moe") json["text_config"]["head_dim"] = 128;
    // This class has no sizes of the indexer.
    if (family->model_type == "qwen4_exp_text") {
      json["text_config"].update({{"indexer_kv_heads", 1},
                                  {"indexer_n_heads", 4},
                                  {"indexer_head_dim", 128},
                                  {"indexer_budget", 2048},
                                  {"indexer_compress_ratio", 16}});
    }
    const DecoderSpec spec = describe(json);
    EXPECT_GE(spec.layers(), 24) << family->model_type;
    // Some have no positions at all.
    for (const RopeSpec& rope : spec.ropes) EXPECT_GE(rope.max_positions, 2048) << family->model_type;
  }
}

}  // namespace
}  // namespace gramian
