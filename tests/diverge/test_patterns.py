"""Over many sequences: rates, survival, jumps and causes, against plain loops over planted divergences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fakes.traces import Sequence, disturb, disturb_logits, header, llama_sites, sequence, write_trace
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rip.diverge import patterns as patterns_causes
from rip.diverge.compare import diverge
from rip.diverge.present.terminal import print_details
from rip.diverge.reading.load import read_header
from rip.diverge.result_folder import LATER_TABLES
from rip.diverge.statistics import jump_of, survival, wilson
from rip.diverge.views.open_views import open_views
from rip.diverge.views.query import run
from rip.schemas.trace import Request
from rip.schemas.verdict import Verdict

SITES = llama_sites(2)
GATE = 3
"""Index of layers.0.mlp.gate_proj."""
STEPS = 16
QUERIES = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(
    r"```sql\n(.*?)```", QUERIES.split("## Over many sequences")[1].split("\n## ")[0], re.S
)


def flip(one: Sequence, step: int) -> None:
    one.tokens[one.prompt_length + step :] += 1


def scene() -> Iterator[tuple[Sequence, Sequence, int | None]]:
    """Twenty pairs and the step at which each parts: short prompts never, long ones in B's batch of 8."""
    for index in range(20):
        long = index % 2 == 1
        a, b = (sequence(index, len(SITES), 40 if long else 6, STEPS, request_id=f"r{index}") for _ in "ab")
        a.feeds_last = b.feeds_last = False
        step = index // 2 + 2 if long and index < 16 else None
        if step is not None:
            b.shapes["batch_size"][:] = 8
            disturb(b, a.prompt_length + step - 2, GATE)
            disturb_logits(b, a.prompt_length + step - 1, 0.05)
            flip(b, step)
        yield a, b, step


def write(tmp_path: Path, pairs: list[tuple[Sequence, Sequence]], **about: Any) -> tuple[Path, Path]:
    names = [a.request_id for a, _ in pairs]
    paths = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for side, path in enumerate(paths):
        write_trace(path, [pair[side] for pair in pairs], header(SITES, names, **about))
    return paths


def ask(folder: Path, sql: str) -> list[dict[str, Any]]:
    with open_views(folder) as views:
        rows = run(views, sql)
        return pa.Table.from_batches(list(rows.batches), schema=rows.schema).to_pylist()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verdict, list[int | None]]:
    folder = tmp_path_factory.mktemp("patterns")
    made = list(scene())
    paths = write(folder, [(a, b) for a, b, _ in made])
    return folder, diverge(*paths, folder / "out"), [step for _, _, step in made]


def test_every_sequence_has_a_row(compared: tuple[Path, Verdict, list[int | None]]) -> None:
    folder, _, steps = compared
    rows = ask(folder / "out", "SELECT * FROM sequences ORDER BY pair")
    assert [row["divergence_step"] for row in rows] == steps
    for index, (row, step) in enumerate(zip(rows, steps, strict=True)):
        assert row["request_id"] == f"r{index}"
        assert row["prompt_tokens"] == (40 if index % 2 else 6)
        assert row["steps"] == (STEPS if step is None else step)
        assert row["diverged"] == (step is not None)
        assert row["batch_size_b"] == (1 if step is None else 8)
        assert row["first_layer"] == (None if step is None else 0)
        assert row["cause"] == (None if step is None else "batch-shape")
        assert (row["margin_a"] is None) == (step is None)


def test_rates_are_those_of_a_plain_count(compared: tuple[Path, Verdict, list[int | None]]) -> None:
    folder, verdict, steps = compared
    rates = {
        (row["dimension"], row["value"]): row for row in ask(folder / "out", "SELECT * FROM divergence_rates")
    }
    parted = sum(step is not None for step in steps)
    plain = {
        ("all", "all"): (parted, 20),
        ("prompt_tokens", "4 to 7"): (0, 10),
        ("prompt_tokens", "32 to 63"): (parted, 10),
        ("batch_size_b", "8"): (parted, parted),
        ("batch_size_b", "1"): (0, 20 - parted),
        ("cause", "batch-shape"): (parted, 20),
        ("first_layer", "0"): (parted, 20),
    }
    for key, (count, of) in plain.items():
        assert (rates[key]["diverging"], rates[key]["sequences"]) == (count, of), key
        expected = wilson(count, of)
        assert rates[key]["low"] == pytest.approx(expected.low, abs=1e-12)
        assert rates[key]["high"] == pytest.approx(expected.high, abs=1e-12)
    assert sum(row["diverging"] for key, row in rates.items() if key[0] == "step") == parted
    assert verdict.patterns is not None
    assert verdict.patterns.diverging == wilson(parted, 20)
    assert verdict.patterns.causes == {"batch-shape": parted}


