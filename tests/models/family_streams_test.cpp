// What the families with several residual streams read from a config.json.
#include <gtest/gtest.h>

#include "models/family.h"
#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

DecoderSpec describe(const Json& json) {
  const ConfigReader config(json, "config.json");
  return find_family(config).describe(config);
}

// The key that a refusal names.
void expect_refused(Json json, const std::string& key, const Json& value) {
  (json.contains("text_config") ? json["text_config"] : json)[key] = value;
  const Error error = error_of([&] { describe(json); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << key;
  EXPECT_NE(std::string(error.what()).find("'" + key + "'"), std::string::npos) << error.what();
}

Json glm(const Json& text = Json::object()) {
  Json json{{"model_type", "glm5_next"},
            {"text_config", {{"model_type", "glm5_next_text"}}},
            {"vision_config", {}}};
  json["text_config"].update(text);
  return json;
}

TEST(Glm5Next, Defaults) {
  const DecoderSpec spec = describe(glm());
  EXPECT_EQ(spec.layers(), 45);
  EXPECT_EQ(spec.recurrent[2], true);
  EXPECT_EQ(spec.recurrent[3], false);
  EXPECT_EQ(spec.mixture[2].router.experts, 0);
  EXPECT_EQ(spec.mixture[3].router.experts, 288);
  EXPECT_EQ(spec.mixture[3].expert.limit, 10);
  EXPECT_EQ(spec.mixture[3].shared_expert.limit, 10);
  EXPECT_EQ(spec.kimi_delta->lower_bound, -5);
  EXPECT_EQ(spec.latent->norm.eps, 1e-5);
  EXPECT_FALSE(spec.latent->rope);
  EXPECT_EQ(spec.latent->index->pools_max, 128);
  EXPECT_EQ(spec.streams->count, 4);
  EXPECT_EQ(spec.shared_index, std::vector<bool>(45, false));
}

TEST(Glm5Next, WhichLayersTakeOverAChoiceOfKeys) {
  const Json sizes{{"num_hidden_layers", 6}};
  const auto shared = [&](Json more) {
    more.update(sizes);
    return describe(glm(more)).shared_index;
  };
  const std::vector<bool> every_third{false, false, true, true, false, true};
  EXPECT_EQ(shared({{"index_topk_freq", 3}}), every_third);
  EXPECT_EQ(shared({{"index_topk_pattern", "FFSSFS"}}), every_third);
  EXPECT_EQ(shared({{"indexer_types", {"full", "full", "shared", "shared", "full", "shared"}}}), every_third);
  expect_refused(glm(sizes), "indexer_types", {"full"});
  expect_refused(glm(sizes), "index_topk_pattern", "FFXSFS");
}

TEST(Glm5Next, SettingsOfTheRecurrenceAsItsMakersNestThem) {
  const DecoderSpec spec = describe(glm(
      {{"layer_types", nullptr},
       {"linear_attn_config",
        {{"head_dim", 16}, {"num_heads", 2}, {"short_conv_kernel_size", 3}, {"gate_lower_bound", -2.5}}}}));
  EXPECT_EQ(spec.kimi_delta->sizes.keys(), 32);
  EXPECT_EQ(spec.kimi_delta->sizes.kernel, 3);
  EXPECT_EQ(spec.kimi_delta->lower_bound, -2.5);
  EXPECT_FALSE(describe(glm({{"linear_lower_bound", nullptr}})).kimi_delta->lower_bound);
}

TEST(Glm5Next, WhatIsRefused) {
  expect_refused(glm(), "qk_rope_head_dim", 64);
  expect_refused(glm(), "q_lora_rank", nullptr);
  expect_refused(glm(), "index_topk", 2040);
  expect_refused(glm(), "linear_lower_bound", 1.0);
  expect_refused(glm(), "swiglu_limit", 0.0);
  expect_refused(glm(), "hc_sinkhorn_iters", 0);
  EXPECT_EQ(error_of([] { describe(glm({{"index_kpool_always_select_tail", false}})); }).kind(),
            ErrorKind::unsupported);
}

Json qwen(const Json& more = Json::object()) {
  Json json{{"model_type", "qwen4_exp_text"}, {"vocab_size", 99},           {"hidden_size", 64},
            {"num_hidden_layers", 8},         {"num_attention_heads", 4},   {"head_dim", 32},
            {"indexer_n_heads", 4},           {"indexer_kv_heads", 1},      {"indexer_head_dim", 16},
            {"indexer_budget", 64},           {"indexer_compress_ratio", 8}};
  json.update(more);
  return json;
}

TEST(Qwen4, DefaultsAndKinds) {
  DecoderSpec spec = describe(qwen());
  EXPECT_EQ(spec.recurrent, std::vector<bool>({true, true, true, false, true, true, true, false}));
  EXPECT_EQ(spec.attention[3].index->pools_max, 8);
  EXPECT_TRUE(spec.attention[3].gated);
  EXPECT_EQ(spec.streams->count, 4);
  EXPECT_EQ(spec.streams->rank, 320);
  EXPECT_EQ(spec.mixture[0].router.top_k, 10);
  EXPECT_TRUE(spec.mixture[0].router.norm_top_k);
  EXPECT_FALSE(spec.ngrams);
  EXPECT_EQ(spec.delta_net->norm.gate, Gate::silu);
  spec = describe(qwen({{"num_hidden_layers", 2},
                        {"layer_types", {"full_attention", "indexed_attention"}},
                        {"output_gate_type", "sigmoid"}}));
  EXPECT_EQ(spec.recurrent, std::vector<bool>({false, false}));
  EXPECT_EQ(spec.delta_net->norm.gate, Gate::sigmoid);
}

TEST(Qwen4, LayersWithNgramsCountFromOne) {
  const Json with{{"ple_layer_ids", {3, 1}}, {"eos_token_id", {7, 8}}};
  const DecoderSpec spec = describe(qwen(with));
  EXPECT_EQ(spec.ngram_layers, std::vector<bool>({true, false, true, false, false, false, false, false}));
  EXPECT_EQ(spec.ngrams->eos, 7);
  EXPECT_EQ(spec.ngrams->dim, 64);
  EXPECT_EQ(spec.ngrams->heads(), 16);
  expect_refused(qwen(with), "ple_layer_ids", {9});
  expect_refused(qwen(with), "ple_embed_dim", 60);
  expect_refused(qwen(with), "eos_token_id", nullptr);
}

TEST(Qwen4, WhatIsRefused) {
  expect_refused(qwen(), "indexer_kv_heads", 2);
  expect_refused(qwen(), "indexer_n_heads", nullptr);
  expect_refused(qwen(), "indexer_head_dim", 7);
  expect_refused(qwen(), "indexer_budget", 63);
  expect_refused(qwen(), "hc_count", 1);
  EXPECT_EQ(error_of([] { describe(qwen({{"output_gate_type", "relu"}})); }).kind(), ErrorKind::unsupported);
}

}  // namespace
}  // namespace gramian
