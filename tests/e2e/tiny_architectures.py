"""Small random models of the architectures that gramian_e2e.TinyModel does not make: wide enough for groups of 128, two layers.

    model = TinyArchitecture("gpt_oss")
    model.tensors, model.config, model.linears   # name -> tensor; config.json; module -> (out, in) in the forward's order
"""
import json
import math
import pathlib
import random

from gramian_e2e import tensor, write_safetensors

HIDDEN, HEADS, HEAD, KV, INNER, EXPERT, EXPERTS, VOCAB, LAYERS = 128, 2, 64, 1, 256, 128, 4, 300, 2
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "tie_word_embeddings": False,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16"}
QWEN_MIXTURE = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT, "mlp_only_layers": [1]}
GROUPED_MIXTURE = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT, "n_shared_experts": 1,
                   "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
# type -> (class, settings beside BASE)
ARCHITECTURES = {
    "granite": ("GraniteForCausalLM", {"embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.7,
                                       "logits_scaling": 2.0, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {"use_qkv_bias": True, "qk_layernorm": True, "partial_rotary_factor": 0.25}),
    "cohere": ("CohereForCausalLM", {"use_qk_norm": True, "logit_scale": 0.5, "tie_word_embeddings": True}),
    "cohere2": ("Cohere2ForCausalLM", {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"],
                                       "logit_scale": 0.5, "tie_word_embeddings": True}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": None, "partial_rotary_factor": 0.75}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**QWEN_MIXTURE, "shared_expert_intermediate_size": INNER}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": EXPERT,
                                       "sliding_window": None}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {
        **GROUPED_MIXTURE, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "v_head_dim": 64, "num_key_value_heads": HEADS,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
                         "mscale_all_dim": 1.0}}),
    "glm4_moe": ("Glm4MoeForCausalLM", {**GROUPED_MIXTURE, "attention_bias": True, "use_qk_norm": True,
                                        "partial_rotary_factor": 0.5}),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": EXPERT,
                                      "sliding_window": 12, "attention_bias": True}),
    "llama4_text": ("Llama4ForCausalLM", {"num_local_experts": EXPERTS, "intermediate_size": EXPERT,
                                          "intermediate_size_mlp": INNER, "interleave_moe_layer_step": 2,
                                          "no_rope_layers": [1, 0], "attention_chunk_size": 16, "floor_scale": 8}),
}


