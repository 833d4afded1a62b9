"""Offline engines: what an engine of one's own has to be, what a replay on it records, what is refused."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import offline_engines as fakes
from fakes.command_line import Rip
from fakes.replaying import batch_of, gather, planned
from hypothesis import given
from hypothesis import strategies as some
from rip.replay.engines.base import Opening
from rip.replay.engines.offline.engine import OfflineAdapter, OfflineKind
from rip.replay.engines.offline.output import CheckedOutput
from rip.replay.engines.offline.protocol import OfflineSampling
from rip.replay.engines.registry import engine_class
from rip.replay.request.batches import Batch
from rip.schemas.envelope import Runtime
from rip.schemas.errors import BadInput, EngineFailed, MissingPackage, RipError
from rip.schemas.trace import HEADER_KEY, TraceHeader

PROMPT = [10, 20, 30, 40]
PACKAGES = Path(__file__).parent.parent / "fakes" / "packages"
SWITCHES = ("DEEPINFER_BATCH_INVARIANT", "DEEPINFER_ENABLE_MTP_VARLEN")


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Rip:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Rip(monkeypatch, capsys)


@pytest.fixture
def opened(tiny_model: Path) -> Callable[..., OfflineAdapter]:
    """Opens a class of fakes/offline_engines.py on the tiny model."""

    def open_(offline: Any, topk: int = 4, mode: str = "free", **given: Any) -> OfflineAdapter:
        kind = OfflineKind("mine", offline)
        return kind(
            Opening(Runtime(), topk, model=tiny_model, model_sha256="0" * 64, settings=given, mode=mode)
        )  # type: ignore[arg-type]

    return open_


def write(path: Path, *names: str, expected: list[int] | None = None, **sampling: Any) -> None:
    asked = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, **sampling}
    lines = []
    for index, name in enumerate(names):
        raw = {"request_id": name, "prompt_token_ids": [*PROMPT, index], "sampling": asked}
        lines.append(json.dumps(raw if expected is None else {**raw, "expected": {"token_ids": expected}}))
    path.write_text("\n".join(lines) + "\n")


def header(path: str) -> TraceHeader:
    return TraceHeader.from_json(pq.read_metadata(path).metadata[HEADER_KEY], path)


# A replay


def test_a_replay_on_an_own_engine_records_what_it_tells(rip: Rip, tiny_model: Path) -> None:
    write(Path("r.jsonl"), "a", "b")
    done = rip(
        *("replay", "r.jsonl", "--engine", "fakes.offline_engines:PlainEngine", "--model", tiny_model),
        *(
            "--topk",
            "3",
            "--set",
            "batch_size=2",
            "--set",
            "depth=4",
            "--set",
            "flavour=x",
            "-o",
            "t.parquet",
        ),
    )
    assert done.code == 0, done.err
    rows = [row for row in pq.read_table("t.parquet").to_pylist() if row["request_id"] == "b"]
    tokens = [row["token_id"] for row in rows]
    assert tokens[:5] == [*PROMPT, 1]
    for position in range(4, 9):  # each generated token is the best one of the distribution before it
        truth = fakes.logprobs_after(tokens[: position + 1])
        assert rows[position]["topk_ids"][0] == tokens[position + 1]
        best = sorted(truth, reverse=True)[:3]
        assert rows[position]["topk_logprobs"] == np.array(best, np.float32).tolist()
        assert rows[position]["next_logprob"] == np.float32(max(truth))
    assert rows[0]["topk_ids"] is None, "the engine tells nothing of prompts"
    told = header("t.parquet")
    assert told.lane.engine == "fakes.offline_engines:PlainEngine"
    settings = told.lane.settings
    assert (settings["depth"].requested, settings["depth"].resolved, settings["depth"].observed) == (4, 4, 4)
    assert (settings["threads"].observed, settings["threads"].source) == (1, "engine default")
    assert (settings["flavour"].resolved, settings["flavour"].source) == ("x", "lane")
    assert settings["engine_version"].observed == "1.2.3"
    assert told.fingerprint is not None
    assert told.fingerprint.flat()["engine_version"] == "1.2.3"
    assert [result.reason for result in told.results] == ["length", "length"]
    assert told.results[0].text, "the tokenizer of the model's folder makes the text"


def test_recorded_tokens_are_forced_and_their_logprobs_told(rip: Rip, tiny_model: Path) -> None:
    golden = [99, 3, 55]
    write(Path("r.jsonl"), "a", expected=golden)
    done = rip(
        *("replay", "r.jsonl", "--engine", "fakes.offline_engines:PlainEngine", "--model", tiny_model),
        *("--mode", "golden-decode", "-o", "t.parquet"),
    )
    assert done.code == 0, done.err
    rows = pq.read_table("t.parquet").to_pylist()
    fed = [*PROMPT, 0, *golden]
    assert [row["token_id"] for row in rows] == fed
    assert [row["forced"] for row in rows] == [False] * 5 + [True] * 3
    for position, token in enumerate(golden, 4):
        assert rows[position]["next_logprob"] == np.float32(fakes.logprobs_after(fed[: position + 1])[token])
    assert header("t.parquet").results[0].reason == "golden"


def test_a_batch_is_one_call_with_every_field_stated(opened: Callable[..., OfflineAdapter]) -> None:
    engine = opened(fakes.PlainEngine, topk=2)
    batch = batch_of(PROMPT, PROMPT[:2], temperature=0.5, top_p=0.9, top_k=-1, seed=3, stop_token_ids=[9])
    found = gather(engine.run(batch, "free", observe=False))
    assert len(found) == 2
    (asked,) = engine._engine.asked
    assert asked == [OfflineSampling(8, 0.5, 0.9, 0, 3, (9,), True, None, 2)] * 2


def test_seeds_choose_the_draws(opened: Callable[..., OfflineAdapter]) -> None:
    def tokens(seed: int) -> list[int]:
        engine = opened(fakes.PlainEngine)
        return gather(engine.run(batch_of(PROMPT, temperature=1.0, seed=seed), "free", False))[0].token_ids

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)


def test_an_engine_without_seeds_or_raw_logprobs_says_so(opened: Callable[..., OfflineAdapter]) -> None:
    engine = opened(fakes.ScheduledEngine)
    assert engine.capabilities.modes == ("free",)
    assert engine.capabilities.batch == "concurrent"
    assert any("not the raw ones" in sentence for sentence in engine.not_seen)
    found = gather(engine.run(batch_of(PROMPT, temperature=1.0), "free", False))
    assert found[0].finished is not None
    [unseeded] = found[0].finished.findings
    assert (unseeded.kind, unseeded.data) == ("seed-unsupported", {"engine": "mine"})
    greedy = gather(engine.run(batch_of(PROMPT), "free", False))
    assert greedy[0].finished is not None
    assert greedy[0].finished.findings == ()


def test_prompt_logprobs_stand_at_the_positions_before(opened: Callable[..., OfflineAdapter]) -> None:
    class Scoring(fakes.WordyEngine):
        fault = ("prompt_top_ids", lambda output: [[1], [2], [3]])

        def answer(self, *arguments: Any) -> Any:
            output = super().answer(*arguments)
            object.__setattr__(output, "prompt_top_logprobs", [[-1.0], [-2.0], [-3.0]])
            return output

    rows = gather(opened(Scoring).run(batch_of(PROMPT), "free", False))[0]
    assert [None if topk is None else topk.ids.tolist() for topk in rows.topk[:3]] == [[1], [2], [3]]
    assert rows.topk[3] is not None, "what the first token was chosen from"
    assert len(rows.topk[3].ids) == 4
    assert rows.topk[-1] is None


def test_it_is_closed_once(opened: Callable[..., OfflineAdapter]) -> None:
    engine = opened(fakes.PlainEngine)
    own = engine._engine
    engine.close()
    engine.close()
    assert own.closed == 1


# What is refused


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("no_such_module:Engine", BadInput, "there is no module 'no_such_module'"),
        ("fakes.no_such:Engine", BadInput, "there is no module 'fakes.no_such'"),
        ("fakes.offline_engines:Missing", BadInput, "has no Missing"),
        ("fakes.offline_engines:a_function", BadInput, "is not a class"),
        ("fakes.offline_engines:NoGenerate", BadInput, "has no method generate"),
        ("fakes.offline_engines:NoCapabilities", BadInput, "no class attribute capabilities"),
        ("fakes.offline-engines:PlainEngine", BadInput, "not of the form module:Class"),
        ("broken:Engine", EngineFailed, "broken cannot be imported: SyntaxError"),
        ("needing:Engine", MissingPackage, "needing needs the package 'a_package_that_nobody_has'"),
    ],
)
def test_an_engine_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[RipError], said: str
) -> None:
    (tmp_path / "broken.py").write_text("class Engine(:\n")
    (tmp_path / "needing.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(kind) as caught:
        engine_class(name)
    assert said in caught.value.message
    assert caught.value.fix


def test_a_module_in_the_current_folder_is_found_but_never_before_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_this_folder.py").write_text(
        "from fakes.offline_engines import PlainEngine as Mine\n"
    )
    (tmp_path / "rich.py").write_text("raise SystemExit('imported by mistake')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kind = engine_class("engine_of_this_folder:Mine")
    assert kind.offline is fakes.PlainEngine
    monkeypatch.delitem(sys.modules, "engine_of_this_folder")
    with pytest.raises(BadInput, match="rich has no Mine"):
        engine_class("rich:Mine")


@pytest.mark.parametrize(
    ("offline", "kind", "said"),
    [
        (fakes.NoVocabulary, EngineFailed, "no attribute vocab_size that is a size"),
        (fakes.NoVersion, EngineFailed, "no attribute version that is a text"),
        (fakes.FailingToOpen, EngineFailed, "RuntimeError: out of memory"),
        (fakes.NeedsAPackage, MissingPackage, "'a_package_that_nobody_has', which is not installed"),
    ],
)
def test_an_engine_that_does_not_open_is_reported(
    opened: Callable[..., OfflineAdapter], offline: Any, kind: type[RipError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        opened(offline)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["batch_size=0"], "not a whole number from 1"),
        (["batch_size"], "not of the form KEY=VALUE"),
        (["depth=deep"], "invalid literal for int"),
    ],
)
def test_settings_that_do_not_fit_are_refused(pairs: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        OfflineKind("mine", fakes.PlainEngine).parse_settings(pairs, starts=True)


def test_a_setting_that_the_constructor_lacks_is_refused(opened: Callable[..., OfflineAdapter]) -> None:
    with pytest.raises(BadInput, match="unexpected keyword argument 'speed'"):
        opened(fakes.PlainEngine, speed="9")


FAULTS: list[tuple[str, Any, str]] = [
    ("outputs", [], "returned 0 outputs for 1 prompts"),
    ("outputs", None, "returned NoneType for 1 prompts"),
    ("outputs", [{"token_ids": [1]}], "an output has no token_ids: it is a dict"),
    ("token_ids", [1.5], "token_ids is not a list of token ids"),
    ("token_ids", None, "token_ids is not a list of token ids"),
    ("token_ids", [128], "holds 128, outside the vocabulary of 128"),
    ("token_ids", [1] * 9, "9 tokens where at most 8 were requested"),
    ("finish_reason", 3, "finish_reason is not a text"),
    ("logprobs", [-1.0], "logprobs has 1 entries where 8 were expected"),
    ("logprobs", [0.7] * 8, "0.7 is above 0"),
    ("logprobs", ["x"] * 8, "'x' is not a log-probability"),
    ("logprobs", 3, "logprobs is not a list"),
    ("top_ids", None, "no top_ids and top_logprobs, though its capabilities promise them"),
    ("top_ids", [[1]] * 7, "top_ids has 7 entries where 8 were expected"),
    ("top_ids", [[1, 1, 2, 3]] * 8, "names a token twice"),
    ("top_ids", [[1, 2, 3]] * 8, "has 4 entries where 3 were expected"),
    ("top_logprobs", None, "top_logprobs is not a list"),
    ("prompt_top_ids", [[1]], "prompt_top_ids has 1 entries where 3 were expected"),
    ("text", b"x", "text is not a text"),
]


@pytest.mark.parametrize(("field", "value", "said"), FAULTS)
def test_an_output_that_breaks_the_protocol_is_an_error_with_a_fix(
    opened: Callable[..., OfflineAdapter], field: str, value: Any, said: str
) -> None:
    class Faulty(fakes.WordyEngine):
        fault = (field, value)

    with pytest.raises(EngineFailed) as caught:
        gather(opened(Faulty).run(batch_of(PROMPT), "free", False))
    assert said in caught.value.message
    assert "docs/offline-engines.md" in caught.value.fix


def test_tokens_that_were_not_forced_are_an_error(opened: Callable[..., OfflineAdapter]) -> None:
    class Willful(fakes.WordyEngine):
        fault = ("token_ids", [5, 6, 8])

    batch = Batch((planned(0, PROMPT, golden=[5, 6, 7]),))
    with pytest.raises(EngineFailed, match="step 2 generated token 8 where 7 was to be forced"):
        gather(opened(Willful).run(batch, "golden-decode", False))


def test_whatever_it_raises_ends_with_an_error_and_a_fix(rip: Rip, tiny_model: Path) -> None:
    write(Path("r.jsonl"), "a")
    done = rip(
        *("replay", "r.jsonl", "--engine", "fakes.offline_engines:FailingToGenerate", "--model", tiny_model),
        *("-o", "t.parquet"),
    )
    assert done.code == 2
    assert "failed while generating for a: IndexError: list index out of range" in done.err
    assert "--debug" in done.err


junk = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=3),
    lambda inner: some.lists(inner, max_size=4),
    max_leaves=8,
)


@given(junk, junk, junk, junk, junk)
def test_no_output_leads_to_anything_but_rows_or_an_error(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    class Output:
        token_ids, finish_reason, logprobs, top_ids, top_logprobs = a, b, c, d, e

    kind = OfflineKind("mine", fakes.PlainEngine)
    params = OfflineSampling(8, 0.0, 1.0, 0, 0, (), True, None, 4)
    try:
        checked = CheckedOutput(kind, 128, planned(0, PROMPT), params, Output())
    except EngineFailed:
        return
    assert len(checked.topk) == len(checked.token_ids) <= 8


# DeepInfer


@pytest.fixture
def without_deepinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that never had it, and is so again after the test."""
    monkeypatch.delitem(sys.modules, "deepinfer", raising=False)
    for name in SWITCHES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def deepinfer(without_deepinfer: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The stand-in can be imported; the result gives the module."""
    monkeypatch.syspath_prepend(PACKAGES)
    return lambda: importlib.import_module("deepinfer")


def open_deepinfer(model: Path, *settings: str) -> OfflineAdapter:
    kind = engine_class("deepinfer")
    given = kind.parse_settings(settings, starts=True)
    lane: OfflineAdapter = kind(Opening(Runtime(), 4, model=model, model_sha256="0" * 64, settings=given))
    return lane


def test_deepinfer_opens_with_its_switches_set_before_the_import(
    deepinfer: Callable[[], Any], tiny_model: Path
) -> None:
    engine = open_deepinfer(tiny_model)
    assert [os.environ[name] for name in SWITCHES] == ["1", "0"]
    assert (deepinfer().BATCH_INVARIANT, deepinfer().MTP_VARLEN) == (True, False)
    switch = engine.settings["batch_invariant"]
    assert (switch.resolved, switch.observed, switch.source) == ("1", "1", "engine default")
    assert (engine.vocab_size, engine.context_length) == (128, 256)
    assert engine.settings["engine_version"].observed == "0.9"


def test_its_switches_can_be_turned_off(deepinfer: Callable[[], Any], tiny_model: Path) -> None:
    engine = open_deepinfer(tiny_model, "batch_invariant=0")
    assert deepinfer().BATCH_INVARIANT is False
    switch = engine.settings["batch_invariant"]
    assert (switch.requested, switch.observed, switch.source) == ("0", "0", "lane")
    with pytest.raises(BadInput, match="batch_invariant=yes: choose 0 or 1"):
        open_deepinfer(tiny_model, "batch_invariant=yes")


def test_switches_that_come_too_late_are_refused(deepinfer: Callable[[], Any], tiny_model: Path) -> None:
    deepinfer()
    with pytest.raises(EngineFailed, match="imported already, with DEEPINFER_BATCH_INVARIANT=unset"):
        open_deepinfer(tiny_model)


def test_it_is_given_seeds_and_golden_tokens(deepinfer: Callable[[], Any], tiny_model: Path) -> None:
    engine = open_deepinfer(tiny_model)
    sampled = gather(engine.run(batch_of(PROMPT, PROMPT, temperature=1.0, seed=4), "free", False))
    assert sampled[0].token_ids == sampled[1].token_ids, "the seed is the sequence's own"
    forced = gather(engine.run(Batch((planned(0, PROMPT, golden=[5, 6, 7]),)), "golden-decode", False))
    assert forced[0].token_ids == [*PROMPT, 5, 6, 7]


def test_where_it_is_not_installed_that_is_said(without_deepinfer: None, tiny_model: Path) -> None:
    with pytest.raises(MissingPackage, match="DeepInfer is not installed here") as caught:
        open_deepinfer(tiny_model)
    assert "into the environment that runs rip" in caught.value.fix


# The documented example


@pytest.fixture
def documented(rip: Rip, monkeypatch: pytest.MonkeyPatch) -> Rip:
    """`my_engine.py` as docs/offline-engines.md shows it lies in the current folder."""
    text = (Path(__file__).parents[2] / "docs" / "offline-engines.md").read_text("utf-8")
    Path("my_engine.py").write_text(text.split("```python\n")[1].split("```")[0])
    monkeypatch.delitem(sys.modules, "my_engine", raising=False)
    return rip


def test_the_documented_engine_generates_what_the_hf_engine_does(documented: Rip, tiny_model: Path) -> None:
    write(Path("set.jsonl"), "a", "b", "c")
    for out, *chosen in (("mine.parquet", "--engine", "my_engine:MyEngine"), ("hf.parquet",)):
        line = ("replay", "set.jsonl", "--model", tiny_model, "--set", "batch_size=3", *chosen, "-o", out)
        assert (done := documented(*line, "--capture", "tokens")).code == 0, done.err
    mine, theirs = (pq.read_table(name).to_pylist() for name in ("mine.parquet", "hf.parquet"))
    assert [row["token_id"] for row in mine] == [row["token_id"] for row in theirs]
    generated = [index for index, row in enumerate(mine) if row["step"] is not None]
    for index in generated:
        assert mine[index - 1]["next_logprob"] == pytest.approx(theirs[index - 1]["next_logprob"], abs=1e-4)
    assert header("mine.parquet").lane.settings["dtype"].observed == "float32"


def test_the_documented_engine_can_be_checked(documented: Rip, tiny_model: Path) -> None:
    small = ("--sequences", "3", "--tokens", "3", "--max-length", "30")
    line = ("check", "batch-invariance", "--engine", "my_engine:MyEngine", "--model", tiny_model, *small)
    done = documented(*line, "--batch", "1")
    assert done.code == 0, done.err
    assert "the engine repeats itself" in done.err
    sampled = documented(*line, "--batch", "1", "--sampled", "-o", "sampled")
    assert sampled.code == 0, sampled.err
