"""A program of one's own under rip: a small GPT in plain PyTorch, with its own KV cache and its own loop.

    python own_program.py run.parquet
    python own_program.py other.parquet --nudge blocks.1.up
    rip diverge run.parquet other.parquet

The second run moves one weight of one module by the smallest step that its dtype knows.
"""

from __future__ import annotations

import argparse

import rip
import torch
from torch import nn

VOCAB, WIDTH, HEADS, LAYERS, LONGEST = 64, 32, 4, 3, 256


class Block(nn.Module):
    """Attention over everything fed so far, then two linear layers. Axes: B sequences, T tokens, W width."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x_BTW: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x_BTW.shape
        split = self.qkv(self.before(x_BTW)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split
        if self.cache is not None:
            key, value = torch.cat([self.cache[0], key], 2), torch.cat([self.cache[1], value], 2)
        self.cache = key.detach(), value.detach()
        visible = torch.ones(tokens, key.shape[2], dtype=torch.bool).tril(key.shape[2] - tokens)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        x_BTW = x_BTW + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x_BTW + self.down(nn.functional.gelu(self.up(self.between(x_BTW))))


class TinyGPT(nn.Module):
    """Token ids [B, T] → logits [B, T, V]. It remembers what it was fed until `reset`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.fed = 0

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        places = torch.arange(self.fed, self.fed + ids_BT.shape[1])
        self.fed += ids_BT.shape[1]
        x_BTW = self.embed(ids_BT) + self.place(places)
        for block in self.blocks:
            x_BTW = block(x_BTW)
        return self.head(self.norm(x_BTW))

    def reset(self) -> None:
        """Forget everything fed so far."""
        self.fed = 0
        for block in self.blocks:
            block.cache = None


def make_model(dtype: torch.dtype = torch.float32) -> TinyGPT:
    """The same random model every time."""
    torch.manual_seed(0)
    model = TinyGPT()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.to(dtype).eval()


def nudge(model: nn.Module, module: str) -> None:
    """Move the largest weight of one module by one unit in the last place."""
    weight = model.get_submodule(module).weight.data.view(-1)
    index = weight.abs().argmax()
    weight[index] = torch.nextafter(weight[index], torch.tensor(torch.inf, dtype=weight.dtype))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--nudge", metavar="MODULE")
    options = parser.parse_args()
    model = make_model()
    if options.nudge:
        nudge(model, options.nudge)
    tokens = torch.tensor([[7, 21, 3, 40, 12]])
    with torch.no_grad(), rip.tap(model, options.out, request_id="req-1") as tap:
        for _ in range(20):
            logits = tap.logits(model(tokens))
            tokens = logits[:, -1:].argmax(-1)
        tap.last(tokens)
    print(f"Wrote {options.out}")


if __name__ == "__main__":
    main()
