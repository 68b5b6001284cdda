"""A model that only you have: python examples/custom_model.py OUTPUT

Anything whose layers form a chain works. `layers=` names their list (here it would be found), `config=` is what config.json says.
"""
import sys

import torch
from torch import nn

import gramian


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.outer(torch.relu(self.inner(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self, vocab: int = 1000, size: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, size), nn.Linear(size, vocab)
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


model, rows = Model(), torch.randint(0, 1000, (32, 64))
report = gramian.quantize(model, rows, output=sys.argv[1], layers="blocks", method="qqq", group_size=128,
                          config={"architectures": ["Model"], "model_type": "mine"})
print("quantized:", *(module["name"] for module in report["modules"]))

# One layer of it, with 4-bit weights and 8-bit activations, beside the original.
layer = gramian.W4A8Linear.from_checkpoint(sys.argv[1], "blocks.0.inner")
x = torch.randn(8, 256)
exact = model.blocks[0].inner(x)
print(f"blocks.0.inner: relative error {((layer(x) - exact).norm() / exact.norm()).item():.4f}")
