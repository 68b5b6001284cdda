"""Variants of the architectures beyond Llama's nearest relatives, for make_arch_golden.py."""
BASE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "vocab_size": 160,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float32"}
LAYER_NORM = {**{key: value for key, value in BASE.items() if key != "rms_norm_eps"}, "layer_norm_eps": 1e-5}
GRANITE = {**BASE, "architectures": ["GraniteForCausalLM"], "model_type": "granite"}
OLMO2 = {**BASE, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
STABLELM = {**LAYER_NORM, "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_size": 64}
COHERE = {**LAYER_NORM, "architectures": ["CohereForCausalLM"], "model_type": "cohere", "tie_word_embeddings": True}
COHERE2 = {**COHERE, "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "num_hidden_layers": 4,
           "sliding_window": 6}
PHI3 = {**BASE, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
QWEN2_MOE = {**BASE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_hidden_layers": 3,
             "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
QWEN3_MOE = {**{key: value for key, value in QWEN2_MOE.items() if "shared" not in key}, "model_type": "qwen3_moe",
             "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 16}
MIXTRAL = {**BASE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 5,
           "num_experts_per_tok": 2}
GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_shared_experts": 1,
           "first_k_dense_replace": 1, "routed_scaling_factor": 2.5}
DEEPSEEK = {**BASE, **GROUPED, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
            "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
            "v_head_dim": 6, "n_group": 4, "topk_group": 2}
GLM4_MOE = {**BASE, **GROUPED, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "head_dim": 16}
GPT_OSS = {**BASE, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 16, "num_local_experts": 5,
           "num_experts_per_tok": 2, "sliding_window": 6, "intermediate_size": 20, "max_position_embeddings": 256}
LLAMA4 = {**BASE, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "head_dim": 16,
          "num_hidden_layers": 4, "num_local_experts": 5, "num_experts_per_tok": 1, "intermediate_size": 20,
          "intermediate_size_mlp": 40, "attention_chunk_size": 7, "floor_scale": 5, "interleave_moe_layer_step": 2}
# Small, as they go into the tree: rows are longer than what an indexer lets a token read.
STREAMS = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 80,
           "max_position_embeddings": 64, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
           "moe_intermediate_size": 8, "num_experts_per_tok": 2}
GLM5 = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": False,
        "image_token_id": 75, "video_token_id": 76, "image_start_token_id": 77, "image_end_token_id": 78,
        "video_start_token_id": 79, "video_end_token_id": 74,
        "text_config": {
            **STREAMS, "model_type": "glm5_next_text", "num_key_value_heads": 2, "pad_token_id": 0, "intermediate_size": 12,
            "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"], "indexer_types": ["full", "full", "shared"],
            "linear_head_dim": 8, "linear_num_heads": 2, "linear_lower_bound": -5.0, "q_lora_rank": 12, "kv_lora_rank": 8,
            "qk_nope_head_dim": 6, "v_head_dim": 6, "n_routed_experts": 3, "swiglu_limit": 2.0, "hc_mult": 2,
            "hc_sinkhorn_iters": 4, "index_head_dim": 8, "index_n_heads": 2, "index_kpool": 4, "index_topk": 8},
        "vision_config": {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "image_size": 8, "patch_size": 2,
                          "spatial_merge_size": 1, "temporal_patch_size": 1, "out_hidden_size": 16,
                          "projection_intermediate_size": 8}}
QWEN4 = {**STREAMS, "architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text", "num_key_value_heads": 1,
         "head_dim": 8, "num_experts": 3, "shared_expert_intermediate_size": 8,
         "layer_types": ["linear_attention", "linear_attention", "indexed_attention"],
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
         "linear_key_head_dim": 4, "linear_value_head_dim": 6, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
         "hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8,
         "indexer_budget": 8, "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ple_embed_dim": 8, "heads_per_ngram": 2,
         "ngram_vocab_size_base": 20, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2}
