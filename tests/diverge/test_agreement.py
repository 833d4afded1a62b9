"""Requests that ran several times: unique outputs, TARr@N, pairs; and engines without a seed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fakes.traces import Sequence, header, result, sequence, write_trace
from fakes.verdicts import sentences
from hypothesis import given
from hypothesis import strategies as st
from rip import cli
from rip.diverge.compare import diverge
from rip.diverge.present.findings.sentences import why
from rip.diverge.statistics import Z_95, wilson
from rip.schemas.lane import Lane, Setting
from rip.schemas.sequences import Agreement
from rip.schemas.trace import EngineAbilities, Request
from rip.schemas.verdict import Verdict

SEEDED = EngineAbilities(modes=["free", "golden-decode"], seed=True, token_ids=True, logprobs="raw")
UNSEEDED = SEEDED.model_copy(update={"seed": False, "modes": ["free"]})


def samples(request_id: str, outputs: str, prompt: int = 4) -> list[Sequence]:
    """One sample a letter; equal letters are equal outputs."""
    found = []
    for number, letter in enumerate(outputs):
        one = sequence(1, 0, prompt=prompt, request_id=request_id)
        one.sample = number
        one.tokens[-1] = ord(letter)
        found.append(one)
    return found


def trace(path: Path, outputs: dict[str, str], **about: Any) -> Path:
    rows = [one for name, letters in outputs.items() for one in samples(name, letters)]
    return write_trace(path, rows, header([], outputs, **about))


def compared(tmp_path: Path, a: dict[str, str], b: dict[str, str], **about: Any) -> Verdict:
    one = trace(tmp_path / "a.parquet", a, abilities=SEEDED)
    other = trace(tmp_path / "b.parquet", b, **{"abilities": SEEDED, **about})
    return diverge(one, other, tmp_path / "out")


def agreed(verdict: Verdict) -> Agreement:
    assert verdict.agreement is not None
    return verdict.agreement


def test_unique_outputs_tar_and_pairs_are_counted(tmp_path: Path) -> None:
    found = agreed(compared(tmp_path, {"r0": "xxx", "r1": "xyx"}, {"r0": "xxy", "r1": "zzz"}))
    by_request = {one.request_id: one for one in found.requests}
    assert [(one.unique_a, one.unique_b, one.unique_both) for one in by_request.values()] == [
        (1, 2, 2),
        (2, 1, 3),
    ]
    assert [one.pairs_equal for one in by_request.values()] == [2, 0]
    assert {one.by for one in found.requests} == {"token ids"}
    for side, agree in ((found.a, 1), (found.b, 1), (found.both, 0)):
        assert side is not None
        assert (side.all_agree.count, side.all_agree.of) == (agree, 2)
    assert found.a is not None
    assert found.both is not None
    assert (found.a.samples, found.both.samples) == (3, 6)
    assert found.pairs is not None
    assert (found.pairs.count, found.pairs.of) == (2, 6)


def test_one_sample_each_needs_no_agreement(tmp_path: Path) -> None:
    assert compared(tmp_path, {"r0": "x"}, {"r0": "x"}).agreement is None


def test_prompts_of_other_lengths_are_no_part_of_the_output(tmp_path: Path) -> None:
    longer = samples("r0", "xx", prompt=6)
    for one in longer:
        one.tokens[6:] = samples("r0", "x")[0].tokens[4:]
        one.tokens = one.tokens[:12]
    trace(tmp_path / "a.parquet", {"r0": "xx"})
    write_trace(tmp_path / "b.parquet", longer, header([]))
    found = agreed(diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out"))
    assert found.pairs is not None
    assert (found.pairs.count, found.pairs.of) == (2, 2)


def test_forced_outputs_agree_by_force_and_are_not_counted(tmp_path: Path) -> None:
    found = agreed(compared(tmp_path, {"r0": "xy"}, {"r0": "xy"}, mode="golden-decode"))
    assert (found.b, found.pairs, found.requests) == (None, None, [])
    assert any("was forced" in note for note in sentences(found.notes))


def sampled_requests(n: int = 2, **temperatures: float) -> list[Request]:
    """Requests for `n` samples, by their temperature."""
    return [
        Request(
            request_id=name,
            envelope_sha256="0" * 64,
            sampling={
                "n": Setting(resolved=n, source="envelope"),
                "temperature": Setting(resolved=temperature, source="envelope"),
            },
        )
        for name, temperature in temperatures.items()
    ]


def test_samples_that_are_drawn_from_seeds_of_their_own_are_not_counted(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("drawn", "both", "greedy")]
    for folder in folders:
        folder.mkdir()

    def both_sides(folder: Path, outputs: dict[str, str], requests: list[Request]) -> Verdict:
        one = trace(folder / "a.parquet", outputs, abilities=SEEDED, requests=requests)
        other = trace(folder / "b.parquet", outputs, abilities=SEEDED, requests=requests)
        return diverge(one, other, folder / "out")

    assert both_sides(folders[0], {"r0": "xy"}, sampled_requests(r0=0.7)).agreement is None
    mixed = agreed(both_sides(folders[1], {"r0": "xy", "r1": "xx"}, sampled_requests(r0=0.7, r1=0)))
    assert [one.request_id for one in mixed.requests] == ["r1"]
    assert any("not counted" in note for note in sentences(mixed.notes))
    greedy = agreed(both_sides(folders[2], {"r0": "xy"}, sampled_requests(r0=0)))
    assert greedy.notes == []
    assert greedy.a is not None
    assert greedy.a.all_agree.count == 0


def test_greedy_and_forced_tokens_need_no_seed(tmp_path: Path) -> None:
    """They are held to as on any engine; only what was drawn is not."""
    for name, about, state in (
        ("greedy", {"requests": sampled_requests(1, r0=0)}, "fails"),
        ("forced", {"requests": sampled_requests(1, r0=0.7), "mode": "golden-prefill"}, "holds"),
        ("drawn", {"requests": sampled_requests(1, r0=0.7)}, "not comparable"),
    ):
        (tmp_path / name).mkdir()
        other = "y" if state == "fails" else "x"
        sides = [
            trace(tmp_path / name / f"{side}.parquet", {"r0": letter}, abilities=UNSEEDED, **about)
            for side, letter in (("a", "x"), ("b", other))
        ]
        verdict = diverge(*sides, tmp_path / name / "out")
        assert verdict.levels["token"].state == state
        assert not any(cause.id == "no-seed" for cause in verdict.causes)


@pytest.mark.parametrize("b", ["xxx", "xyz"])
def test_an_engine_without_a_seed_is_held_to_no_tokens(tmp_path: Path, b: str) -> None:
    lane = Lane(name="main", engine="openai", model="m")
    verdict = compared(
        tmp_path,
        {"r0": "xxx"},
        {"r0": b},
        abilities=UNSEEDED,
        lane=lane,
        requests=sampled_requests(1, r0=0.7),
    )
    token = verdict.levels["token"]
    assert token.state == "not comparable"
    assert "openai (B) takes no seed" in why(token)
    assert agreed(verdict).pairs is not None
    # The negative control: the same outputs of an engine that takes one are judged.
    (tmp_path / "seeded").mkdir()
    judged = compared(tmp_path / "seeded", {"r0": "xxx"}, {"r0": b}).levels["token"].state
    assert judged == ("holds" if b == "xxx" else "fails")


def test_one_sample_of_an_engine_without_a_seed_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, letter in (("a", "x"), ("b", "y")):
        trace(
            tmp_path / f"{name}.parquet",
            {"r0": letter},
            abilities=UNSEEDED,
            requests=sampled_requests(1, r0=0.7),
        )
    monkeypatch.setattr("sys.argv", ["rip", "diverge", "a.parquet", "b.parquet", "--verbose"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3
    out, err = capsys.readouterr()
    assert "0 of 1 pair of samples" in out
    assert "0 of 1: 0.00 (0.00 to 0.79)" in out
    assert "--repeat 8" in out + err
    assert "takes no seed: its draws cannot be repeated" in out + err


def test_text_only_samples_agree_by_text(tmp_path: Path) -> None:
    for name, texts in (("a", "xxy"), ("b", "xyy")):
        told = [result(text, sample=number, sequence=number) for number, text in enumerate(texts)]
        write_trace(tmp_path / f"{name}.parquet", [], header([], results=told))
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")
    [one] = agreed(verdict).requests
    assert (one.by, one.unique_a, one.unique_b, one.unique_both) == ("text", 2, 2, 2)
    assert (one.pairs, one.pairs_equal) == (3, 2)
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert Verdict.from_object(written, "summary").agreement == verdict.agreement


def test_the_report_shows_the_shares(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    from rip.diverge.present.report.build import write_report

    compared(tmp_path, {"r0": "xx", "r1": "xy"}, {"r0": "xx", "r1": "xy"})
    write_report(tmp_path / "out", tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text()
    assert "TARr@2" in html
    assert "1 of 2: 0.50 (0.09 to 0.91)" in html


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (50, 100, 0.4038315, 0.5961685)],
)
def test_wilson_gives_published_values(count: int, of: int, low: float, high: float) -> None:
    found = wilson(count, of)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


@given(st.integers(1, 10_000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_wilson_ends_are_where_the_score_test_just_accepts(case: tuple[int, int]) -> None:
    count, of = case
    found = wilson(count, of)
    assert 0 <= found.low <= found.share <= found.high <= 1
    for end in {found.low, found.high} - {0.0, 1.0}:
        score = (found.share - end) / math.sqrt(end * (1 - end) / of)
        assert abs(score) == pytest.approx(Z_95, rel=1e-6)