class TinyArchitecture:
    def __init__(self, kind, seed=1, expert=EXPERT):
        architecture, own = ARCHITECTURES[kind]
        self.kind, self.expert, self.source = kind, expert, random.Random(seed)
        # An expert's width stands under one of two keys.
        sizes = {key: expert for key in ("moe_intermediate_size", "intermediate_size") if own.get(key) == EXPERT}
        self.config = {"architectures": [architecture], "model_type": kind, **BASE, **own, **sizes}
        self.tensors, self.linears, self.biased, self.replaced = {}, {}, set(), set()
        self._put("model.embed_tokens.weight", [VOCAB, HIDDEN], 0.5)
        if not self.config["tie_word_embeddings"]:
            self._put("lm_head.weight", [VOCAB, HIDDEN], 0.1)
        for i in range(LAYERS):
            self._layer(i)
        self._norm("model.norm", HIDDEN)

    def write(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        write_safetensors(folder / "model.safetensors", self.tensors)
        return folder

    def _put(self, name, shape, deviation, middle=0.0):
        gauss = self.source.gauss
        self.tensors[name] = tensor("BF16", shape, [gauss(middle, deviation) for _ in range(math.prod(shape))])

    def _norm(self, name, *shape):
        self._put(name + ".weight", list(shape), 0.1, 1.0)
        if self.kind == "stablelm" and "norms" not in name:
            self._put(name + ".bias", list(shape), 0.1)

    def _linear(self, name, out, width, bias=False):
        self.linears[name] = (out, width)
        self.replaced.add(name + ".weight")
        self._put(name + ".weight", [out, width], 1 / math.sqrt(width))
        if bias:
            self.biased.add(name)
            self.replaced.add(name + ".bias")
            self._put(name + ".bias", [out], 0.1)

    def _layer(self, index):
        layer, kind = f"model.layers.{index}.", self.kind
        norms = {"olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"), "cohere": ("input_layernorm",),
                 "cohere2": ("input_layernorm",)}
        for norm in norms.get(kind, ("input_layernorm", "post_attention_layernorm")):
            self._norm(layer + norm, HIDDEN)
        if kind == "deepseek_v3":
            self._latent_attention(layer + "self_attn.")
        else:
            self._attention(layer + "self_attn.")
        mixed = {"qwen2_moe": index == 0, "mixtral": True, "deepseek_v3": index == 1, "glm4_moe": index == 1, "gpt_oss": True,
                 "llama4_text": index == 1}
        name = {"mixtral": "block_sparse_moe.", "llama4_text": "feed_forward."}.get(kind, "mlp.")
        if mixed.get(kind, False):
            self._mixture(layer + name)
        elif kind == "phi3":
            self._linear(layer + "mlp.gate_up_proj", 2 * INNER, HIDDEN)
            self._linear(layer + "mlp.down_proj", HIDDEN, INNER)
        else:
            self._mlp(layer + name, INNER)

    def _attention(self, prefix):
        q, kv, kind = HEADS * HEAD, KV * HEAD, self.kind
        biased = kind in ("stablelm", "qwen2_moe", "glm4_moe", "gpt_oss")
        if kind == "phi3":
            self._linear(prefix + "qkv_proj", q + 2 * kv, HIDDEN)
        else:
            for name, out in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                self._linear(prefix + name, out, HIDDEN, biased)
        self._linear(prefix + "o_proj", HIDDEN, q, kind == "gpt_oss")
        if kind == "gpt_oss":
            self._put(prefix + "sinks", [HEADS], 1.0)
        for name, heads in (("q", HEADS), ("k", KV)):
            if kind == "stablelm":
                for head in range(heads):
                    self._norm(f"{prefix}{name}_layernorm.norms.{head}", HEAD)
            elif kind in ("cohere", "olmo2", "glm4_moe"):
                shape = {"cohere": [heads, HEAD], "olmo2": [heads * HEAD], "glm4_moe": [HEAD]}[kind]
                self._norm(f"{prefix}{name}_norm", *shape)

    def _latent_attention(self, prefix):
        self._linear(prefix + "q_a_proj", 128, HIDDEN)
        self._linear(prefix + "kv_a_proj_with_mqa", 128 + 64, HIDDEN)
        self._linear(prefix + "q_b_proj", HEADS * 128, 128)
        self._linear(prefix + "kv_b_proj", HEADS * 128, 128)
        self._linear(prefix + "o_proj", HIDDEN, HEADS * 64)
        self._norm(prefix + "q_a_layernorm", 128)
        self._norm(prefix + "kv_a_layernorm", 128)

    def _mlp(self, prefix, inner, names=("gate_proj", "up_proj", "down_proj")):
        for name in names[:2]:
            self._linear(prefix + name, inner, HIDDEN)
        self._linear(prefix + names[2], HIDDEN, inner)

    def _mixture(self, prefix):
        kind = self.kind
        if kind == "qwen2_moe":
            self._mlp(prefix + "shared_expert.", INNER)
            self._put(prefix + "shared_expert_gate.weight", [1, HIDDEN], 0.1)
        elif kind != "gpt_oss" and kind != "mixtral":
            self._mlp(prefix + ("shared_expert." if kind == "llama4_text" else "shared_experts."), self.expert)
        router = prefix + ("router" if kind in ("gpt_oss", "llama4_text") else "gate")
        self._put(router + ".weight", [EXPERTS, HIDDEN], 0.1)
        if kind == "gpt_oss":
            self._put(router + ".bias", [EXPERTS], 0.1)
        if kind in ("deepseek_v3", "glm4_moe"):
            self._put(router + ".e_score_correction_bias", [EXPERTS], 0.1)
        if kind in ("gpt_oss", "llama4_text"):
            return self._stack(prefix + "experts.")
        names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for e in range(EXPERTS):
            self._mlp(f"{prefix}experts.{e}.", self.expert, names)

    def _stack(self, prefix):
        sizes = {"gate_up_proj": [EXPERTS, HIDDEN, 2 * self.expert], "down_proj": [EXPERTS, self.expert, HIDDEN]}
        for name, shape in sizes.items():
            self._put(prefix + name, shape, 1 / math.sqrt(shape[1]))
            self.replaced.add(prefix + name)
            if self.kind == "gpt_oss":
                self._put(f"{prefix}{name}_bias", [EXPERTS, shape[2]], 0.1)
                self.replaced.add(f"{prefix}{name}_bias")
        for e in range(EXPERTS):
            for name, size in (("gate_proj", (self.expert, HIDDEN)), ("up_proj", (self.expert, HIDDEN)),
                               ("down_proj", (HIDDEN, self.expert))):
                self.linears[f"{prefix}{e}.{name}"] = size
                if self.kind == "gpt_oss":
                    self.biased.add(f"{prefix}{e}.{name}")