@pytest.mark.parametrize("sql", DOCUMENTED)
def test_documented_queries_run(compared: tuple[Path, Verdict, list[int | None]], sql: str) -> None:
    assert ask(compared[0] / "out", sql) or "reference_steps" in sql  # no reference was given


def test_populations_are_told_apart_by_newcombe(compared: tuple[Path, Verdict, list[int | None]]) -> None:
    folder, _, steps = compared
    row = ask(folder / "out", "SELECT * FROM populations WHERE dimension = 'prompt_tokens'")[0]
    assert (row["value_1"], row["value_2"]) == ("4 to 7", "32 to 63")
    one, other = wilson(0, 10), wilson(sum(step is not None for step in steps), 10)
    gap = other.share - one.share
    low = gap - math.hypot(other.share - other.low, one.high - one.share)
    high = gap + math.hypot(other.high - other.share, one.share - one.low)
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((gap, low, high))
    assert row["low"] > 0  # long prompts do part more often
    same = ask(folder / "out", "SELECT * FROM populations WHERE dimension = 'batch_size_a'")
    assert same == []  # the control: all of A ran alone


def plain_survival(times: list[tuple[int, bool]]) -> dict[int, float]:
    """Kaplan-Meier as a loop over steps and sequences."""
    share, found = 1.0, {}
    for step in range(1 + max((time for time, _ in times), default=0)):
        at_risk = sum(time > step or (event and time == step) for time, event in times)
        parted = sum(event and time == step for time, event in times)
        if parted:
            share *= 1 - parted / at_risk
            found[step] = share
    return found


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=30))
def test_survival_is_that_of_a_plain_loop(times: list[tuple[int, bool]]) -> None:
    curve = survival(times)
    assert {point.step: point.share for point in curve} == pytest.approx(plain_survival(times))
    assert all(point.low <= point.share + 1e-12 and point.share <= point.high + 1e-12 for point in curve)


def test_the_view_and_the_verdict_tell_the_same_survival(
    compared: tuple[Path, Verdict, list[int | None]],
) -> None:
    folder, verdict, steps = compared
    rows = ask(folder / "out", "SELECT * FROM survival WHERE diverged > 0 ORDER BY step")
    expected = plain_survival([(STEPS, False) if step is None else (step, True) for step in steps])
    assert {row["step"]: row["share"] for row in rows} == pytest.approx(expected)
    assert verdict.patterns is not None
    for row, point in zip(rows, verdict.patterns.survival, strict=True):
        assert (row["at_risk"], row["step"]) == (point.at_risk, point.step)
        assert (row["low"], row["high"]) == pytest.approx((point.low, point.high))


def test_a_sequence_that_ends_early_is_censored_and_not_lost() -> None:
    curve = survival([(2, False), (2, False), (5, True), (8, False)])
    assert [(point.step, point.at_risk, point.share) for point in curve] == [(5, 2, 0.5)]


def steady(size: float) -> list[tuple[Sequence, Sequence]]:
    """One pair whose drift wanders a little and grows, but for one position when `size` is more than 1."""
    a, b = (sequence(1, len(SITES), 8, 40) for _ in "ab")
    for position in range(4, 40):
        wander = 1e-3 * (1 + position / 40) * (1 + 0.3 * math.sin(position))
        for site in range(GATE, len(SITES)):
            disturb(b, position, site, wander * (size if position == 29 else 1))
    return [(a, b)]


def test_a_jump_of_drift_is_placed(tmp_path: Path) -> None:
    found = diverge(*write(tmp_path, steady(60)), tmp_path / "out").patterns
    assert found is not None
    assert found.jump is not None
    assert (found.jump.position, found.jump.step, found.jump.site) == (29, 21, "layers.0.mlp.gate_proj")
    assert found.watched_site == "layers.1"
    assert found.jump.drift > 20 * found.jump.before


