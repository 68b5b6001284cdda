#include <gtest/gtest.h>

#include <vector>

#include "formats/gguf/names.h"

namespace gramian::gguf {
namespace {

TEST(GgufNames, EveryPlaceOfAModelHasItsName) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
      {"model.layers.12.self_attn.q_proj.weight", "blk.12.attn_q.weight"},
      {"model.layers.1.self_attn.k_proj.bias", "blk.1.attn_k.bias"},
      {"model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"},
      {"model.layers.1.self_attn.o_proj.weight", "blk.1.attn_output.weight"},
      {"model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight"},
      {"model.layers.1.self_attn.k_norm.weight", "blk.1.attn_k_norm.weight"},
      {"model.layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"},
      {"model.layers.1.mlp.gate_proj.weight", "blk.1.ffn_gate.weight"},
      {"model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"},
      {"model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"},
      {"model.layers.1.mlp.gate.weight", "blk.1.ffn_gate_inp.weight"},
      {"model.layers.1.block_sparse_moe.gate.weight", "blk.1.ffn_gate_inp.weight"}};
  for (const auto& [from, to] : names) {
    const std::string type = from.find("block_sparse_moe") == std::string::npos ? "llama" : "mixtral";
    const auto found = mapped_name(from, type);
    ASSERT_TRUE(found.has_value()) << from;
    EXPECT_EQ(found->name, to);
    EXPECT_EQ(found->expert, -1) << from;
    EXPECT_EQ(checkpoint_name(to, type), from);
  }
}

TEST(GgufNames, ExpertsAreMatricesOfAStack) {
  for (const auto& [from, to, expert] : std::vector<std::tuple<std::string, std::string, int64_t>>{
           {"model.layers.3.mlp.experts.0.gate_proj.weight", "blk.3.ffn_gate_exps.weight", 0},
           {"model.layers.3.mlp.experts.127.up_proj.weight", "blk.3.ffn_up_exps.weight", 127},
           {"model.layers.3.block_sparse_moe.experts.7.w2.weight", "blk.3.ffn_down_exps.weight", 7}}) {
    const std::string type = from.find("block_sparse_moe") == std::string::npos ? "qwen3_moe" : "mixtral";
    const auto found = mapped_name(from, type);
    ASSERT_TRUE(found.has_value()) << from;
    EXPECT_EQ(found->name, to);
    EXPECT_EQ(found->expert, expert);
    EXPECT_EQ(checkpoint_name(to, type, expert), from);
  }
}

TEST(GgufNames, GemmasNormsStandElsewhere) {
  const std::string after = "model.layers.0.post_attention_layernorm.weight";
  EXPECT_EQ(mapped_name(after, "gemma2")->name, "blk.0.post_attention_norm.weight");
  EXPECT_EQ(mapped_name(after, "gemma3_text")->name, "blk.0.post_attention_norm.weight");
  EXPECT_EQ(mapped_name(after, "gemma")->name, "blk.0.ffn_norm.weight");
  EXPECT_EQ(mapped_name("model.layers.0.pre_feedforward_layernorm.weight", "gemma2")->name,
            "blk.0.ffn_norm.weight");
  EXPECT_EQ(mapped_name("model.layers.0.post_feedforward_layernorm.weight", "gemma2")->name,
            "blk.0.post_ffw_norm.weight");
}

TEST(GgufNames, OtherNamesHaveNoPlace) {
  for (const char* name :
       {"", ".weight", "lm_head", "lm_head.scale", "model.layers.weight", "model.layers..mlp.up_proj.weight",
        "model.layers.-1.mlp.up_proj.weight", "model.layers.1", "model.layers.1.weight",
        "model.layers.1.mamba.in_proj.weight", "model.layers.99999999999999999999.mlp.up_proj.weight",
        "model.layers.1.mlp.experts.x.up_proj.weight", "model.layers.1.mlp.experts.1.router.weight",
        "model.layers.1.pre_feedforward_layernorm.weight"}) {
    EXPECT_FALSE(mapped_name(name, "llama").has_value()) << name;
  }
}

}  // namespace
}  // namespace gramian::gguf