PUBLISHED = {"published": True}


def dense_variants(add, rope, old_rope):
    add("granite-plain", GRANITE, {})
    multipliers = {"embedding_multiplier": 5.5, "attention_multiplier": 0.3, "residual_multiplier": 0.37, "logits_scaling": 0.7}
    ones = dict.fromkeys(multipliers, 1.0)
    add("granite-multipliers", GRANITE, multipliers, ones)
    add("granite-bias-tied", GRANITE, {**multipliers, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"attention_bias": False, "mlp_bias": False})
    add("granite-yarn", GRANITE, rope("yarn", factor=4.0, original_max_position_embeddings=16), rope("default"))

    add("olmo2-plain", OLMO2, {})
    add("olmo2-bias-mqa-tied", OLMO2, {"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"attention_bias": False})
    add("olmo2-defaults", {key: value for key, value in OLMO2.items() if key != "rms_norm_eps"}, {"num_key_value_heads": None})

    add("stablelm-plain", STABLELM, {})
    add("stablelm-parallel", STABLELM, {"use_parallel_residual": True}, {"use_parallel_residual": False})
    add("stablelm-qk-norm", STABLELM, {"qk_layernorm": True}, {"qk_layernorm": False})
    add("stablelm-everything", STABLELM, {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True,
                                          "tie_word_embeddings": True, "num_key_value_heads": 4})
    add("stablelm-partial-nested", STABLELM, rope("default", partial_rotary_factor=0.5), {"rope_parameters": None})
    add("stablelm-partial-on-top", STABLELM, {"partial_rotary_factor": 0.75}, {"partial_rotary_factor": 0.25})
    add("stablelm-eps", STABLELM, {"layer_norm_eps": 0.3}, {"layer_norm_eps": 1e-5})

    add("cohere-plain", COHERE, {})
    add("cohere-qk-norm", COHERE, {"use_qk_norm": True}, {"use_qk_norm": False})
    add("cohere-bias-untied", COHERE, {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.9},
        {"attention_bias": False})
    add("cohere-theta", COHERE, {"rope_theta": 90.0}, {"rope_theta": 500000.0})
    add("cohere-tied-by-default", {key: value for key, value in COHERE.items() if not key.startswith("tie")}, {})
    add("cohere-linear", COHERE, old_rope("linear", factor=3.0), {"rope_scaling": None})

    add("cohere2-plain", COHERE2, {})
    add("cohere2-pattern", COHERE2, {"sliding_window_pattern": 2}, {"sliding_window_pattern": 4})
    add("cohere2-layer-types", COHERE2, {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {"layer_types": ["sliding_attention"] * 4})
    add("cohere2-head-dim", COHERE2, {"head_dim": 12})
    add("cohere2-bias", COHERE2, {"attention_bias": True, "logit_scale": 1.5}, {"attention_bias": False})

    add("phi3-plain", PHI3, {})
    add("phi3-window-mqa-tied", PHI3, {"sliding_window": 5, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"sliding_window": None})
    long = {"short_factor": [1.0, 1.3, 2.0, 3.5], "long_factor": [1.5, 4.0, 7.0, 20.0]}
    add("phi3-longrope", PHI3, {"original_max_position_embeddings": 16, **rope("longrope", **long)}, rope("default"))
    add("phi3-longrope-short", PHI3, {"original_max_position_embeddings": 32, **rope("longrope", **long)}, rope("default"))
    for kind in ("su", "yarn", "longrope"):
        add(f"phi3-old-{kind}", PHI3, old_rope(kind, original_max_position_embeddings=16, **long), {"rope_scaling": None})
    few = {name: factors[:3] for name, factors in long.items()}
    add("phi3-partial", PHI3, {"original_max_position_embeddings": 16, "partial_rotary_factor": 0.75, **old_rope("longrope", **few)},
        {"rope_scaling": None})
    add("phi3-original-nested", PHI3, rope("longrope", original_max_position_embeddings=16, **long))


def mixture_variants(add, rope, old_rope):
    add("qwen2_moe-plain", QWEN2_MOE, {}, None, **PUBLISHED)
    add("qwen2_moe-stacked", QWEN2_MOE, {"norm_topk_prob": True}, {"norm_topk_prob": False})
    add("qwen2_moe-no-bias-step", QWEN2_MOE, {"qkv_bias": False, "decoder_sparse_step": 2, "tie_word_embeddings": True},
        None, **PUBLISHED)
    add("qwen2_moe-only", QWEN2_MOE, {"mlp_only_layers": [0, 2], "num_experts_per_tok": 1}, None, **PUBLISHED)
    add("qwen2_moe-window", QWEN2_MOE, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
        {"use_sliding_window": False}, **PUBLISHED)
    add("qwen3_moe-plain", QWEN3_MOE, {}, None, **PUBLISHED)
    add("qwen3_moe-stacked", QWEN3_MOE, {"norm_topk_prob": True, "mlp_only_layers": [1]}, {"norm_topk_prob": False})

    add("mixtral-plain", MIXTRAL, {}, None, **PUBLISHED)
    add("mixtral-stacked", MIXTRAL, {})
    add("mixtral-stacked-older", MIXTRAL, {"num_experts_per_tok": 3}, None, rename={
        f"model.layers.{i}.mlp.": f"model.layers.{i}.block_sparse_moe." for i in range(2)})
    add("mixtral-window-head-dim", MIXTRAL, {"sliding_window": 5, "head_dim": 12, "tie_word_embeddings": True},
        {"sliding_window": None}, **PUBLISHED)
    add("mixtral-one-expert", MIXTRAL, {"num_local_experts": 1, "num_experts_per_tok": 1}, None, **PUBLISHED)

    yarn = {"factor": 4.0, "original_max_position_embeddings": 16}
    add("deepseek_v3-plain", DEEPSEEK, {}, None, **PUBLISHED)
    add("deepseek_v3-stacked", DEEPSEEK, {"n_shared_experts": 2})
    add("deepseek_v3-no-q-rank", DEEPSEEK, {"q_lora_rank": None}, None, **PUBLISHED)
    add("deepseek_v3-halves", DEEPSEEK, {"rope_interleave": False}, {"rope_interleave": True}, **PUBLISHED)
    add("deepseek_v3-yarn", DEEPSEEK, old_rope("yarn", mscale=0.8, mscale_all_dim=1.4, **yarn), {"rope_scaling": None}, **PUBLISHED)
    add("deepseek_v3-yarn-mscale-alone", DEEPSEEK, old_rope("yarn", mscale=0.8, **yarn), {"rope_scaling": None}, **PUBLISHED)
    add("deepseek_v3-linear-mscale", DEEPSEEK, rope("linear", factor=3.0, mscale_all_dim=1.4), rope("linear", factor=3.0),
        **PUBLISHED)
    add("deepseek_v3-bias-tied", DEEPSEEK, {"attention_bias": True, "tie_word_embeddings": True}, {"attention_bias": False},
        **PUBLISHED)
    add("deepseek_v3-one-group", DEEPSEEK, {"n_group": 1, "topk_group": 1}, {"n_group": 4, "topk_group": 1}, **PUBLISHED)
    add("deepseek_v3-unnormed", DEEPSEEK, {"norm_topk_prob": False, "first_k_dense_replace": 0, "routed_scaling_factor": 0.6},
        {"norm_topk_prob": True}, **PUBLISHED)
    add("deepseek_v3-wide-values", DEEPSEEK, {"v_head_dim": 24, "qk_nope_head_dim": 4, "num_attention_heads": 3,
                                              "num_key_value_heads": 3}, None, **PUBLISHED)
    add("deepseek_v3-eps", DEEPSEEK, {"rms_norm_eps": 0.1}, {"rms_norm_eps": 1e-5}, **PUBLISHED)

    add("glm4_moe-plain", GLM4_MOE, {}, None, **PUBLISHED)
    add("glm4_moe-stacked", GLM4_MOE, {"use_qk_norm": True, "attention_bias": True}, {"use_qk_norm": False})
    add("glm4_moe-groups", GLM4_MOE, {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}, {"n_group": 1, "topk_group": 1},
        **PUBLISHED)
    add("glm4_moe-partial", GLM4_MOE, {"partial_rotary_factor": 0.25, "tie_word_embeddings": True},
        {"partial_rotary_factor": 0.5}, **PUBLISHED)

    add("gpt_oss-plain", GPT_OSS, rope("default", 10000.0))
    add("gpt_oss-positions-by-default", GPT_OSS, {"max_position_embeddings": 131072}, rope("default", 150000.0))
    add("gpt_oss-yarn", GPT_OSS, old_rope("yarn", "rope_type", 150000.0, factor=8.0, truncate=False, beta_fast=32.0,
                                          beta_slow=1.0, original_max_position_embeddings=32), {"rope_scaling": None})
    add("gpt_oss-no-bias-tied", GPT_OSS, {"attention_bias": False, "tie_word_embeddings": True, **rope("default")})
    add("gpt_oss-clamp", GPT_OSS, {"swiglu_limit": 0.7, "swiglu_alpha": 0.9, **rope("default")},
        {"swiglu_limit": 7.0, "swiglu_alpha": 1.702})
    add("gpt_oss-layer-types", GPT_OSS, {"layer_types": ["full_attention", "sliding_attention"], **rope("default")},
        {"layer_types": ["sliding_attention", "full_attention"]})

    add("llama4_text-plain", LLAMA4, {})
    add("llama4_text-no-norm", LLAMA4, {"use_qk_norm": False}, {"use_qk_norm": True})
    add("llama4_text-no-temperature", LLAMA4, {"attn_temperature_tuning": False}, {"attn_temperature_tuning": True})
    add("llama4_text-scale", LLAMA4, {"attn_scale": 0.8, "floor_scale": 2}, {"attn_scale": 0.1})
    add("llama4_text-no-rope-layers", LLAMA4, {"no_rope_layers": [0, 1, 1, 0]}, {"no_rope_layers": [1, 1, 1, 0]})
    add("llama4_text-interval", LLAMA4, {"no_rope_layer_interval": 2, "no_rope_layers": None}, {"no_rope_layer_interval": 4})
    add("llama4_text-moe-layers", LLAMA4, {"moe_layers": [0, 3]})
    add("llama4_text-top-two", LLAMA4, {"num_experts_per_tok": 2, "interleave_moe_layer_step": 1,
                                        "tie_word_embeddings": True}, {"num_experts_per_tok": 1})
    add("llama4_text-llama3", LLAMA4, rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=16), rope("default", 500000.0))
    add("llama4_text-bias-chunk", LLAMA4, {"attention_bias": True, "attention_chunk_size": 24}, {"attention_chunk_size": 7})


def stream_variants(add, narrow):
    text = GLM5["text_config"]
    add("glm5_next-small", GLM5, {}, {"text_config": {**text, "index_topk": 24}}, stored=narrow, **PUBLISHED)
    add("glm5_next-four-streams", GLM5, {"text_config": {**text, "hc_mult": 4, "hc_sinkhorn_iters": 1, "index_kpool": 2,
                                                         "linear_lower_bound": None}}, **PUBLISHED)
    add("qwen4_exp_text-small", QWEN4, {}, {"indexer_budget": 24}, stored=narrow, **PUBLISHED)
    add("qwen4_exp_text-sigmoid-gate", QWEN4, {"output_gate_type": "sigmoid", "ple_layer_ids": [1, 2], "ngram_size": 2,
                                               "hc_count": 3}, {"output_gate_type": None}, **PUBLISHED)
