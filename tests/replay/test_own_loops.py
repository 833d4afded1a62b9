"""`rip.tap` on loops and models of many kinds: caches, padding, layouts of tensors, compiled parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import rip
import torch
from fakes.own_programs import PROMPT, Trace, Uncached, example, plainly
from fakes.plain_hooks import reference_hash
from hypothesis import given, settings
from hypothesis import strategies as st
from rip.replay.own_programs.fed_sequences import FedSequence
from rip.schemas.errors import BadInput
from torch import nn


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# How programs differ


@pytest.fixture
def uncached():
    torch.manual_seed(3)
    return Uncached().eval()


@pytest.mark.parametrize("window", [100, 12])
def test_a_loop_that_feeds_everything_again_records_each_position_once(uncached, window):
    tokens = torch.tensor([[*PROMPT, 9, 9, 9, 33, 2, 4]])
    with torch.no_grad(), rip.tap(uncached, "t.parquet") as tap:
        for _ in range(6):
            logits = tap.logits(uncached(tokens[:, -window:]))
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
        tap.last(tokens[:, -1])
    trace = Trace("t.parquet")
    assert trace.tokens() == tokens[0].tolist()
    fed = tokens[:, max(0, 14 - window) : 14]
    seen = plainly(uncached, [fed])
    assert trace.hash(13, "mix") == reference_hash(seen[0, "mix"][0, -1])
    row = trace.rows["request", 0, 13]
    assert (row["num_tokens"], row["cached_tokens"]) == (fed.shape[1], 0)
    assert row["topk_ids"][0] == tokens[0, 14]


def test_equal_tokens_fed_one_by_one_are_no_repetition():
    """A cached loop that gets the same token over and over, after a prompt of that token."""
    model = example.make_model()
    with torch.no_grad(), rip.tap(model, "t.parquet"):
        for _ in range(4):
            model(torch.tensor([[9]]))
    assert Trace("t.parquet").tokens() == [9, 9, 9, 9]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(1, 12))
@settings(deadline=None)
def test_feeding_everything_again_is_recognised_whatever_the_tokens(tokens, prompt):
    sequence = FedSequence(0, "r", 0, None)
    for end in range(min(prompt, len(tokens)), len(tokens) + 1):
        placed = sequence.new_rows(tokens[:end], None, 0, 1)
        sequence.take(placed, None, end)
    assert sequence.tokens == tokens


@given(st.lists(st.integers(0, 2), min_size=2, max_size=12), st.data())
@settings(deadline=None)
def test_stated_positions_decide_for_any_chunks_with_any_padding(tokens, data):
    sequence, fed = FedSequence(0, "r", 0, None), 0
    while fed < len(tokens):
        start = data.draw(st.integers(0, fed))
        end = data.draw(st.integers(fed + 1, len(tokens)))
        left, right = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
        ids = [0] * left + tokens[start:end] + [0] * right
        placed = sequence.new_rows(ids, [-1] * left + list(range(start, end)) + [-1] * right, 0, 1)
        assert placed.first_column == left + fed - start
        assert (placed.shape.num_tokens, placed.shape.padded_tokens) == (end - start, left + right)
        assert placed.shape.cached_tokens == start
        sequence.take(placed, None, len(ids))
        fed = end
    assert sequence.tokens == tokens


def test_padding_is_left_out_where_positions_say_so(uncached):
    prompts = [[5, 6, 7, 8], [9, 10]]
    ids, positions = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), [[0, 1, 2, 3], [-1, -1, 0, 1]]
    with torch.no_grad(), rip.tap(uncached, "t.parquet", request_id=["a", "b"], prompt=prompts) as tap:
        with tap.forward(ids, positions):
            logits = uncached(ids)
        tap.logits(logits)
        with tap.forward([[1], [0]], [[4], [-1]]):  # b has ended
            uncached(torch.tensor([[1], [0]]))
    trace = Trace("t.parquet")
    assert (trace.tokens("a"), trace.tokens("b")) == ([5, 6, 7, 8, 1], [9, 10])
    mixed = plainly(uncached, [ids])[0, "mix"]
    assert trace.hash(1, "mix", "b") == reference_hash(mixed[1, 3])
    assert trace.rows["b", 0, 0]["padded_tokens"] == 2
    assert trace.rows["b", 0, 1]["topk_ids"][0] == logits[1, 3].argmax()


class Recurrent(nn.Module):
    """Time first, as torch's recurrent modules are; a state; fed embeddings through another method."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(64, 16), nn.LSTM(16, 24), nn.Linear(24, 64)
        self.state = None

    def read(self, x_TBW):
        hidden, self.state = self.lstm(x_TBW, self.state)
        return self.head(hidden).transpose(0, 1)

    def forward(self, ids):
        return self.read(self.embed(ids.T))


