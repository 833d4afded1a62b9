"""Taps inside a compiled model: it stays one graph, and every hash is that of the model's own tensor."""

import re

import numpy as np
import pytest
import torch
from fakes.plain_llama import PlainLlama
from rip.replay.capture.graph_tap import GraphTaps
from rip.replay.capture.observed_passes import Segment
from rip.replay.capture.taps import Taps
from rip.replay.row_summaries.rows import RowSummaries, summarise_by_reference
from rip.schemas.errors import EngineFailed
from torch import nn
from torch._inductor import config as inductor

IDS = torch.tensor([[3, 1, 4], [1, 5, 9]])
OTHER_IDS = torch.tensor([[2, 6, 5], [3, 5, 8]])


@pytest.fixture(scope="module")
def compiler_cache(tmp_path_factory):
    """Not the user's, which is part of an environment's fingerprint."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def compiled_anew(compiler_cache, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiler_cache))
    torch._dynamo.reset()
    # Neither precompiled headers nor a pool of compilers: they take longer than these small models.
    with torch.no_grad(), inductor.patch(cpp_cache_precompile_headers=False, compile_threads=1):
        yield
    torch._dynamo.reset()


def graph_taps(model, max_tokens=16, wanted=None):
    taps = GraphTaps(model, max_tokens, wanted and re.compile(wanted))
    taps.discover(model, 50, "cpu")
    return taps


def compiled(model, backend):
    return torch.compile(model, fullgraph=True, dynamic=False, backend=backend)


def same(found, expected):
    pairs = (
        (getattr(found, name), getattr(expected, name)) for name in ("row_hash", "l2", "absmax", "sketch")
    )
    return all(np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes() for a, b in pairs)


def by_ordinary_taps(model, ids):
    """[B·T, sites], sequence by sequence."""
    taps = Taps(model)
    taps.discover(model, 50, "cpu")
    batch, tokens = ids.shape
    out = RowSummaries.empty(batch * tokens, len(taps.sites))
    segments = [Segment(row, 0, tokens, out, row * tokens) for row in range(batch)]
    with taps.attached(), taps.long_pass(segments, batch, tokens, None):
        model(ids)
    return [site.label() for site in taps.sites], out


class Chain(nn.Module):
    """Hands on what every module below computed, so that a compiler's own values can be looked at."""

    def __init__(self, *modules):
        super().__init__()
        self.embed, self.rest = nn.Embedding(50, 32), nn.ModuleList(modules)

    def forward(self, ids):
        values = [self.embed(ids)]
        for module in self.rest:
            values.append(module(values[-1]))
        return values


class Sigmoid(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * 1.1)


class Shifted(nn.Module):
    def forward(self, x):
        return torch.roll(x, 1, 1) * 1.3


class Last(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids)[-1]


def test_without_fusion_every_row_is_what_ordinary_taps_see():
    model = PlainLlama(layers=2).bfloat16()
    plain = [compiled(model, "aot_eager")(ids) for ids in (IDS, OTHER_IDS)]
    eager = [by_ordinary_taps(model, ids) for ids in (IDS, OTHER_IDS)]
    torch._dynamo.reset()
    taps = graph_taps(model)
    with taps.attached():
        tapped = compiled(model, "aot_eager")
        for ids, expected, (labels, summaries) in zip((IDS, OTHER_IDS), plain, eager, strict=True):
            assert torch.equal(tapped(ids), expected)
            assert [site.label() for site in taps.sites] == labels
            assert same(taps.read(6, sequences=2), summaries)
    assert not same(eager[0][1], eager[1][1])  # the negative control


def test_with_fusion_bits_stay_and_every_row_is_the_tensor_that_the_graph_hands_on():
    torch.manual_seed(0)
    model = Chain(nn.Linear(32, 24), Sigmoid(), nn.LayerNorm(24)).bfloat16()
    plain = compiled(model, "inductor")(IDS)
    torch._dynamo.reset()
    taps = graph_taps(model)
    with taps.attached():
        values = compiled(model, "inductor")(IDS)
    found = taps.read(6, sequences=2)
    assert len(taps.sites) == len(values) == 4
    for site, (value, untapped) in enumerate(zip(values, plain, strict=True)):
        assert torch.equal(value, untapped)
        expected = RowSummaries.empty(6, 4)
        summarise_by_reference(value, expected, 0, site)
        assert (found.row_hash[:, site] == expected.row_hash[:, site]).all(), taps.sites[site].label()
        assert (found.sketch[:, site] == expected.sketch[:, site]).all()


def test_taps_can_change_what_a_compiler_computes_and_a_comparison_of_outputs_shows_it():
    """What is wanted twice is stored in bfloat16 and read again, and no longer kept in float32."""
    torch.manual_seed(0)
    model = Last(Chain(Sigmoid(), Shifted())).bfloat16()
    plain = compiled(model, "inductor")(IDS)
    torch._dynamo.reset()
    with graph_taps(model).attached():
        assert not torch.equal(compiled(model, "inductor")(IDS), plain)


def test_each_run_of_a_module_has_its_own_site_and_rows_come_in_the_order_of_the_tokens():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(50, 8), nn.LayerNorm(4)

        def forward(self, ids):
            heads = self.embed(ids).unflatten(-1, (2, 4)).transpose(1, 2)
            return self.norm(self.norm(heads) * 2)

    model = Twice()
    _, expected = by_ordinary_taps(model, IDS)
    taps = graph_taps(model)
    with taps.attached():
        tapped = compiled(model, "aot_eager")
        for _ in range(2):
            tapped(IDS)
            assert same(taps.read(6, sequences=2), expected)
    assert [site.label() for site in taps.sites] == ["embed", "norm", "norm#1"]


def test_what_a_step_leaves_out_is_empty_and_not_the_row_of_the_step_before():
    model = PlainLlama()
    taps = graph_taps(model, wanted="mlp|embed")
    with taps.attached():
        model(IDS)
        assert taps.read(6, sequences=2).row_hash.any(axis=2).all()
        model.layers = nn.ModuleList()
        model(IDS)
        found = taps.read(6, sequences=2)
    ran = found.row_hash.any(axis=(0, 2))
    assert [site.name for site, there in zip(taps.sites, ran, strict=True) if there] == ["embed_tokens"]


def test_a_step_larger_than_the_buffer_is_refused():
    model = PlainLlama()
    taps = graph_taps(model, max_tokens=5)
    with taps.attached(), pytest.raises(IndexError, match="6 rows"):
        model(IDS)


def test_a_model_that_was_compiled_before_holds_no_taps_and_that_is_said():
    model = PlainLlama()
    tapped = compiled(model, "aot_eager")
    tapped(IDS)
    taps = graph_taps(model)
    with taps.attached():
        tapped(IDS)
    with pytest.raises(EngineFailed, match="holds no taps"):
        taps.read(6, sequences=2)
