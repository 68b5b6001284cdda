// The parts that module trees are put together of, as a layer is of blocks (notation: models/sharing/layer_tree.h). Modules with
// one `in=` under one parent read the same tensor in every layer that has them: `gramian probe` holds that against a forward.
#pragma once

namespace gramian::trees {

inline constexpr char kAttention[] =
    R"("self_attn": ["q_proj:0:in=x", "k_proj:0:in=x", "v_proj:0:in=x", "o_proj:1"])";
inline constexpr char kFusedAttention[] = R"("self_attn": ["qkv_proj:0", "o_proj:1"])";
// With and without a latent of q, whose up-projection does not read what that of keys and values does; a Kimi delta rule in
// their place; an indexer beside them.
inline constexpr char kLatentAttention[] =
    R"("self_attn": {"": ["q_proj:0:in=x", "k_proj:0:in=x", "v_proj:0:in=x", "q_a_proj:0:in=x",
       "kv_a_proj_with_mqa:0:in=x", "f_a_proj:0:in=x:!", "b_proj:0:in=x:!", "g_a_proj:0:in=x:!", "f_b_proj:1:!", "g_b_proj:1:!",
       "q_b_proj:1:in=q_a", "kv_b_proj:1:in=kv_a", "o_proj:2"],
       "indexer:!": ["wk:0:in=x", "weights_proj:0:in=x", "wq_b:1"]})";
inline constexpr char kIndexedAttention[] =
    R"("self_attn": {"indexer:!": ["index_qk_proj"],
       "": ["q_proj:0:in=x", "k_proj:0:in=x", "v_proj:0:in=x", "o_proj:1"]})";

// The delta rule's projections: q, k and v in one; with z too, by key heads; one by one.
inline constexpr char kDeltaNet[] =
    R"("linear_attn": ["in_proj_qkv:0:in=x", "in_proj_z:0:in=x", "in_proj_b:0:in=x:!", "in_proj_a:0:in=x:!", "out_proj:1"])";
inline constexpr char kDeltaNetByKeyHead[] =
    R"("linear_attn": ["in_proj_qkvz:0:in=x", "in_proj_ba:0:in=x:!", "out_proj:1"])";
inline constexpr char kDeltaNetOneByOne[] =
    R"("linear_attn": ["q_proj:0:in=x", "k_proj:0:in=x", "v_proj:0:in=x", "g_proj:0:in=x", "b_proj:0:in=x:!",
       "a_proj:0:in=x:!", "o_proj:1"])";

inline constexpr char kMlp[] = R"("mlp": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"])";
inline constexpr char kFusedMlp[] = R"("mlp": ["gate_up_proj:0", "down_proj:1"])";
// Mixtures, with the MLP of layers that have none under "". An expert reads the rows sent to it and shares them with nobody.
inline constexpr char kMixture[] =
    R"("mlp|block_sparse_moe:moe": {"": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"], "gate": ["gate:!"],
       "router": ["router:!"], "experts": {"#": ["gate_proj|w1:0:in=x", "up_proj|w3:0:in=x", "down_proj|w2:1"]}})";
// With one shared expert, calibrated beside the others.
inline constexpr char kQwenMixture[] =
    R"("mlp:moe": {"": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"], "gate": ["gate:!"],
       "shared_expert_gate": ["shared_expert_gate:!"], "shared_expert:0": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"],
       "experts:0": {"#": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"]}})";
inline constexpr char kLlama4Mixture[] =
    R"("feed_forward:moe": {"": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"], "router": ["router:!"],
       "experts:0": {"#": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"]},
       "shared_expert:0": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"]})";
// With shared experts stored as one.
inline constexpr char kGroupedMixture[] =
    R"("mlp|block_sparse_moe:moe": {"": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"], "gate": ["gate:!"],
       "experts": {"#": ["gate_proj|w1:0:in=x", "up_proj|w3:0:in=x", "down_proj|w2:1"]},
       "shared_experts": ["gate_proj:0:in=x", "up_proj:0:in=x", "down_proj:1"]})";

// What weighs the streams of a residual, before attention and before the MLP.
inline constexpr char kHyperConnections[] =
    R"("attn_hyper_connection:!": ["input_mix_weight_down:0:in=x", "block_inject_weight:0:in=x", "input_mix_weight_up:1"],
       "mlp_hyper_connection:!": ["input_mix_weight_down:0:in=x", "block_inject_weight:0:in=x", "input_mix_weight_up:1"])";

}  // namespace gramian::trees
