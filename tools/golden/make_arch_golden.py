#!/usr/bin/env python3
"""Makes golden folders for the set `arch`: variants of the families with random weights, run by transformers.

    python tools/golden/make_arch_golden.py OUT [--only NAME ...] [--seed N] [--list]

OUT gets one folder a variant and an index.json, in the structure that tests/golden/arch/README.md describes; compare with

    GRAMIAN_GOLDEN=<folder that holds OUT under the name arch> build/golden_arch

Needs torch, transformers 5.23 and safetensors. Every variant is written as a config.json in the words that a checkpoint
would use (old and new spellings of the rotary settings among them), loaded back by transformers from that file, and run
in float32 with eager attention. `noise` is what 1e-6 of relative noise on every weight does to the logits: the tolerance is
four times that, at least 2e-4; a seed whose routing it changes is given up for another. `setting_moves_logits` is what the variant's own settings do to them: a reader that
ignored them would fail.
"""
import argparse
import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import arch_variants

ROWS, LENGTH = 2, 24

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "vocab_size": 160, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
GEMMA = {**LLAMA, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16,
         "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "num_key_value_heads": 1}
GEMMA2 = {**{key: value for key, value in GEMMA.items() if key != "hidden_act"}, "model_type": "gemma2",
          "architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 2,
          "query_pre_attn_scalar": 16, "sliding_window": 6}
GEMMA3 = {**GEMMA2, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3,
          "sliding_window_pattern": 2}
# Text parts of multimodal files: `text` is nested under text_config, what stands at the top comes with the vision part.
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
          "patch_size": 4}
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "rope_scaling": None}


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def old_rope(kind, key="type", theta=10000.0, **more):
    return {"rope_theta": theta, "rope_scaling": {key: kind, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"short_factor": [1.0, 1.3, 2.0, 3.5], "long_factor": [1.5, 4.0, 7.0, 20.0]}


def variants():
    """name -> (config, settings that a careless reader would miss, options of the weights)"""
    table = {}

    def add(name, base, settings, without=None, **options):
        assert name not in table
        table[name] = ({**base, **settings}, without, options)

    # Shapes, biases, heads.
    add("llama-plain", LLAMA, {})
    add("llama-no-rope-keys", LLAMA, {"max_position_embeddings": 2048})
    add("llama-attention-bias", LLAMA, {"attention_bias": True}, {"attention_bias": False})
    add("llama-mlp-bias", LLAMA, {"mlp_bias": True}, {"mlp_bias": False})
    add("llama-all-bias-tied", LLAMA, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"attention_bias": False, "mlp_bias": False})
    add("llama-tied", LLAMA, {"tie_word_embeddings": True})
    add("llama-tied-equal-head-stored", LLAMA, {"tie_word_embeddings": True}, store_head="equal")
    add("llama-tied-other-head-stored", LLAMA, {"tie_word_embeddings": True}, store_head="other")
    add("llama-wide-heads", LLAMA, {"head_dim": 16})
    add("llama-narrow-heads", LLAMA, {"head_dim": 4, **rope("default", 500.0)}, PLAIN_ROPE)
    add("llama-head-dim-null", LLAMA, {"head_dim": None})
    add("llama-mha", LLAMA, {"num_key_value_heads": None})
    add("llama-mqa", LLAMA, {"num_key_value_heads": 1, "num_attention_heads": 8})
    add("llama-odd-sizes", LLAMA, {"hidden_size": 42, "intermediate_size": 37, "num_attention_heads": 7,
                                   "num_key_value_heads": 7, "vocab_size": 97, "num_hidden_layers": 3})
    add("llama-large-vocabulary", LLAMA, {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 8999,
                                          "num_hidden_layers": 1})
    add("llama-eps", LLAMA, {"rms_norm_eps": 0.05}, {"rms_norm_eps": 1e-6})
    for act in ("gelu", "gelu_pytorch_tanh", "gelu_new", "swish"):
        add(f"llama-{act}", LLAMA, {"hidden_act": act}, {"hidden_act": "silu"} if act != "swish" else None)
    add("llama-sharded", LLAMA, {"num_hidden_layers": 3}, shards=3)
    add("llama-stored-bf16", LLAMA, {"torch_dtype": "bfloat16"}, stored=torch.bfloat16)
    add("llama-stored-f16", LLAMA, {"torch_dtype": "float16"}, stored=torch.float16)

    # Rotary settings, new spelling.
    add("llama-theta", LLAMA, rope("default", 500000.0), PLAIN_ROPE)
    add("llama-linear", LLAMA, rope("linear", factor=4.0), PLAIN_ROPE)
    add("llama-dynamic-long", LLAMA, {"max_position_embeddings": 16, **rope("dynamic", factor=3.0)}, PLAIN_ROPE)
    add("llama-dynamic-short", LLAMA, {"max_position_embeddings": 24, **rope("dynamic", factor=3.0)})
    add("llama-llama3", LLAMA, rope("llama3", **LLAMA3), PLAIN_ROPE)
    add("llama-llama3-no-original", LLAMA, rope("llama3", **{k: v for k, v in LLAMA3.items() if "original" not in k}),
        PLAIN_ROPE)
    add("llama-yarn", LLAMA, rope("yarn", **YARN), PLAIN_ROPE)
    ramp = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0}
    add("llama-yarn-no-truncate", LLAMA, rope("yarn", 100.0, truncate=False, **ramp), rope("yarn", 100.0, **ramp))
    add("llama-yarn-mscale", LLAMA, rope("yarn", mscale=0.7, mscale_all_dim=1.3, **YARN), rope("yarn", **YARN))
    add("llama-yarn-mscale-alone", LLAMA, rope("yarn", mscale=0.7, **YARN), PLAIN_ROPE)
    add("llama-yarn-attention-factor", LLAMA, rope("yarn", attention_factor=0.8, **YARN), rope("yarn", **YARN))
    add("llama-yarn-betas", LLAMA, rope("yarn", 100.0, beta_fast=4.0, beta_slow=0.5, **YARN), rope("yarn", 100.0, **YARN))
    add("llama-yarn-no-original", LLAMA, rope("yarn", factor=4.0), PLAIN_ROPE)
    add("llama-yarn-original-twice", LLAMA, {"original_max_position_embeddings": 40, **rope("yarn", 100.0, **YARN)},
        {"original_max_position_embeddings": 16, **rope("yarn", 100.0, **YARN)})
    add("llama-yarn-factor-null", LLAMA, rope("yarn", factor=None, original_max_position_embeddings=16), PLAIN_ROPE)
    add("llama-longrope-long", LLAMA, rope("longrope", original_max_position_embeddings=16, factor=4.0, **LONG), PLAIN_ROPE)
    add("llama-longrope-short", LLAMA, rope("longrope", original_max_position_embeddings=24, factor=4.0, **LONG), PLAIN_ROPE)
    add("llama-longrope-no-factor", LLAMA, rope("longrope", original_max_position_embeddings=16, **LONG), PLAIN_ROPE)
    add("llama-longrope-attention-factor", LLAMA,
        rope("longrope", original_max_position_embeddings=16, attention_factor=1.4, factor=4.0, **LONG),
        rope("longrope", original_max_position_embeddings=16, factor=4.0, **LONG))
    add("llama-longrope-original-on-top", LLAMA, {"original_max_position_embeddings": 16, **rope("longrope", **LONG)},
        PLAIN_ROPE)
    add("llama-longrope-factor-below-one", LLAMA,
        rope("longrope", original_max_position_embeddings=128, factor=0.5, **LONG), PLAIN_ROPE)
    add("llama-partial-ignored", LLAMA, rope("default", partial_rotary_factor=0.5))
    add("llama-partial-on-top", LLAMA, {"partial_rotary_factor": 0.25})

    # Rotary settings, old spelling.
    add("llama-old-theta", LLAMA, {"rope_theta": 500000.0, "rope_scaling": None}, PLAIN_ROPE)
    add("llama-old-linear", LLAMA, old_rope("linear", factor=4.0), PLAIN_ROPE)
    add("llama-old-dynamic", LLAMA, {"max_position_embeddings": 16, **old_rope("dynamic", factor=2.0)}, PLAIN_ROPE)
    add("llama-old-llama3", LLAMA, old_rope("llama3", "rope_type", 500000.0, **LLAMA3), PLAIN_ROPE)
    add("llama-old-yarn", LLAMA, old_rope("yarn", **YARN), PLAIN_ROPE)
    add("llama-old-longrope", LLAMA,
        {"original_max_position_embeddings": 16, **old_rope("longrope", **LONG)}, PLAIN_ROPE)
    add("llama-both-spellings", LLAMA, {**rope("default", 500.0), "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        rope("default", 500.0) | {"rope_scaling": None})
    add("llama-empty-rope-parameters", LLAMA, {"rope_parameters": {}, "rope_theta": 500.0}, PLAIN_ROPE)

    # Qwen 2.
    add("qwen2-plain", QWEN2, {})
    add("qwen2-tied", QWEN2, {"tie_word_embeddings": True, "rope_theta": 1000000.0})
    add("qwen2-head-dim", QWEN2, {"head_dim": 12})
    add("qwen2-mqa-bf16", QWEN2, {"num_key_value_heads": 1}, stored=torch.bfloat16)
    window = {"use_sliding_window": True, "sliding_window": 5}
    no_window = {"use_sliding_window": False}
    add("qwen2-window", QWEN2, {"num_hidden_layers": 3, "max_window_layers": 1, **window}, no_window)
    add("qwen2-window-everywhere", QWEN2, {"max_window_layers": 0, **window}, no_window)
    add("qwen2-window-of-one", QWEN2, {"max_window_layers": 0, "use_sliding_window": True, "sliding_window": 1}, no_window)
    add("qwen2-window-one-less-than-row", QWEN2,
        {"max_window_layers": 0, "use_sliding_window": True, "sliding_window": LENGTH - 1}, no_window)
    add("qwen2-window-of-the-row", QWEN2, {"max_window_layers": 0, "use_sliding_window": True, "sliding_window": LENGTH})
    add("qwen2-window-nowhere", QWEN2, {"max_window_layers": 2, **window})
    add("qwen2-window-default-layers", QWEN2, {**window})
    add("qwen2-window-off", QWEN2, {"max_window_layers": 0, "use_sliding_window": False, "sliding_window": 5})
    add("qwen2-window-null", QWEN2, {"max_window_layers": 0, "use_sliding_window": True, "sliding_window": None})
    add("qwen2-layer-types", QWEN2,
        {"num_hidden_layers": 3, "max_window_layers": 0, **window,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, no_window | {
             "layer_types": ["full_attention"] * 3})
    add("qwen2-layer-types-null", QWEN2, {"max_window_layers": 1, "layer_types": None, **window},
        no_window | {"layer_types": None})
    add("qwen2-yarn", QWEN2, old_rope("yarn", theta=1000000.0, **YARN), PLAIN_ROPE)
    add("qwen2-dynamic", QWEN2, {"max_position_embeddings": 10, **rope("dynamic", factor=2.0)}, PLAIN_ROPE)
    add("qwen2-linear-window", QWEN2, {"max_window_layers": 0, **window, **rope("linear", factor=2.0)}, PLAIN_ROPE)
    family_variants(add)
    wrapped_variants(add)
    arch_variants.dense_variants(add, rope, old_rope)
    arch_variants.mixture_variants(add, rope, old_rope)
    arch_variants.stream_variants(add, torch.bfloat16)
    return table


def without_keys(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def family_variants(add):
    # Mistral.
    add("mistral-plain", MISTRAL, {})
    add("mistral-window", MISTRAL, {"sliding_window": 5}, {"sliding_window": None})
    add("mistral-window-missing", without_keys(MISTRAL, "sliding_window"), {})
    add("mistral-kv-missing", without_keys(MISTRAL, "num_key_value_heads"), {"num_attention_heads": 8, "hidden_size": 64})
    add("mistral-head-dim", MISTRAL, {"head_dim": 12, "sliding_window": 3, "tie_word_embeddings": True}, {"sliding_window": None})
    add("mistral-head-dim-null", MISTRAL, {"head_dim": None})
    add("mistral-old-yarn", MISTRAL, old_rope("yarn", **YARN), PLAIN_ROPE)
    add("mistral-biases-ignored", MISTRAL, {"attention_bias": True, "mlp_bias": True})
    add("mistral-stored-bf16", MISTRAL, {"sliding_window": 5}, {"sliding_window": None}, stored=torch.bfloat16)

    # Qwen 3.
    add("qwen3-plain", QWEN3, {})
    add("qwen3-head-dim-missing", without_keys(QWEN3, "head_dim"), {"num_attention_heads": 2, "num_key_value_heads": 1})
    add("qwen3-kv-missing", without_keys(QWEN3, "num_key_value_heads"), {"num_attention_heads": 32, "head_dim": 4})
    add("qwen3-attention-bias", QWEN3, {"attention_bias": True, "tie_word_embeddings": True}, {"attention_bias": False})
    add("qwen3-eps", QWEN3, {"rms_norm_eps": 0.05}, {"rms_norm_eps": 1e-6})
    window, no_window = {"use_sliding_window": True, "sliding_window": 5}, {"use_sliding_window": False}
    add("qwen3-window", QWEN3, {"num_hidden_layers": 3, "max_window_layers": 1, **window}, no_window)
    add("qwen3-window-off", QWEN3, {"max_window_layers": 0, "use_sliding_window": False, "sliding_window": 5})
    add("qwen3-window-null", QWEN3, {"max_window_layers": 0, "use_sliding_window": True, "sliding_window": None})
    add("qwen3-layer-types", QWEN3, {"layer_types": ["full_attention", "sliding_attention"], **window},
        no_window | {"layer_types": ["full_attention"] * 2})
    add("qwen3-old-yarn", QWEN3, old_rope("yarn", "rope_type", 1000000.0, **YARN), PLAIN_ROPE)
    add("qwen3-stored-bf16", QWEN3, {}, stored=torch.bfloat16)

    # Gemma.
    add("gemma-plain", GEMMA, {})
    add("gemma-first-files", GEMMA, {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 500.0},
        {"rope_theta": 10000.0})
    add("gemma-hidden-activation-ignored", GEMMA, {"hidden_activation": "silu"})
    add("gemma-silu", GEMMA, {"hidden_act": "silu"}, {"hidden_act": "gelu_pytorch_tanh"})
    add("gemma-missing-keys", without_keys(GEMMA, "head_dim", "hidden_act", "tie_word_embeddings", "rms_norm_eps"),
        {"hidden_size": 64, "num_attention_heads": 2})
    add("gemma-attention-bias", GEMMA, {"attention_bias": True}, {"attention_bias": False})
    add("gemma-untied", GEMMA, {"tie_word_embeddings": False})
    add("gemma-linear", GEMMA, rope("linear", factor=4.0), PLAIN_ROPE)

    # Gemma 2.
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    add("gemma2-plain", GEMMA2, {})
    add("gemma2-softcaps", GEMMA2, {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}, caps)
    add("gemma2-attention-softcap", GEMMA2, {**caps, "attn_logit_softcapping": 0.7}, caps)
    add("gemma2-softcaps-null", GEMMA2, caps)
    add("gemma2-missing-keys",
        without_keys(GEMMA2, "head_dim", "hidden_activation", "tie_word_embeddings", "query_pre_attn_scalar", "sliding_window",
                     "num_key_value_heads"), {"num_attention_heads": 8, "hidden_size": 64})
    add("gemma2-layer-types", GEMMA2, {"num_hidden_layers": 3, "layer_types": ["full_attention"] + ["sliding_attention"] * 2},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    add("gemma2-pattern-ignored", GEMMA2, {"num_hidden_layers": 3, "sliding_window_pattern": 3})
    add("gemma2-scalar", GEMMA2, {"query_pre_attn_scalar": 5}, {"query_pre_attn_scalar": 16})
    add("gemma2-attention-bias", GEMMA2, {"attention_bias": True, "tie_word_embeddings": False}, {"attention_bias": False})
    add("gemma2-old-theta", GEMMA2, {"rope_theta": 300.0}, {"rope_theta": 10000.0})

    # Gemma 3, text.
    nested = {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                                  "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0}}}
    plain = {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                 "full_attention": {"rope_type": "default", "rope_theta": 1000000.0}}}
    add("gemma3_text-plain", GEMMA3, {})
    add("gemma3_text-nested-rope", GEMMA3, nested, plain)
    add("gemma3_text-old-rope", GEMMA3, {"rope_local_base_freq": 300.0, "rope_theta": 20000.0,
                                         "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "rope_scaling": None})
    add("gemma3_text-old-type-ignored", GEMMA3, {"rope_scaling": {"type": "linear", "factor": 4.0}})
    add("gemma3_text-nested-and-scaling", GEMMA3, {**nested, "rope_scaling": {"rope_type": "linear", "factor": 9.0}},
        {"rope_scaling": None})
    add("gemma3_text-nested-one", GEMMA3, {"rope_parameters": {"full_attention": {"rope_theta": 500.0}}},
        {"rope_parameters": {}})
    add("gemma3_text-nested-null", GEMMA3, {"rope_parameters": {"full_attention": None, "sliding_attention": None}})
    add("gemma3_text-flat-ignored", GEMMA3, {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 20.0}})
    add("gemma3_text-nested-theta-outside", GEMMA3,
        {"rope_parameters": {"sliding_attention": {"rope_type": "default"},
                             "full_attention": {"rope_type": "linear", "factor": 4.0}},
         "rope_theta": 700.0, "rope_local_base_freq": 90.0}, plain)
    add("gemma3_text-yarn-long", GEMMA3,
        {"original_max_position_embeddings": 40, "rope_parameters": {"full_attention": {"rope_type": "yarn", **YARN}}}, plain)
    add("gemma3_text-partial-ignored", GEMMA3, {"partial_rotary_factor": 0.5})
    add("gemma3_text-layer-types", GEMMA3, {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    add("gemma3_text-pattern-missing", without_keys(GEMMA3, "sliding_window_pattern"), {"num_hidden_layers": 7},
        {"sliding_window_pattern": 2})
    add("gemma3_text-pattern-one", GEMMA3, {"sliding_window_pattern": 1}, {"sliding_window_pattern": 2})
    add("gemma3_text-final-softcap", GEMMA3, {"final_logit_softcapping": 2.0}, {"final_logit_softcapping": None})
    add("gemma3_text-attention-softcap-ignored", GEMMA3, {"attn_logit_softcapping": 0.5})
    add("gemma3_text-attention-bias", GEMMA3, {"attention_bias": True}, {"attention_bias": False})
    add("gemma3_text-scalar", GEMMA3, {"query_pre_attn_scalar": 2}, {"query_pre_attn_scalar": 16})
    add("gemma3_text-missing-keys",
        without_keys(GEMMA3, "head_dim", "hidden_activation", "tie_word_embeddings", "query_pre_attn_scalar", "sliding_window",
                     "num_key_value_heads", "rms_norm_eps"), {"num_attention_heads": 8, "hidden_size": 64})
    add("gemma3_text-untied", GEMMA3, {"tie_word_embeddings": False})
    add("gemma3_text-stored-bf16", GEMMA3, nested, plain, stored=torch.bfloat16)


def wrapped(model_type, architecture, text, vision, **more):
    return {"architectures": [architecture], "model_type": model_type, "text_config": without_keys(text, "architectures"),
            "vision_config": vision, "torch_dtype": "float32", **more}


def wrapped_variants(add):
    older = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
             "model.vision_tower.": "vision_tower.", "model.multi_modal_projector.": "multi_modal_projector."}
    sparse = without_keys(GEMMA3, "tie_word_embeddings", "hidden_activation", "rms_norm_eps")
    gemma3 = wrapped("gemma3", "Gemma3ForConditionalGeneration", sparse, {**VISION, "model_type": "siglip_vision_model"},
                     mm_tokens_per_image=4, image_token_index=159, boi_token_index=158, eoi_token_index=157)
    add("gemma3-wrapped", gemma3, {})
    add("gemma3-wrapped-older", gemma3, {}, rename=older)
    add("gemma3-wrapped-untied", gemma3, {"tie_word_embeddings": False}, rename=older)
    add("gemma3-wrapped-defaults", wrapped(
        "gemma3", "Gemma3ForConditionalGeneration",
        {"model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 160},
        {**VISION, "model_type": "siglip_vision_model"}, mm_tokens_per_image=4, image_token_index=159, boi_token_index=158,
        eoi_token_index=157), {})
    pixtral = {**VISION, "model_type": "pixtral", "head_dim": 8}
    add("mistral3-wrapped", wrapped("mistral3", "Mistral3ForConditionalGeneration", {**MISTRAL, "sliding_window": 4}, pixtral,
                                    image_token_index=159, tie_word_embeddings=False), {}, rename=older)
    add("llava-wrapped", wrapped("llava", "LlavaForConditionalGeneration", without_keys(LLAMA, "tie_word_embeddings"),
                                 {**VISION, "model_type": "clip_vision_model", "projection_dim": 16},
                                 image_token_index=159, tie_word_embeddings=False), {}, rename=older)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 2,
              "window_size": 8, "fullatt_block_indexes": [0]}
    mrope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 5000.0}
    plain = without_keys(QWEN2, "architectures", "rms_norm_eps")
    tokens = {"vision_start_token_id": 152, "vision_end_token_id": 153, "image_token_id": 155, "video_token_id": 156}
    flat = {"model.language_model.": "model.", "model.visual.": "visual."}
    for version, kind in (("2_5", "qwen2_5_vl"), ("2", "qwen2_vl")):
        extra = vision if version == "2_5" else {
            "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 1, "patch_size": 2}
        architecture = f"Qwen{version}{'_' if '_' in version else ''}VLForConditionalGeneration"
        add(f"{kind}-wrapped", wrapped(kind, architecture, {**plain, **mrope, "model_type": f"{kind}_text"},
                                       {**extra, "model_type": f"{kind}_vision" if version == "2_5" else kind}, **tokens), {})
        add(f"{kind}-flat", {**plain, **mrope, **tokens, "architectures": [architecture], "model_type": kind,
                             "vision_config": extra}, {}, rename=flat)


def random_state(model, seed):
    """Projections of unit gain, norms around one, embeddings of unit size after scaling: logits of deviation 2 to 3."""
    generator = torch.Generator().manual_seed(seed)
    text = model.config.get_text_config()
    # Gemma adds one to the weights of its norms and scales its embedding.
    gemma = text.model_type.startswith("gemma")
    state = {}
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if not tensor.is_floating_point():
            state[name] = tensor
        elif name.endswith("bias") or tensor.dim() < 2 and "norm" not in name:
            state[name] = 0.2 * noise
        elif "norm" in name:
            offset = gemma or text.model_type.startswith("qwen4") and not name.endswith("linear_attn.norm.weight")
            state[name] = (0 if offset else 1) + 0.2 * noise
        elif "embed" in name:
            state[name] = noise / (text.hidden_size ** 0.5 if gemma else 1)
        else:
            gain = 2.5 if "lm_head" in name else 1.3
            state[name] = noise * gain / tensor.shape[1] ** 0.5
    return state


def published(model, state):
    """The state under the names in which transformers writes it: experts one by one, for example."""
    model.load_state_dict(state, strict=False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_weights(folder, state, shards):
    state = {name: tensor.contiguous() for name, tensor in sorted(state.items())}
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, parts = {}, [{} for _ in range(shards)]
    for position, (name, tensor) in enumerate(state.items()):
        part = position % shards
        parts[part][name] = tensor
        weight_map[name] = f"model-{part + 1:05d}-of-{shards:05d}.safetensors"
    for name in set(weight_map.values()):
        save_file(parts[int(name[6:11]) - 1], folder / name, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))})


def model_class(config):
    return transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM


def load(folder, dtype=torch.float32):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Grouped products of experts have no float64 form.
    model = model_class(config).from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                experts_implementation="eager")
    return model.eval()


def load_with(folder, changes):
    """The same weights under a configuration with `changes`."""
    path = folder / "config.json"
    original = path.read_text(encoding="utf-8")
    try:
        write_json(path, {**json.loads(original), **changes})
        return load(folder)
    finally:
        path.write_text(original, encoding="utf-8")


@torch.no_grad()
def forward(model, ids):
    """Everything that golden.safetensors holds."""
    found, hooks = {}, []

    def keep(name, pick):
        def hook(_module, inputs, output):
            value = pick(inputs, output)
            found[name] = (value[0] if isinstance(value, tuple) else value).clone()
        return hook

    text = getattr(model.model, "language_model", model.model)
    layers = text.layers
    hooks.append(layers[0].register_forward_hook(
        lambda _m, args, kwargs, _o: found.update({"hidden.0": (args[0] if args else kwargs["hidden_states"]).clone()}),
        with_kwargs=True))
    for i, layer in enumerate(layers):
        hooks.append(layer.register_forward_hook(keep(f"hidden.{i + 1}", lambda _i, output: output)))
        mixer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn
        hooks.append(mixer.register_forward_hook(keep(f"mixer_out.{i}", lambda _i, output: output)))
        mlp = layer.feed_forward if hasattr(layer, "feed_forward") else layer.mlp
        hooks.append(mlp.register_forward_hook(keep(f"mlp_out.{i}", lambda _i, output: output)))
    norm = text.norm if hasattr(text, "norm") else text.hyper_connection_mixer
    hooks.append(norm.register_forward_hook(keep("final_norm", lambda _i, output: output)))
    found["logits"] = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    # Mixtures may give their tokens without rows.
    shape = (*ids.shape, text.config.hidden_size)
    return {name: (tensor.view(shape) if name.startswith("mlp_out") else tensor).float().contiguous()
            for name, tensor in found.items()}


@torch.no_grad()
def noise_on_logits(folder, ids, logits, seed):
    model = load(folder)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=generator))
    return (model(input_ids=ids, use_cache=False).logits - logits).abs().max().item()


@torch.no_grad()
def make(folder, config, without, options, seed):
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    model = model_class(config).from_config(transformers.AutoConfig.from_pretrained(folder))
    state = random_state(model, seed)
    if options.get("published"):
        state = published(model, state)
    if model.config.tie_word_embeddings:
        head = state.pop("lm_head.weight", None)
        if head is None:
            head = next(tensor for name, tensor in state.items() if name.endswith("embed_tokens.weight"))
        # The embedding is the head: its size sets the size of the logits.
        state[next(name for name in state if name.endswith("embed_tokens.weight"))] = head
        if "store_head" in options:
            state["lm_head.weight"] = head if options["store_head"] == "equal" else head.flip(0)
    for start, stored in options.get("rename", {}).items():
        state = {stored + name.removeprefix(start) if name.startswith(start) else name: tensor
                 for name, tensor in state.items()}
    state = {name: tensor.to(options.get("stored", torch.float32)) if tensor.is_floating_point() else tensor
             for name, tensor in state.items()}
    write_weights(folder, {name: tensor.clone() for name, tensor in state.items()}, options.get("shards", 1))

    # Below the ids that stand for images.
    words = model.config.get_text_config().vocab_size - (10 if "vision_config" in config else 0)
    ids = torch.randint(3, words, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed + 1))
    found = forward(load(folder), ids)
    logits = found["logits"]
    save_file({"input_ids": ids, **found}, folder / "golden.safetensors")
    noise = noise_on_logits(folder, ids, logits, seed + 2)
    if noise > 1e-3:
        return make(folder, config, without, options, seed + 100)
    # Buffers of the rotary table stay as they were made in float32.
    wide = load(folder).double()
    float64 = (wide(input_ids=ids, use_cache=False).logits.float() - logits).abs().max().item()
    entry = {
        "model_type": config["model_type"], "seed": seed,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "tol_logits_max_abs": round(max(2e-4, 4 * noise), 6), "tol_hidden_rel": 1e-4,
        "logits_std": round(logits.std().item(), 4), "float64_logits_max_abs": float64,
        "weight_noise_1e6_logits_max_abs": noise,
    }
    if without is not None:
        moved = (forward(load_with(folder, without), ids)["logits"] - logits).abs().max().item()
        entry["setting_moves_logits"] = round(moved, 4)
        if moved < 20 * entry["tol_logits_max_abs"]:
            print(f"{folder.name}: its settings move the logits by {moved} only")
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[], help="make these variants and keep the others of the index")
    parser.add_argument("--seed", type=int, default=4321)
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    table = variants()
    if args.list:
        print("\n".join(table))
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    index_path = args.out / "index.json"
    index = json.loads(index_path.read_text(encoding="utf-8")) if index_path.exists() else {}
    for name in args.only or table:
        config, without, options = table[name]
        try:
            index[name] = make(args.out / name, config, without, options, args.seed)
            print(name, index[name])
        except Exception as error:  # which settings transformers refuses is a result too
            print(f"{name}: transformers refuses: {type(error).__name__}: {str(error)[:300]}")
        finally:
            write_json(index_path, index)


if __name__ == "__main__":
    main()
