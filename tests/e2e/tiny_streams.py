"""Small random models with several residual streams and attention over the keys that an indexer picks.

    model = TinyStreams("glm5_next")   # tensors, config and linears as in tiny_architectures
"""
import random

from gramian_e2e import tensor
from tiny_architectures import BASE, EXPERT, EXPERTS, HEAD, HEADS, HIDDEN, INNER, VOCAB
from tiny_recurrent import DELTA, KERNEL, MIXTURE, TinyRecurrent

STREAMS, RANK, POOL, INDEX_HEADS, INDEX_DIM = 2, 32, 4, 2, 32
NGRAMS, NGRAM_HEADS, NGRAM_DIM, NGRAM_SIZES = 3, 2, 64, (41, 43, 47, 53)
# type -> (class, settings beside BASE); pools for 16 keys, so that rows have more.
STREAM_MODELS = {
    "glm5_next": ("Glm5NextForConditionalGeneration", {
        "num_hidden_layers": 3, "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"],
        "indexer_types": ["full", "full", "shared"], "mlp_layer_types": ["dense", "sparse", "dense"],
        "num_key_value_heads": HEADS, "linear_num_heads": 2, "linear_head_dim": 64, "linear_conv_kernel_dim": KERNEL,
        "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 0, "v_head_dim": 64,
        "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "swiglu_limit": 1.0, "hc_mult": STREAMS,
        "hc_sinkhorn_iters": 4, "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "index_topk": 16, "index_kpool": POOL}),
    "qwen4_exp_text": ("Qwen4ExpForCausalLM", {
        **DELTA, **MIXTURE, "layer_types": ["linear_attention", "indexed_attention"], "partial_rotary_factor": 0.25,
        "hc_count": STREAMS, "hc_lowrank": RANK, "indexer_n_heads": INDEX_HEADS, "indexer_kv_heads": 1,
        "indexer_head_dim": INDEX_DIM, "indexer_budget": 16, "indexer_compress_ratio": POOL, "ple_layer_ids": [1],
        "ple_embed_dim": NGRAM_DIM, "ple_conv_kernel_size": KERNEL, "ngram_size": NGRAMS, "heads_per_ngram": NGRAM_HEADS,
        "split_ngram_parts": 2, "eos_token_id": 2}),
}
# What wraps a text part in a multimodal file.
VISION = {"vision_config": {"model_type": "glm5_next_vision"}, "image_token_id": 290}


class TinyStreams(TinyRecurrent):
    def __init__(self, kind, seed=1):
        architecture, own = STREAM_MODELS[kind]
        glm = kind == "glm5_next"
        self.kind, self.expert, self.source = kind, EXPERT, random.Random(seed)
        self.prefix = "model.language_model." if glm else "model."
        text = {**BASE, **own}
        self.config = {"architectures": [architecture], "model_type": kind,
                       **({"text_config": {**text, "model_type": "glm5_next_text"}, **VISION} if glm else text)}
        self.tensors, self.linears, self.biased, self.replaced = {}, {}, set(), set()
        self._put(self.prefix + "embed_tokens.weight", [VOCAB, HIDDEN], 0.5)
        self._put("lm_head.weight", [VOCAB, HIDDEN], 0.1)
        for i in range(text["num_hidden_layers"]):
            if glm:
                self._glm_layer(i)
            else:
                self._qwen_layer(i)
        if glm:
            self._norm(self.prefix + "norm", HIDDEN)
            self._put("model.visual.patch_embed.proj.weight", [16, 12], 0.1)
        else:
            self._gate(self.prefix + "hyper_connection_mixer.")

    def _glm_layer(self, index):
        layer = f"{self.prefix}layers.{index}."
        rows = (2 + STREAMS) * STREAMS
        for name in ("hc_attn", "hc_ffn"):
            self._put(f"{layer}{name}_fn", [rows, STREAMS * HIDDEN], 0.05)
            self._put(f"{layer}{name}_base", [rows], 0.5)
            self._put(f"{layer}{name}_scale", [3], 0.2, 1.0)
        self._norm(layer + "input_layernorm", HIDDEN)
        self._norm(layer + "post_attention_layernorm", HIDDEN)
        if index == 0:
            self._kimi_delta(layer + "self_attn.")
        else:
            self._latent_attention(layer + "self_attn.")
        if index == 1:
            self._weighted_indexer(layer + "self_attn.indexer.")
            self._mlp(layer + "mlp.shared_experts.", EXPERT)
            self._put(layer + "mlp.gate.weight", [EXPERTS, HIDDEN], 0.1)
            self._put(layer + "mlp.gate.e_score_correction_bias", [EXPERTS], 0.1)
            for e in range(EXPERTS):
                self._mlp(f"{layer}mlp.experts.{e}.", EXPERT)
        else:
            self._mlp(layer + "mlp.", INNER)

    def _latent_attention(self, prefix):
        self._linear(prefix + "q_a_proj", 128, HIDDEN)
        self._linear(prefix + "kv_a_proj_with_mqa", 128, HIDDEN)
        self._linear(prefix + "q_b_proj", HEADS * 64, 128)
        self._linear(prefix + "kv_b_proj", HEADS * 128, 128)
        self._linear(prefix + "o_proj", HIDDEN, HEADS * 64)
        self._norm(prefix + "q_a_layernorm", 128)
        self._norm(prefix + "kv_a_layernorm", 128)

    def _weighted_indexer(self, prefix):
        for name, shape in (("wk.weight", [INDEX_DIM, HIDDEN]), ("wq_b.weight", [INDEX_HEADS * INDEX_DIM, 128]),
                            ("weights_proj.weight", [INDEX_HEADS, HIDDEN]), ("index_kpool_compress_gate", [INDEX_DIM, HIDDEN]),
                            ("index_kpool_compress_ape", [POOL, INDEX_DIM]), ("k_norm.bias", [INDEX_DIM])):
            self._put(prefix + name, shape, 0.1)
        self._norm(prefix + "k_norm", INDEX_DIM)

    def _qwen_layer(self, index):
        layer, width = f"{self.prefix}layers.{index}.", STREAMS * HIDDEN
        for name in ("attn_hyper_connection.", "mlp_hyper_connection."):
            self._gate(layer + name)
            self._put(layer + name + "block_inject_weight.weight", [STREAMS, width], 0.05)
        if index == 0:
            self._delta_net(layer + "linear_attn.")
            self._ngrams(layer + "ple.", width)
        else:
            self._gated_attention(layer + "self_attn.")
            self._put(layer + "self_attn.indexer.index_qk_proj.weight", [(INDEX_HEADS + 1) * INDEX_DIM, HIDDEN], 0.1)
            self._norm(layer + "self_attn.indexer.q_layernorm", INDEX_DIM)
            self._norm(layer + "self_attn.indexer.k_layernorm", INDEX_DIM)
        self._qwen_mixture(layer + "mlp.")

    def _gate(self, prefix):
        width = STREAMS * HIDDEN
        self._norm(prefix + "hc_norm", width)
        self._put(prefix + "input_mix_weight_down.weight", [RANK, width], 0.05)
        self._put(prefix + "input_mix_weight_up.weight", [width, RANK], 0.1)

    def _ngrams(self, prefix, width):
        heads, table = (NGRAMS - 1) * NGRAM_HEADS, prefix + "ple_embedding."
        self._put(prefix + "key_proj.weight", [width, NGRAM_DIM], 0.1)
        self._put(prefix + "value_proj.weight", [HIDDEN, NGRAM_DIM], 0.1)
        for name in ("norm_key", "norm_query", "norm_conv"):
            self._norm(prefix + name, width)
        self._put(prefix + "conv1d.weight", [width, 1, KERNEL], 0.2)
        for shard in range(2):
            self._put(f"{table}ngram_embedding.shard_{shard}.weight", [sum(NGRAM_SIZES) // 2, NGRAM_DIM // heads], 0.5)
        offsets = [sum(NGRAM_SIZES[:head]) for head in range(heads)]
        for name, values in (("layer_multipliers", [6700417, 1000003, 998244353]), ("ngram_heads_offsets", offsets),
                             ("ngram_heads_vocab_sizes", list(NGRAM_SIZES))):
            self.tensors[table + name] = tensor("I64", [len(values)], values)
