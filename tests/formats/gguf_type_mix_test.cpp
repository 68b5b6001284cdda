#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/gguf/type_mix.h"

namespace gramian::gguf {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> llama_names(int layers) {
  std::vector<std::string> names;
  for (int i = 0; i < layers; ++i) {
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      names.push_back(str("model.layers.", i, ".", module, ".weight"));
  }
  return names;
}

Json llama(int layers) {
  return {{"model_type", "llama"},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 8}};
}

// The layers whose `module` has another type than the mixture's.
std::string better(const std::map<std::string, const Codec*>& types, const std::string& module, int layers,
                   const std::string& usual) {
  std::string text;
  for (int i = 0; i < layers; ++i) {
    const auto type = std::string(types.at(str("model.layers.", i, ".", module, ".weight"))->name);
    if (type != usual) text += str(text.empty() ? "" : " ", i, ":", type);
  }
  return text;
}

TEST(TypeMix, OfALlama) {
  constexpr int kLayers = 16;
  const auto types = [&](const char* name) {
    return mixed_types(*find_type_mix(name), llama_names(kLayers), llama(kLayers));
  };
  const auto medium = types("Q4_K_M"), small = types("q4_k_s"), five = types("q5_k_m");
  const char* layers = "0:Q6_K 1:Q6_K 4:Q6_K 7:Q6_K 10:Q6_K 13:Q6_K 14:Q6_K 15:Q6_K";
  EXPECT_EQ(better(medium, "mlp.down_proj", kLayers, "Q4_K"), layers);
  EXPECT_EQ(better(medium, "self_attn.v_proj", kLayers, "Q4_K"), layers);
  EXPECT_EQ(better(five, "mlp.down_proj", kLayers, "Q5_K"), layers);
  EXPECT_EQ(better(small, "mlp.down_proj", kLayers, "Q4_K"), "0:Q5_K 1:Q5_K");
  EXPECT_EQ(better(small, "self_attn.v_proj", kLayers, "Q4_K"), "0:Q5_K 1:Q5_K 2:Q5_K 3:Q5_K");
  for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj"})
    EXPECT_EQ(better(medium, module, kLayers, "Q4_K"), "") << module;
  const auto plain = types("q5_k_s");
  for (const auto& [name, codec] : plain) EXPECT_EQ(codec->name, "Q5_K") << name;
}

TEST(TypeMix, OfMixtures) {
  const Json config = {{"model_type", "mixtral"}, {"num_hidden_layers", 8}, {"num_local_experts", 8}};
  const std::string layer = "model.layers.3.";
  const std::vector<std::string> names{layer + "self_attn.v_proj.weight",
                                       layer + "self_attn.k_proj.weight",
                                       layer + "self_attn.o_proj.weight",
                                       layer + "block_sparse_moe.experts.5.w2.weight",
                                       layer + "block_sparse_moe.experts.5.w1.weight",
                                       "no.such.weight"};
  const auto types = mixed_types(*find_type_mix("q4_k_m"), names, config);
  EXPECT_EQ(types.size(), 5U);
  EXPECT_EQ(types.at(names[0])->name, "Q8_0");
  EXPECT_EQ(types.at(names[1])->name, "Q8_0");
  EXPECT_EQ(types.at(names[2])->name, "Q5_K");
  EXPECT_EQ(types.at(names[3])->name, "Q6_K");  // layer 3 of 8: every third behind the first
  EXPECT_EQ(types.at(names[4])->name, "Q4_K");
}

TEST(TypeMix, WhereHeadsShareValues) {
  Json config = llama(80);
  config["num_key_value_heads"] = 1;
  const auto types = mixed_types(*find_type_mix("q4_k_m"), llama_names(80), config);
  EXPECT_EQ(types.at("model.layers.11.self_attn.v_proj.weight")->name, "Q5_K");
  EXPECT_EQ(types.at("model.layers.0.self_attn.v_proj.weight")->name, "Q6_K");
}

TEST(TypeMix, Names) {
  EXPECT_EQ(find_type_mix("q4_k"), nullptr);
  EXPECT_EQ(find_type_mix("Q5_K_S")->file_type, 16U);
}

}  // namespace
}  // namespace gramian::gguf
