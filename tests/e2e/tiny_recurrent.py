"""Small random models whose layers take turns between a delta rule and attention: wide enough for groups of 128, two layers.

    model = TinyRecurrent("qwen3_next")   # tensors, config and linears as in tiny_architectures
"""
from tiny_architectures import BASE, EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, INNER, KV, LAYERS, VOCAB, TinyArchitecture

import random

KEYS, VALUES, KERNEL = 64, 128, 4  # two heads of 32 keys, four of 32 values
LAYER_TYPES = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {**LAYER_TYPES, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
         "linear_value_head_dim": 32, "linear_conv_kernel_dim": KERNEL}
MIXTURE = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT,
           "shared_expert_intermediate_size": INNER}
RECURRENT = {
    "qwen3_next": ("Qwen3NextForCausalLM", {**DELTA, **MIXTURE, "partial_rotary_factor": 0.25, "mlp_only_layers": [1]}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {**DELTA, "partial_rotary_factor": 0.25}),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", {**DELTA, **MIXTURE, "partial_rotary_factor": 0.25}),
    "olmo_hybrid": ("OlmoHybridForCausalLM", DELTA),
    "kimi_linear": ("KimiLinearForCausalLM", {
        **LAYER_TYPES, "linear_num_heads": 2, "linear_head_dim": 64, "linear_conv_kernel_dim": KERNEL,
        "num_key_value_heads": HEADS, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64,
        "num_experts": EXPERTS, "num_experts_per_token": 2, "moe_intermediate_size": EXPERT, "num_shared_experts": 1,
        "num_expert_group": 2, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5}),
}


