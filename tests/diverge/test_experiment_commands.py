"""Confirming commands are experiments: B as it was with A's value, and only what B's engine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.traces import sequence
from fakes.verdicts import SITES, cause, change, flip, lane, pair, sampled, typed, verdict_of
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact
from rip.schemas.lane import Lane, Setting
from rip.schemas.trace import EngineAbilities, Request
from rip.schemas.verdict import Verdict


def undone(verdict: Verdict, name: str) -> dict[str, tuple[Any, Any]]:
    confirm = cause(verdict, name).confirm
    assert confirm is not None
    assert confirm.purpose == "rerun"
    return {one.name: (one.was, one.value) for one in confirm.changes}


def environment(**variables: str | None) -> Fingerprint:
    unset = Fact(unavailable="not set", source="environment")
    facts = {
        name: unset if value is None else fact(value, "environment") for name, value in variables.items()
    }
    return Fingerprint.build("0.1.0", "2026-07-14T09:00:00Z", {"determinism": Section(facts=facts)})


def test_as_batch_and_neighbours_were_in_a(tmp_path: Path) -> None:
    a, b = pair((7, 4))
    a.shapes["batch_size"][:], b.shapes["batch_size"][:] = 4, 8
    lanes = {"a_lane": lane(batch_size=4, neighbours=0), "b_lane": lane(batch_size=8, neighbours=2)}
    verdict = verdict_of(tmp_path, a, b, **lanes)
    assert undone(verdict, "batch-shape") == {"batch_size": (8, 4), "neighbours": (2, 0)}
    assert "--neighbours" not in typed(cause(verdict, "batch-shape"))


def test_no_padding_side_is_asked_of_an_engine_without_one(tmp_path: Path) -> None:
    a, b = pair((7, 4))
    b.shapes["batch_size"][:] = 8
    b.shapes["padded_tokens"][:] = 3
    for known, offered in (({}, False), ({"padding_side": "left"}, True)):
        lanes = {"a_lane": lane(batch_size=1, **known), "b_lane": lane(batch_size=8, **known)}
        found = cause(verdict_of(tmp_path, a, b, **lanes), "padding")
        assert ("padding_side=right" in typed(found)) == offered


@pytest.mark.parametrize("modes", [["free"], ["free", "golden-decode"]])
def test_no_mode_is_asked_of_an_engine_without_it(tmp_path: Path, modes: list[Any]) -> None:
    a, b = pair((7, 4))
    for one in (a, b):
        one.topk_logits[8, :2] = [5.02, 5.0]
    flip(b, 3, 0.03)
    can = EngineAbilities(modes=modes, seed=True, token_ids=True, logprobs="raw")
    greedy = sampled(temperature=0)
    verdict = verdict_of(tmp_path, a, b, b_abilities=can, a_requests=greedy, b_requests=greedy)
    assert (cause(verdict, "near-tie").confirm is not None) == ("golden-decode" in modes)


def test_a_sampling_field_gets_as_value(tmp_path: Path) -> None:
    a, b = pair()
    b.tokens[9] += 1
    asked = {
        "a_requests": sampled(temperature=0.7, stop=["END"]),
        "b_requests": sampled(temperature=1.0, stop=[]),
    }
    found = cause(verdict_of(tmp_path, a, b, **asked), "sampling-contract")
    assert found.confirm is not None
    words = found.confirm.argv
    given = [words[index + 1] for index, word in enumerate(words) if word == "--sampling"]
    assert given == ['stop=["END"]', "temperature=0.7"]
    assert found.interpretation == "same setting as A"


def test_a_limit_of_tokens_gets_as_value(tmp_path: Path) -> None:
    a = sequence(1, len(SITES), prompt=6, decode=8)
    b = sequence(1, len(SITES), prompt=6, decode=5)
    asked = {"a_requests": sampled(max_tokens=8), "b_requests": sampled(max_tokens=5)}
    verdict = verdict_of(tmp_path, a, b, **asked)
    assert undone(verdict, verdict.causes[0].id) == {"max_tokens": (5, 8)}


@pytest.mark.parametrize(("before", "now"), [(None, "default"), ("default", None), ("avx2", "default")])
def test_a_variable_gets_as_value_or_is_not_set(tmp_path: Path, before: str | None, now: str | None) -> None:
    sides = [environment(ATEN_CPU_CAPABILITY=value) for value in (before, now)]
    changes = [change("determinism", "ATEN_CPU_CAPABILITY", str(before), str(now))]
    verdict = verdict_of(
        tmp_path, *pair((7, 4)), changes=changes, a_fingerprint=sides[0], b_fingerprint=sides[1]
    )
    rerun = [one for one in verdict.causes if one.confirm and one.confirm.changes]
    assert rerun
    command = rerun[0].confirm
    assert command is not None
    assert [(one.of, one.was, one.value) for one in command.changes] == [("variable", now, before)]
    assert typed(rerun[0]).startswith("env -u ATEN_CPU_CAPABILITY rip" if before is None else "rip replay")
    assert (f"env.ATEN_CPU_CAPABILITY={before}" in command.argv) == (before is not None)


def test_weights_get_as_folder_where_it_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = [change("model", "sha256", "x", "y")]
    lanes = {
        "a_lane": Lane(name="l", engine="hf", model="old"),
        "b_lane": Lane(name="l", engine="hf", model="new"),
    }
    assert typed(cause(verdict_of(tmp_path, *pair((7, 4)), changes=changes, **lanes), "weights")).startswith(
        "rip query"
    )
    (tmp_path / "old").mkdir()
    found = verdict_of(tmp_path, *pair((7, 4)), changes=changes, **lanes)
    assert undone(found, "weights") == {"model": ("new", "old")}
    assert "--allow-drift" in typed(cause(found, "weights"))


def test_prompts_that_part_get_as_requests(tmp_path: Path) -> None:
    a, b = pair()
    b.tokens[2] += 1
    requests = [
        [Request(request_id="r0", envelope_sha256=digest * 64, envelope={"prompt_token_ids": [1]})]
        for digest in "ab"
    ]
    verdict = verdict_of(tmp_path, a, b, a_requests=requests[0], b_requests=requests[1])
    confirm = verdict.causes[0].confirm
    assert confirm is not None
    assert confirm.argv[2] == str(tmp_path / "a.parquet")


def test_what_b_replay_stated_is_stated_again(tmp_path: Path) -> None:
    a, b = pair((7, 4))
    b.shapes["batch_size"][:] = 8
    stated = {"temperature": Setting(requested=0.5, resolved=0.5, source="option")}
    asked = [Request(request_id="r0", envelope_sha256="0" * 64, sampling=stated)]
    verdict = verdict_of(tmp_path, a, b, a_requests=asked, b_requests=asked)
    assert "--sampling temperature=0.5" in typed(cause(verdict, "batch-shape"))