def test_time_first_tensors_and_a_batch(tmp_path):
    torch.manual_seed(4)
    model = Recurrent()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad(), rip.tap(model, "t.parquet") as tap:
        tap.logits(model(ids))
        tap.logits(model(torch.tensor([[7], [8]])))
    trace = Trace("t.parquet")
    model.state = None
    seen = plainly(model, [ids, [[7], [8]]])
    for row in range(2):
        for position in range(4):
            at, column = (0, position) if position < 3 else (1, 0)
            for label, output in (("lstm", seen[at, "lstm"][0]), ("embed", seen[at, "embed"])):
                assert trace.hash(position, label, f"request/{row}") == reference_hash(output[column, row])
    assert trace.labels() == ["embed", "lstm", "head"]


def test_another_method_than_the_call_is_a_pass_when_it_is_stated():
    torch.manual_seed(4)
    model = Recurrent()
    vectors = torch.randn(3, 1, 16)
    with torch.no_grad(), rip.tap(model, "t.parquet") as tap, tap.forward([11, 12, 13]):
        model.read(vectors)
    trace = Trace("t.parquet")
    model.state = None
    with torch.no_grad():
        hidden = model.lstm(vectors)[0]
    assert trace.tokens() == [11, 12, 13]
    assert trace.hash(2, "lstm") == reference_hash(hidden[2, 0])
    assert "1 modules did not run in the first pass" in trace.header.not_seen[0]
    assert "embed" in trace.header.not_seen[0]


