"""`rip.tap` where something goes wrong: a program that dies, a pass that fails, what does not fit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import rip
import torch
from fakes.command_line import Rip
from fakes.own_programs import PROMPT, Trace, Uncached, example, generate
from fakes.plain_hooks import reference_hash
from rip.schemas.errors import BadInput, OutputFailed
from rip.schemas.trace import TraceHeader


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(monkeypatch, capsys):
    return Rip(monkeypatch, capsys)


# What goes wrong


def test_a_program_that_dies_keeps_what_was_recorded_and_its_own_error(command):
    model = example.make_model()

    def dies():
        with torch.no_grad(), rip.tap(model, "t.parquet") as tap:
            for name in ("a", "b"):
                model.reset()
                tap.request(name)
                model(torch.tensor([PROMPT]))
                model(torch.tensor([[1]]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as died:
        dies()
    assert died.value.__notes__ == ["rip: 12 rows are kept in t.parquet.parts"]
    assert not Path("t.parquet").exists()
    assert all(module._compiled_call_impl is None for module in model.modules())
    header = TraceHeader.from_json(Path("t.parquet.parts/header.json").read_text(), "header.json")
    assert [request.request_id for request in header.requests] == ["a", "b"]
    model.reset()
    generate(model, "whole.parquet", request_id="a")
    done = command("diverge", "t.parquet.parts", "whole.parquet", "-o", "d")
    assert "A is an unfinished run" in done.out
    with pytest.raises(OutputFailed, match="unfinished run") as refused:
        rip.tap(model, "t.parquet")
    assert "force=True" in refused.value.fix
    model.reset()
    generate(model, "t.parquet", force=True)
    assert not Path("t.parquet.parts").exists()


class Failing(Uncached):
    def forward(self, ids):
        hidden = self.mix(self.embed(ids))
        if ids[0, 0] == 63:
            raise RuntimeError("63")
        return self.head(hidden)


def test_a_pass_that_fails_leaves_no_row_and_the_next_one_its_own():
    torch.manual_seed(6)
    model = Failing()
    with torch.no_grad(), rip.tap(model, "t.parquet"):
        for token in (1, 63, 2, 63, 3):
            with pytest.raises(RuntimeError, match="63") if token == 63 else nullcontext():
                model(torch.tensor([[token]]))
    trace = Trace("t.parquet")
    assert trace.tokens() == [1, 2, 3]
    for position, token in enumerate((1, 2, 3)):
        embedded = model.embed(torch.tensor(token)).detach()
        assert trace.hash(position, "embed") == reference_hash(embedded)
        assert trace.hash(position, "mix") == reference_hash(model.mix(embedded[None, None])[0, 0].detach())


def fed(*ids):
    return lambda model, tap: [model(torch.tensor(each)) for each in ids]


def enter(*stated):
    return lambda model, tap: tap.forward(*stated).__enter__()


def two_columns_of_five(model, tap):
    tap.logits(model(torch.tensor([PROMPT]))[:, :2])


def another_token(model, tap):
    for ids in ([[1, 2, 3]], [[1, 2, 4]]):
        with tap.forward(ids, [[0, 1, 2]]):
            model(torch.tensor(ids))


def another_prompt(model, tap):
    for ids in ([[1, 2]], [[1, 3]]):
        model.reset()
        tap.request("a")
        model(torch.tensor(ids))


MISUSES = [
    ("was not called while it was tapped", lambda model, tap: model.forward(torch.tensor([PROMPT])), {}),
    ("without token ids", lambda model, tap: model(torch.rand(1, 3)), {}),
    ("a pass of 2 sequences, after one of 1", fed([[1]], [[1], [2]]), {}),
    ("2 names and 1 prompts", fed([[1]]), {"request_id": ["a", "b"]}),
    ("not those of the prompt", fed([PROMPT]), {"prompt": [7, 21, 4]}),
    ("the prompt differs from that of an earlier sample", another_prompt, {}),
    (r"tap.logits was given \[1, 2, 64\] after a pass of \[1, 5\]", two_columns_of_five, {}),
    ("before any pass", lambda model, tap: tap.logits(torch.rand(1, 64)), {}),
    ("do not count up", enter([[1, 2]], [[0, 2]]), {}),
    ("position 3 was fed, but position 0 never was", enter([[1]], [[3]]), {}),
    ("not of the shape", enter([[1, 2]], [[0]]), {}),
    ("holds a different token than before", another_token, {}),
    ("token_ids holds numbers below 0", enter([[-100]]), {}),
    (r"is \[2\] of torch.float32", enter([0.5, 1.0]), {}),
    ("tap.last was given 2 tokens for 0", lambda model, tap: tap.last([1, 2]), {}),
    ("nothing can be observed", fed([[1, 2]]), {"sites": "no such module"}),
]


@pytest.mark.parametrize(("match", "misuse", "options"), MISUSES, ids=[misuse[0] for misuse in MISUSES])
def test_what_does_not_fit_is_refused_with_a_way_out(match, misuse, options):
    model = example.make_model()
    with pytest.raises(BadInput, match=match) as refused, torch.no_grad():  # noqa: SIM117
        with rip.tap(model, "t.parquet", **options) as tap:
            misuse(model, tap)
    assert refused.value.fix
    assert not Path("t.parquet").exists()
    assert all(module._compiled_call_impl is None for module in model.modules())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"argument": "nothing"}, "none of that name"),
        ({"topk": 0}, "topk=0"),
        ({"sites": "["}, "no pattern"),
        ({"request_id": ""}, "names no request"),
        ({"request_id": ["a", "a"]}, "one twice"),
        ({"fingerprint": "missing.json"}, "cannot be read"),
        ({"model": 3}, "no torch.nn.Module"),
    ],
)
def test_arguments_are_checked_at_once(options, match):
    with pytest.raises(BadInput, match=match):
        rip.tap(**{"model": example.make_model(), "out": "t.parquet", **options})


def test_an_output_that_cannot_be_written_is_refused_at_once():
    Path("t.parquet").write_text("precious")
    Path("folder").mkdir()
    for out, match in (
        ("t.parquet", "exists already"),
        ("no/t.parquet", "does not exist"),
        ("folder", "a folder"),
    ):
        with pytest.raises(OutputFailed, match=match):
            rip.tap(example.make_model(), out)
    assert Path("t.parquet").read_text() == "precious"


def test_a_closed_tap_says_so():
    model = example.make_model()
    tap = rip.tap(model, "t.parquet")
    with pytest.raises(BadInput, match=r"tap\.logits was called while the tap is not open"):
        tap.logits(torch.rand(1, 1, 64))