def test_steady_growth_is_no_jump(tmp_path: Path) -> None:
    found = diverge(*write(tmp_path, steady(1)), tmp_path / "out").patterns
    assert found is not None
    assert found.jump is None
    assert found.growth is not None
    assert 1.2 < found.growth < 2
    assert jump_of(np.exp(np.linspace(0, 9, 200)).astype(np.float32)) is None


def test_growth_by_layer_is_a_view(compared: tuple[Path, Verdict, list[int | None]]) -> None:
    folder, _, steps = compared
    rows = ask(folder / "out", "SELECT layer, sum(rows) AS n FROM growth GROUP BY layer")
    assert [(row["layer"], row["n"]) for row in rows] == [(0, sum(step is not None for step in steps))]


def test_what_is_not_diagnosed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns_causes, "MOST_DIAGNOSED", 3)
    made = [(a, b) for a, b, _ in scene()]
    verdict = diverge(*write(tmp_path, made), tmp_path / "out")
    assert verdict.patterns is not None
    assert sum(verdict.patterns.causes.values()) == 3
    assert verdict.patterns.not_diagnosed == 5
    rows = ask(tmp_path / "out", "SELECT sequences FROM divergence_rates WHERE value = 'not diagnosed'")
    assert len(rows) == 1


def test_sequences_part_for_reasons_of_their_own(tmp_path: Path) -> None:
    made = []
    for index in range(8):
        a, b = (sequence(index, len(SITES), 6, STEPS, request_id=f"r{index}") for _ in "ab")
        if index % 2:
            disturb(b, 8, GATE)
            disturb_logits(b, 9, 0.05)
            b.shapes["batch_size"][:] = 8
        flip(b, 4)  # the others: equal numbers, another token
        made.append((a, b))
    verdict = diverge(*write(tmp_path, made), tmp_path / "out")
    rows = ask(
        tmp_path / "out",
        "SELECT pair % 2 AS odd, any_value(cause) AS cause FROM sequences GROUP BY ALL ORDER BY odd",
    )
    assert rows[0]["cause"] != rows[1]["cause"] == "batch-shape"
    assert verdict.patterns is not None
    assert sorted(verdict.patterns.causes.values()) == [4, 4]


def test_replicas_of_the_envelopes_are_populations(tmp_path: Path) -> None:
    made = []
    requests = []
    for index in range(8):
        a, b = (sequence(index, len(SITES), 6, STEPS, request_id=f"r{index}") for _ in "ab")
        if index < 3:
            flip(b, 4)
        made.append((a, b))
        context = {"replica_id": "east" if index < 4 else "west"}
        requests.append(
            Request(request_id=f"r{index}", envelope_sha256="0" * 64, envelope={"context": context})
        )
    diverge(*write(tmp_path, made, requests=requests), tmp_path / "out")
    row = ask(tmp_path / "out", "SELECT * FROM populations WHERE dimension = 'replica_b'")[0]
    assert (row["value_1"], row["diverging_1"], row["value_2"], row["diverging_2"]) == ("east", 3, "west", 0)


def test_the_terminal_tells_it_of_eight_sequences_and_not_of_seven(tmp_path: Path) -> None:
    for count in (7, 8):
        folder = tmp_path / str(count)
        folder.mkdir()
        paths = write(folder, [(a, b) for a, b, _ in list(scene())[:count]])
        verdict = diverge(*paths, folder / "out")
        console = Console(record=True, width=200, file=(folder / "said").open("w"))
        print_details(console, verdict, folder / "out", (read_header(paths[0]), read_header(paths[1])))
        console.file.close()
        said = (folder / "said").read_text()
        assert ("Kaplan-Meier" in said) is (count == 8)
        assert ("first-ranked causes: Different batch shape" in said) is (count == 8)


def test_a_result_of_an_older_rip_has_empty_views(
    compared: tuple[Path, Verdict, list[int | None]], tmp_path: Path
) -> None:
    folder, _, _ = compared
    old = tmp_path / "old"
    old.mkdir()
    for file in (folder / "out").iterdir():
        if file.stem not in LATER_TABLES:
            (old / file.name).write_bytes(file.read_bytes())
    for view in ("sequences", "divergence_rates", "survival", "populations", "reference_sites"):
        assert ask(old, f"SELECT * FROM {view}") == []
    assert ask(old, "SELECT count(*) AS n FROM tokens")[0]["n"] > 0
