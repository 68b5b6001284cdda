"""What the tests of the Python package share: small decoders in plain torch, and files to compare."""
import math
import pathlib
import shutil
import tempfile
import unittest

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINYSTORIES = ROOT / "models" / "tinystories"

try:
    import transformers
except ImportError:
    transformers = None

needs_transformers = unittest.skipIf(transformers is None, "transformers is not installed (tools/setup.sh installs it)")


class Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, size))


class Mlp(nn.Module):
    def __init__(self, size, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(size, inner, bias=False), nn.Linear(size, inner)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """Experts as stacks without modules, as transformers has them; top 2 of each token."""

    def __init__(self, size, inner, count):
        super().__init__()
        self.router = nn.Linear(size, count, bias=False)
        self.experts = nn.Module()
        self.experts.gate_up_proj = nn.Parameter(torch.randn(count, 2 * inner, size) / math.sqrt(size))
        self.experts.down_proj = nn.Parameter(torch.randn(count, size, inner) / math.sqrt(inner))

    def forward(self, hidden):
        x = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for expert in range(self.experts.gate_up_proj.shape[0]):
            token, place = torch.where(chosen == expert)
            if len(token) == 0:
                continue
            gate, up = F.linear(x[token], self.experts.gate_up_proj[expert]).chunk(2, -1)
            made = F.linear(F.silu(gate) * up, self.experts.down_proj[expert])
            out.index_add_(0, token, made * weights[token, place, None])
        return out.view_as(hidden)


class Block(nn.Module):
    def __init__(self, size, mlp):
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention, self.mlp = Attention(size, 2), mlp

    def forward(self, hidden):
        hidden = hidden + self.attention(self.first(hidden))
        return hidden + self.mlp(self.second(hidden))


class Decoder(nn.Module):
    """`blocks` is the list of layers; with experts > 0 their MLPs are mixtures."""

    def __init__(self, *, size=128, inner=256, layers=2, vocab=96, experts=0, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(vocab, size)
        self.blocks = nn.ModuleList(Block(size, Mixture(size, inner, experts) if experts else Mlp(size, inner))
                                    for _ in range(layers))
        self.norm, self.lm_head = nn.LayerNorm(size), nn.Linear(size, vocab, bias=False)

    def forward(self, ids):
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.lm_head(self.norm(hidden))


def token_rows(count=16, length=24, vocab=96, seed=1):
    return torch.randint(0, vocab, (count, length), generator=torch.Generator().manual_seed(seed))


def snapshot(model):
    """What a model must still be afterwards: values, memory, hooks and modes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "memory": {name: p.data_ptr() for name, p in model.named_parameters()},
        "values": {name: p.detach().clone() for name, p in model.named_parameters()},
        "hooks": {name: sum(len(getattr(m, kind)) for kind in hooks) for name, m in model.named_modules()},
        "forwards": {name: "forward" in m.__dict__ for name, m in model.named_modules()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "random": torch.random.get_rng_state(),
        "threads": torch.get_num_threads(),
    }


class TestCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gramian-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def assert_same_model(self, before, model):
        after = snapshot(model)
        for key in ("memory", "hooks", "forwards", "modes", "threads"):
            self.assertEqual(before[key], after[key], key)
        self.assertTrue(torch.equal(before["random"], after["random"]), "the global random state changed")
        for name, value in before["values"].items():
            self.assertTrue(torch.equal(value, after["values"][name]), name)

    def weights(self, folder):
        return (pathlib.Path(folder) / "model.safetensors").read_bytes()
