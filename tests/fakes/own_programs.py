"""Small programs with their own loops, and what their traces and plain hooks show."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pyarrow.parquet as pq
import rip
import torch
from rip.schemas.trace import HEADER_KEY, TraceHeader
from torch import nn

DOCS = Path(__file__).parent.parent.parent / "docs"
EXAMPLE = DOCS / "examples" / "own_program.py"
PROMPT = [7, 21, 3, 40, 12]


def _load_example():
    spec = importlib.util.spec_from_file_location("own_program", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_program"] = module
    spec.loader.exec_module(module)
    return module


example = _load_example()


class Trace:
    """A written trace: header, and rows by (request id, sample, position)."""

    def __init__(self, path):
        path = Path(path)
        self.header = TraceHeader.from_json(pq.read_metadata(path).metadata[HEADER_KEY], str(path))
        rows = pq.read_table(path).to_pylist()
        self.rows = {(row["request_id"], row["sample"], row["position"]): row for row in rows}
        assert len(self.rows) == len(rows)

    def labels(self):
        return [site.label() for site in self.header.sites]

    def hash(self, position, label, request="request", sample=0):
        return self.rows[request, sample, position]["site_hash"][self.labels().index(label)]

    def tokens(self, request="request", sample=0):
        rows = sorted(key for key in self.rows if key[:2] == (request, sample))
        assert [key[2] for key in rows] == list(range(len(rows)))
        return [self.rows[key]["token_id"] for key in rows]


def generate(model, out, ids=(PROMPT,), steps=6, **options):
    """The loop of the example; returns the tokens [B, prompt + steps]."""
    tokens = torch.tensor(list(ids))
    everything = tokens
    with torch.no_grad(), rip.tap(model, out, **options) as tap:
        for _ in range(steps):
            logits = tap.logits(model(tokens))
            tokens = logits[:, -1:].argmax(-1)
            everything = torch.cat([everything, tokens], 1)
        tap.last(tokens)
    return everything.tolist()


def plainly(model, passes):
    """(pass, module) → what it returned, watched by ordinary hooks; the model is run on each pass."""
    seen = {}
    names = {module: name for name, module in model.named_modules()}
    for index, ids in enumerate(passes):

        def keep(module, _inputs, output, index=index):
            seen[index, names[module]] = output

        handles = [module.register_forward_hook(keep) for module in names]
        with torch.no_grad():
            model(torch.as_tensor(ids))
        for handle in handles:
            handle.remove()
    return seen


class Uncached(nn.Module):
    """No cache: each forward sees only what it is fed."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(64, 16), nn.Linear(16, 16), nn.Linear(16, 64)

    def forward(self, ids):
        hidden = self.embed(ids).cumsum(1)
        return self.head(torch.tanh(self.mix(hidden)))
