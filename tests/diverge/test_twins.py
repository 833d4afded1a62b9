"""Sequences of one trace with the same tokens: what they say of noise and of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.traces import Sequence, disturb, header, sequence, write_trace
from fakes.verdicts import SITES, cause, sentences
from rip.diverge.compare import diverge
from rip.schemas.findings.rows import EqualSequences, RepeatsDiffer
from rip.schemas.lane import Setting
from rip.schemas.trace import Request
from rip.schemas.verdict import Verdict


def a_sequence(index: int, sample: int = 0, row: int = 0, size: int = 1, seed: int = 1) -> Sequence:
    """Equal tokens and rows for every index; it ran as row `row` of passes of `size` sequences."""
    made = sequence(seed, len(SITES), prompt=6, decode=4, request_id=f"r{index}")
    made.sample = sample
    made.shapes["batch_size"][:], made.shapes["batch_row"][:] = size, row
    return made


def compared(folder: Path, a: list[Sequence], b: list[Sequence], temperature: float = 0) -> Verdict:
    greedy = {"temperature": Setting(resolved=temperature, source="envelope")}
    names = dict.fromkeys(one.request_id for one in a)
    requests = [Request(request_id=name, envelope_sha256="0" * 64, sampling=greedy) for name in names]
    folder.mkdir(exist_ok=True)
    for name, side in (("a", a), ("b", b)):
        write_trace(folder / f"{name}.parquet", side, header(SITES, requests=requests))
    return diverge(folder / "a.parquet", folder / "b.parquet", folder / "out", force=True)


def ranked(verdict: Verdict) -> list[str]:
    return [one.id for one in verdict.causes]


def test_rows_of_passes_of_unequal_shape_testify_to_nothing(tmp_path: Path) -> None:
    alone = [a_sequence(index) for index in range(9)]
    # Eight shared a pass, whose kernel rounds otherwise; the ninth ran alone, as all did in A.
    together = [*(a_sequence(index, row=index, size=8) for index in range(8)), a_sequence(8)]
    for one in together[:8]:
        disturb(one, 2, 3)
    verdict = compared(tmp_path, alone, together)
    assert ranked(verdict)[0] == "batch-shape"
    assert not {"not-repeatable", "batch-rows"} & {*ranked(verdict)}
    # The control: in A's own passes a row of one request differs from that of all others.
    disturb(alone[0], 2, 3)
    disturb(together[0], 2, 3)
    assert ranked(compared(tmp_path, alone, together))[0] == "not-repeatable"


@pytest.mark.parametrize("shape", ["num_tokens", "padded_tokens", "cached_tokens"])
def test_any_number_of_a_pass_makes_it_another_one(tmp_path: Path, shape: str) -> None:
    a, b = ([a_sequence(0), a_sequence(1)] for _ in "ab")
    disturb(b[1], 3, 2)
    assert ranked(compared(tmp_path / "equal", a, b))[0] == "not-repeatable"
    for side in (a, b):
        side[1].shapes[shape][1] += 5
    assert "not-repeatable" not in ranked(compared(tmp_path / "unequal", a, b))


def test_rows_of_one_pass_testify_though_the_other_side_ran_alone(tmp_path: Path) -> None:
    alone = [a_sequence(index) for index in range(3)]
    together = [a_sequence(index, row=index, size=3) for index in range(3)]
    disturb(together[1], 2, 3, 0.5)
    verdict = compared(tmp_path, alone, together)
    assert ranked(verdict)[0] == "batch-rows"
    [found] = [one for one in verdict.causes[0].evidence if isinstance(one, EqualSequences) and one.differing]
    assert (found.side, found.in_one_batch) == ("B", True)
    assert "batch-shape" in ranked(verdict)
    # Within rounding the shape of the batch says more than its rows.
    small = [a_sequence(index, row=index, size=3) for index in range(3)]
    disturb(small[1], 2, 3)
    assert ranked(compared(tmp_path, alone, small))[:2] == ["batch-shape", "batch-rows"]


def test_one_trace_shows_that_identical_prompts_differ_by_their_row(tmp_path: Path) -> None:
    sides = [[a_sequence(index, row=index, size=4) for index in range(4)] for _ in "ab"]
    assert not [one for one in compared(tmp_path, *sides).not_seen if isinstance(one, EqualSequences)]
    for side in sides:
        disturb(side[2], 1, 4)
    verdict = compared(tmp_path, *sides)
    assert verdict.level == "bitwise"
    found = [one for one in verdict.not_seen if isinstance(one, EqualSequences)]
    assert [(one.side, one.position, one.in_one_batch) for one in found] == [("A", 1, True), ("B", 1, True)]
    assert "r2" in sentences(found)[0]
    assert "the same tokens of the same batch" in sentences(found)[0]


def test_rows_of_two_batches_are_no_rows_of_one(tmp_path: Path) -> None:
    # Twice four requests: row 1 of the second batch has other neighbours than row 0 of the first.
    sides = [
        [a_sequence(index, row=index % 4, size=4, seed=2 + index // 4) for index in range(8)] for _ in "ab"
    ]
    for side in sides:
        for one in side[4:]:
            one.tokens[:6] = side[0].tokens[:6]
    verdict = compared(tmp_path, *sides)
    assert not [one for one in verdict.not_seen if isinstance(one, EqualSequences)]


def as_tokens(one: Sequence, other_from: int | None = None, tells_shapes: bool = False) -> Sequence:
    one.tells_logits, one.tells_shapes = False, tells_shapes
    one.hashes, one.present = one.hashes[:, :0], one.present[:, :0]
    one.l2, one.absmax, one.sketch = one.l2[:, :0], one.absmax[:, :0], one.sketch[:, :0]
    if other_from is not None:
        one.tokens[other_from:] += 1
    return one


@pytest.mark.parametrize("tells_shapes", [False, True])
def test_repeats_that_differ_inside_a_lane_come_first_without_rows(
    tmp_path: Path, tells_shapes: bool
) -> None:
    def lane(parts: list[int | None], rows: list[int] = [0, 0, 0], size: int = 1) -> list[Sequence]:  # noqa: B006
        return [
            as_tokens(a_sequence(0, sample, row, size), at, tells_shapes)
            for sample, (at, row) in enumerate(zip(parts, rows, strict=True))
        ]

    def verdict(a: list[Sequence], b: list[Sequence], temperature: float = 0) -> Verdict:
        greedy = {"temperature": Setting(resolved=temperature, source="envelope")}
        requests = [Request(request_id="r0", envelope_sha256="0" * 64, sampling=greedy)]
        for name, side in (("a", a), ("b", b)):
            write_trace(tmp_path / f"{name}.parquet", side, header([], requests=requests))
        return diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out", force=True)

    noisy = verdict(lane([None, 7, 8]), lane([8, None, 7]))
    assert ranked(noisy)[0] == "not-repeatable"
    found = [one for one in noisy.causes[0].evidence if isinstance(one, RepeatsDiffer)]
    assert [(one.side, one.samples, one.unique) for one in found] == [("A", 3, 3), ("B", 3, 3)]
    assert found[0].passes == ("equal" if tells_shapes else "not known")
    assert bool(noisy.causes[0].missing) != tells_shapes
    # Each lane repeats itself: the difference is one between the lanes.
    assert "not-repeatable" not in ranked(verdict(lane([None] * 3), lane([7] * 3)))
    # Drawn tokens without a seed differ by design.
    assert "not-repeatable" not in ranked(verdict(lane([None, 7, 8]), lane([8, None, 7]), 0.7))
    if tells_shapes:  # the repeats shared a pass
        found_rows = verdict(lane([None, 7, 8], [0, 1, 2], 3), lane([8, None, 7], [0, 1, 2], 3))
        assert ranked(found_rows)[0] == "batch-rows"


def test_a_batch_that_ran_again_as_a_whole_shows_noise(tmp_path: Path) -> None:
    def lane() -> list[Sequence]:
        return [
            a_sequence(index, sample, row=index, size=2, seed=index) for sample in (0, 1) for index in (0, 1)
        ]

    a, b = lane(), lane()
    disturb(b[2], 3, 4)  # request 0, sample 1
    found = cause(compared(tmp_path, a, b), "not-repeatable")
    assert found.confidence == "high"
    b[3].shapes["num_tokens"][:6] += np.int32(1)  # its neighbour was another one
    a[3].shapes["num_tokens"][:6] += np.int32(1)
    assert "not-repeatable" not in ranked(compared(tmp_path, a, b))