class Mixed(nn.Module):
    """Convolution, a dict, a tuple, a module run twice, one that runs sometimes, attention weights."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv = nn.Embedding(64, 16), nn.Conv1d(16, 16, 3)
        self.attend, self.twice = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 16)
        self.named, self.sometimes = Named(), nn.Identity()

    def forward(self, mask, tokens):
        x = self.embed(tokens)
        x = self.conv(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        x, _ = self.attend(x, x, x)
        x = self.named(self.twice(self.twice(x)))["hidden"]
        return self.sometimes(x) if tokens.shape[1] > 1 else x


class Named(nn.Module):
    def forward(self, x):
        return {"hidden": x * 2, "gate": x[..., :1], "total": x.sum()}


def test_convolutions_dicts_tuples_repeats_and_what_has_no_row():
    torch.manual_seed(5)
    model = Mixed()
    ids = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    mask = torch.ones(2, 9, dtype=torch.int64)
    with torch.no_grad(), rip.tap(model, "t.parquet", argument="tokens"):
        model(mask, ids)
        model(mask, tokens=ids[:, :1])
    trace = Trace("t.parquet")
    assert trace.labels() == [
        *("embed", "conv", "attend", "twice", "twice#1", "named:hidden", "named:gate", "sometimes")
    ]
    with torch.no_grad():
        x = model.conv(nn.functional.pad(model.embed(ids).transpose(1, 2), (2, 0)))
        attended, _ = model.attend(*[x.transpose(1, 2)] * 3)
        once = model.twice(attended)
    assert trace.hash(3, "conv", "request/1") == reference_hash(x[1, :, 3])
    assert trace.hash(3, "attend", "request/1") == reference_hash(attended[1, 3])
    assert trace.hash(4, "twice", "request/0") == reference_hash(once[0, 4])
    assert trace.hash(4, "twice#1", "request/0") == reference_hash(model.twice(once)[0, 4].detach())
    said = " ".join(trace.header.not_seen)
    assert "2 outputs have no row of fixed width per token" in said  # weights, and the total
    assert "1 sites gave no row at some positions" in said
    assert "sometimes" in said
    assert trace.hash(5, "sometimes", "request/0") is None


def test_torchs_fused_transformer_layer_runs_as_it_does_without_taps():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    model = nn.Sequential(nn.Embedding(64, 16), layer)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        plain = model(ids)
        with rip.tap(model, "t.parquet"):
            assert torch.equal(model(ids), plain)
    trace = Trace("t.parquet")
    assert trace.hash(2, "1") == reference_hash(plain[0, 2])
    assert trace.labels() == ["0", "1"]
    assert "modules did not run in the first pass" in trace.header.not_seen[0]


# Axes that cannot be told apart


class Square(nn.Module):
    def __init__(self, time_first):
        super().__init__()
        self.embed, self.mix, self.time_first = nn.Embedding(64, 8), nn.Linear(8, 8), time_first

    def forward(self, ids):
        return self.mix(self.embed(ids.T if self.time_first else ids))


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("axes", ["batch-first", "time-first"])
def test_as_many_tokens_as_the_width_is_refused_until_the_axes_are_stated(batch, axes):
    model = Square(axes == "time-first")
    ids = torch.arange(8 * batch).view(batch, 8)
    with pytest.raises(BadInput, match="which one counts tokens is ambiguous") as refused, torch.no_grad():  # noqa: SIM117
        with rip.tap(model, "t.parquet"):
            model(ids)
    assert "axes='batch-first'" in refused.value.fix
    assert not list(Path().iterdir())
    with torch.no_grad(), rip.tap(model, "t.parquet", axes=axes):
        returned = model(ids)
    trace = Trace("t.parquet")
    assert trace.labels() == ["embed", "mix"]
    row = returned[3, batch - 1] if axes == "time-first" else returned[batch - 1, 3]
    name = "request" if batch == 1 else f"request/{batch - 1}"
    assert trace.hash(3, "mix", name) == reference_hash(row)


def test_as_many_sequences_as_tokens_is_refused_and_another_number_is_not():
    model = Square(time_first=True)
    with pytest.raises(BadInput, match="3 × 3 tokens"), rip.tap(model, "t.parquet"):
        model(torch.arange(9).view(3, 3))
    with torch.no_grad(), rip.tap(model, "t.parquet"):
        returned = model(torch.arange(12).view(3, 4))
    assert Trace("t.parquet").hash(3, "mix", "request/2") == reference_hash(returned[3, 2])


# Compiled models


def test_compiled_models_are_refused_and_compiled_parts_are_said_to_be_unseen():
    whole = example.make_model()
    for compiled in (
        torch.compile(whole, backend="eager"),
        torch.jit.script(nn.Linear(2, 2)),
    ):
        with pytest.raises(BadInput, match="is compiled"):
            rip.tap(compiled, "t.parquet")
    in_place = example.make_model()
    in_place.compile(backend="eager")
    with pytest.raises(BadInput, match="is compiled"):
        rip.tap(in_place, "t.parquet")
    model = example.make_model()
    model.blocks[1].compile(backend="eager")
    model.blocks[2] = torch.compile(model.blocks[2], backend="eager")
    with torch.no_grad(), rip.tap(model, "t.parquet"):
        model(torch.tensor([PROMPT]))
    trace = Trace("t.parquet")
    assert "layers.1" in trace.labels()
    assert not any(label.startswith(("layers.1.", "layers.2")) for label in trace.labels())
    assert (
        "2 modules are compiled, and nothing inside them was observed: layers.1" in trace.header.not_seen[0]
    )
    plain = plainly(example.make_model(), [[PROMPT]])
    assert trace.hash(4, "layers.1") == reference_hash(plain[0, "blocks.1"][0, 4])
    assert model.blocks[1]._compiled_call_impl is not None


def test_a_compiled_copy_of_a_tapped_model_is_never_taken_for_it():
    model = example.make_model()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(BadInput, match="was not called while it was tapped") as refused, torch.no_grad():  # noqa: SIM117
        with rip.tap(model, "t.parquet"):
            compiled(torch.tensor([PROMPT]))
    assert "compiled copy" in refused.value.fix