class TinyRecurrent(TinyArchitecture):
    def __init__(self, kind, seed=1):
        architecture, own = RECURRENT[kind]
        self.kind, self.expert, self.source = kind, EXPERT, random.Random(seed)
        self.config = {"architectures": [architecture], "model_type": kind, **BASE, **own}
        self.tensors, self.linears, self.biased, self.replaced = {}, {}, set(), set()
        self._put("model.embed_tokens.weight", [VOCAB, HIDDEN], 0.5)
        self._put("lm_head.weight", [VOCAB, HIDDEN], 0.1)
        for i in range(LAYERS):
            self._layer(i)
        self._norm("model.norm", HIDDEN)

    def _norm(self, name, *shape):
        # The weights of Qwen's norms are offsets from one, but for that of a delta rule's output.
        offset = self.kind.startswith("qwen") and not name.endswith("linear_attn.norm")
        self._put(name + ".weight", list(shape), 0.1, 0.0 if offset else 1.0)

    def _layer(self, index):
        layer, kind, recurrent = f"model.layers.{index}.", self.kind, index == 0
        norms = ("input_layernorm", "post_attention_layernorm")
        if kind == "olmo_hybrid":
            norms = (("attention_layer_norm", "feedforward_layer_norm") if recurrent else
                     ("post_attention_layernorm", "post_feedforward_layernorm"))
        for norm in norms:
            self._norm(layer + norm, HIDDEN)
        if kind == "kimi_linear":
            (self._kimi_delta if recurrent else self._plain_latent)(layer + "self_attn.")
        elif recurrent:
            self._delta_net(layer + "linear_attn.")
        else:
            self._gated_attention(layer + "self_attn.")
        if kind == "qwen3_5_moe_text" or kind == "qwen3_next" and recurrent:
            self._qwen_mixture(layer + "mlp.")
        elif kind == "kimi_linear" and not recurrent:
            self._kimi_mixture(layer + "block_sparse_moe.")
        else:
            self._mlp(layer + "mlp.", INNER)

    def _delta_net(self, prefix):
        kind, heads = self.kind, 4
        separate = kind == "olmo_hybrid"
        projections = {"qwen3_next": (("in_proj_qkvz", 2 * KEYS + 2 * VALUES),),
                       "olmo_hybrid": (("q_proj", KEYS), ("k_proj", KEYS), ("v_proj", VALUES), ("g_proj", VALUES))}
        for name, out in projections.get(kind, (("in_proj_qkv", 2 * KEYS + VALUES), ("in_proj_z", VALUES))):
            self._linear(prefix + name, out, HIDDEN)
        self._linear(prefix + ("o_proj" if separate else "out_proj"), HIDDEN, VALUES)
        rates = {"qwen3_next": (("in_proj_ba", 2 * heads),), "olmo_hybrid": (("b_proj", heads), ("a_proj", heads))}
        for name, out in rates.get(kind, (("in_proj_b", heads), ("in_proj_a", heads))):
            self._put(f"{prefix}{name}.weight", [out, HIDDEN], 0.1)
        self._convolutions(prefix, (KEYS, KEYS, VALUES), separate)
        self._put(prefix + "A_log", [heads], 0.5, 0.0)
        self._put(prefix + "dt_bias", [heads], 0.5, -2.0)
        self._norm(prefix + ("o_norm" if separate else "norm"), 32)

    def _convolutions(self, prefix, widths, separate):
        names = dict(zip(("q_conv1d", "k_conv1d", "v_conv1d"), widths)) if separate else {"conv1d": sum(widths)}
        for name, width in names.items():
            self._put(f"{prefix}{name}.weight", [width, 1, KERNEL], 0.5)

    def _gated_attention(self, prefix):
        q, kv, gated = HEADS * HEAD, KV * HEAD, self.kind != "olmo_hybrid"
        for name, out in (("q_proj", 2 * q if gated else q), ("k_proj", kv), ("v_proj", kv)):
            self._linear(prefix + name, out, HIDDEN)
        self._linear(prefix + "o_proj", HIDDEN, q)
        self._norm(prefix + "q_norm", HEAD if gated else q)
        self._norm(prefix + "k_norm", HEAD if gated else kv)

    def _kimi_delta(self, prefix):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self._linear(prefix + name, 128, HIDDEN)
        for name, out, width in (("f_a_proj", 64, HIDDEN), ("f_b_proj", 128, 64), ("g_a_proj", 64, HIDDEN),
                                 ("g_b_proj", 128, 64), ("b_proj", 2, HIDDEN)):
            self._put(f"{prefix}{name}.weight", [out, width], 0.1)
        self._convolutions(prefix, (128, 128, 128), True)
        self._put(prefix + "A_log", [1, 1, 2, 1], 0.5, 0.0)
        self._put(prefix + "dt_bias", [128], 0.5, -2.0)
        self._norm(prefix + "o_norm", 64)

    def _plain_latent(self, prefix):
        self._linear(prefix + "q_proj", HEADS * 128, HIDDEN)
        self._linear(prefix + "kv_a_proj_with_mqa", 128 + 64, HIDDEN)
        self._linear(prefix + "kv_b_proj", HEADS * 128, 128)
        self._linear(prefix + "o_proj", HIDDEN, HEADS * 64)
        self._norm(prefix + "kv_a_layernorm", 128)

    def _qwen_mixture(self, prefix):
        self._mlp(prefix + "shared_expert.", INNER)
        self._put(prefix + "shared_expert_gate.weight", [1, HIDDEN], 0.1)
        self._put(prefix + "gate.weight", [EXPERTS, HIDDEN], 0.1)
        for e in range(EXPERTS):
            self._mlp(f"{prefix}experts.{e}.", EXPERT)

    def _kimi_mixture(self, prefix):
        self._mlp(prefix + "shared_experts.", EXPERT)
        self._put(prefix + "gate.weight", [EXPERTS, HIDDEN], 0.1)
        self._put(prefix + "gate.e_score_correction_bias", [EXPERTS], 0.1)
        for e in range(EXPERTS):
            self._mlp(f"{prefix}experts.{e}.", EXPERT, ("w1", "w3", "w2"))
