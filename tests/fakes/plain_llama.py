"""A small Llama in plain torch with a static KV cache, so that a decode step can be compiled and captured.

Axes: B sequences, T tokens, H heads, D head width, W model width, L longest context, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Llama's norm: in float32, scaled in the model's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Rotary(nn.Module):
    """Cosines and sines [1, T, D], shared by all sequences."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(0, head_width, 2) / head_width))

    def forward(self, x: torch.Tensor, positions_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions_T[:, None].float() * self.frequencies.float()
        angles_1TD = torch.cat((angles, angles), -1)[None]
        return angles_1TD.cos().to(x.dtype), angles_1TD.sin().to(x.dtype)


class Attention(nn.Module):
    """Causal attention; with positions given, over the cache."""

    def __init__(self, width: int, heads: int, batch: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, heads, context, width // heads))

    def forward(
        self, x_BTW: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], positions_T: torch.Tensor | None
    ) -> torch.Tensor:
        cos, sin = tables
        q, k, v = (
            project(x_BTW).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (x * cos + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin for x in (q, k))
        if positions_T is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            self.keys.index_copy_(2, positions_T, k)
            self.values.index_copy_(2, positions_T, v)
            seen_TL = torch.arange(self.keys.shape[2], device=q.device) <= positions_T[:, None]
            mixed = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen_TL)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down_proj, self.act_fn = nn.Linear(inner, width, bias=False), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm attention and MLP around a residual stream."""

    def __init__(self, width: int, inner: int, heads: int, batch: int, context: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, heads, batch, context), Mlp(width, inner)

    def forward(
        self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], positions_T: torch.Tensor | None
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, positions_T)
        return x + self.mlp(self.post_attention_layernorm(x))


class PlainLlama(nn.Module):
    """Random weights, always the same ones."""

    def __init__(
        self, width: int = 32, inner: int = 48, heads: int = 4, layers: int = 1, vocab: int = 50,
        batch: int = 2, context: int = 16,
    ) -> None:  # fmt: skip
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed_tokens, self.rotary_emb = nn.Embedding(vocab, width), Rotary(width // heads)
            self.layers = nn.ModuleList(Layer(width, inner, heads, batch, context) for _ in range(layers))
            self.norm, self.lm_head = RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids_BT: torch.Tensor, positions_T: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, T, V]; with positions int64[T], a step of the whole batch on the cache."""
        x = self.embed_tokens(ids_BT)
        places = torch.arange(ids_BT.shape[1], device=x.device) if positions_T is None else positions_T
        tables = self.rotary_emb(x, places)
        for layer in self.layers:
            x = layer(x, tables, positions_T)
        return self.lm_head(self.norm(x))
