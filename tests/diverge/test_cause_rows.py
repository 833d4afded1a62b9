"""What the rows around a first difference say of it: which module, what of it, and where else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.traces import (
    Sequence,
    disturb,
    disturb_logits,
    header,
    sequence,
    write_trace,
)
from fakes.verdicts import SITES, cause, flip, pair, sampled, sentences, verdict_of
from rip.diverge.compare import diverge
from rip.schemas.findings.rows import OtherSequences
from rip.schemas.trace import Site
from rip.schemas.verdict import Verdict


def test_a_difference_beyond_rounding_is_no_near_tie(tmp_path: Path) -> None:
    a, b = pair()
    disturb(b, 7, 4, 0.5)
    for one in (a, b):
        one.topk_logits[8, :2] = [5.02, 5.0]
    flip(b, 3, 0.03)
    verdict = verdict_of(tmp_path, a, b, a_requests=sampled(temperature=0), b_requests=sampled(temperature=0))
    assert "near-tie" not in [item.id for item in verdict.causes]


def test_decoding_alone_is_told_from_a_module_that_differs_everywhere(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, *pair((6, 3))).causes[0].id == "decode-path"
    folder = tmp_path / "later"
    folder.mkdir()
    assert verdict_of(folder, *pair((7, 3))).causes[0].id != "decode-path"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda row: row * np.float32(1 + 2**-7),
            ", consistent with rounding: different kernel",
        ),
        (lambda row: row * np.float32(-1), ": B's row is the negative"),
        (lambda row: row * np.float32(0.5), ": B's row is 0.5 times A's row"),
        (lambda row: row + np.arange(16, dtype=np.float32), ": a constant is added or missing, as a bias is"),
        (lambda row: row * np.float32([1.5] + 15 * [1]), ": one output channel is off"),
        (lambda row: np.roll(row, 5), "elements in a different order"),
        (lambda row: row[::-1] * np.float32(3.5), " itself: its weights"),
    ],
)
def test_a_label_says_which_module_and_what_of_it(tmp_path: Path, change: Any, told: str) -> None:
    a, b = pair(*((position, 3) for position in range(13)))
    for position in range(13):
        b.sketch[position, 3] = change(a.sketch[position, 3])
        for one in (a, b):
            one.l2[position, 3] = np.linalg.norm(one.sketch[position, 3])
    found = verdict_of(tmp_path, a, b).causes[0]
    assert found.label.startswith("The linear layer layers.0.mlp.gate_proj")
    assert told in found.label
    assert found.interpretation == "repeats at the same place"
    assert "if every repeat differs from A at the same place" in (found.interpretation_text or "")


def test_non_finite_values_are_named_first(tmp_path: Path) -> None:
    a, b = pair((5, 3))
    b.sketch[5, 3], b.l2[5, 3], b.absmax[5, 3] = np.nan, np.nan, np.nan
    verdict = verdict_of(tmp_path, a, b)
    assert verdict.causes[0].id == "non-finite"
    assert "in B: its norm is nan" in sentences(verdict.causes[0].evidence)[0]


def test_the_experts_that_each_side_chose_are_named(tmp_path: Path) -> None:
    choice = Site(name="layers.0.mlp.gate", part="2", module="Router", dtype="int64", width=2)
    sites = [*SITES[:4], choice, *SITES[4:]]
    a, b = (sequence(1, len(sites), prompt=6, decode=8) for _ in "ab")
    for side, chosen in ((a, (3, -1)), (b, (3, -2))):  # a lane holds an index with the lane's sign
        side.sketch[2, 4] = 0
        side.sketch[2, 4, :2] = chosen
    b.hashes[2, 4, 0] ^= np.uint64(1)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, one in zip(paths, (a, b), strict=True):
        write_trace(path, [one], header(sites))
    found = cause(diverge(*paths, tmp_path / "out"), "moe-routing")
    assert found.label == "Different experts were chosen with equal scores: experts 3, 1 in A and 3, 2 in B"
    disturb(b, 1, 0)  # from elsewhere: then the choice is what follows, with the same experts
    write_trace(paths[1], [b], header(sites))
    found = cause(diverge(*paths, tmp_path / "out", force=True), "moe-routing-behind")
    assert "(experts 3, 1 in A and 3, 2 in B)" in sentences(found.evidence)[0]


def test_an_origin_without_any_recorded_difference_points_to_the_module(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *pair((0, 3)))
    assert [item.id for item in verdict.causes] == ["module"]
    assert "layers.0.mlp.gate_proj" in sentences(verdict.causes[0].evidence)[0]


def two_traces(
    tmp_path: Path, sides: tuple[list[Sequence], list[Sequence]], sites: list[Site] = SITES
) -> Verdict:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, sequences in zip(paths, sides, strict=True):
        write_trace(path, sequences, header(sites, [f"r{index}" for index in range(len(sequences))]))
    return diverge(*paths, tmp_path / "out", force=True)


def test_what_the_other_sequences_show_is_told(tmp_path: Path) -> None:
    a, b = ([sequence(i, len(SITES), prompt=6, decode=8, request_id=f"r{i}") for i in range(5)] for _ in "ab")
    for index, position, site in ((0, 3, 4), (1, 3, 4), (2, 5, 4), (3, 3, 6)):
        disturb(b[index], position, site, 0.5)
    evidence = two_traces(tmp_path, (a, b)).causes[0].evidence
    [others] = [one for one in evidence if isinstance(one, OtherSequences)]
    assert [name.request_id for name in others.same_position] == ["r1"]
    assert [(name.request_id, name.position) for name in others.same_site] == [("r2", 5)]
    assert [(name.request_id, name.position) for name in others.other_site] == [("r3", 3)]
    assert [name.request_id for name in others.equal] == ["r4"]
    [text] = sentences([others])
    assert "it begins at this site in r1 at the same position and r2 at position 5 too" in text
    assert "it begins at a different site in r3 at position 3" in text
    assert "nothing differs in r4" in text


def replace_row(target: Sequence, position: int, site: int, size: float) -> None:
    """A row that is off in all of its elements, and in its norm."""
    random = np.random.default_rng(position)
    target.hashes[position, site, 0] ^= np.uint64(1)
    target.sketch[position, site] += size * random.standard_normal(16, dtype=np.float32)
    target.l2[position, site] *= np.float32(1 + size)


def test_the_one_expert_whose_rows_differ_is_named(tmp_path: Path) -> None:
    choice = Site(name="layers.0.mlp.gate", part="2", module="Router", dtype="int64", width=2)
    experts = Site(name="layers.0.mlp.experts", module="Experts", dtype="bfloat16", width=64)
    sites = [SITES[0], choice, experts, *SITES[1:]]
    chosen = [(0, 1), (2, 3), (1, 2), (3, 0), (2, 1), (1, 3)]
    a, b = (sequence(1, len(sites), prompt=6, decode=2) for _ in "ab")
    for position, ids in enumerate(chosen):
        for side in (a, b):
            side.sketch[position, 1] = 0
            side.sketch[position, 1, :2] = ids
        if 2 in ids:
            replace_row(b, position, 2, 0.2)
    found = two_traces(tmp_path, ([a], [b]), sites).causes[0]
    assert found.label == "The experts layers.0.mlp.experts: only rows of expert 2 differ"
    replace_row(b, 0, 2, 0.2)  # the control: a row of two other experts differs as well
    assert "only rows of" not in two_traces(tmp_path, ([a], [b]), sites).causes[0].label


def test_rows_of_the_output_head_are_named_by_their_tokens(tmp_path: Path) -> None:
    a, b = pair()
    disturb_logits(b, 5)
    token = int(a.topk_ids[5, 0])
    # One position shows no row of the head: rounding moves a few candidates, others at other positions.
    assert "the row of token" not in verdict_of(tmp_path, a, b).causes[0].label
    disturb_logits(b, 9)
    assert "the row of token" not in verdict_of(tmp_path, a, b).causes[0].label
    for one in (a, b):
        one.topk_ids[9, 0] = token
    found = verdict_of(tmp_path, a, b).causes[0]
    assert found.label == f"The output head lm_head: the row of token {token}"
    assert any(f"only 1 logit differs: token {token} " in line for line in sentences(found.evidence))
    b.topk_logits[5] += np.float32(0.1)  # the control: all of them
    found = verdict_of(tmp_path, a, b).causes[0]
    assert "the row of token" not in found.label
    assert any("the logits of 5 of 5 candidates" in line for line in sentences(found.evidence))


def test_where_a_drift_is_beyond_rounding_and_where_not_is_told(tmp_path: Path) -> None:
    a, b = pair()
    for position in range(4, 13):
        replace_row(b, position, 3, 0.5 if position in (4, 5, 9) else 0.001)
    found = verdict_of(tmp_path, a, b).causes[0]
    assert found.label == "Wrong rows of the linear layer layers.0.mlp.gate_proj from position 4 on"
    told = sentences(found.evidence)
    beyond = "of 9 rows that differ with equal inputs, 3 are beyond rounding (positions 4–5, 9), 6 within it"
    assert beyond in told


def test_one_channel_is_named_only_where_all_rows_agree(tmp_path: Path) -> None:
    def label(folder: str, lanes: list[int]) -> str:
        (tmp_path / folder).mkdir()
        a, b = pair()
        for position, lane in zip(range(4, 12), lanes, strict=False):
            b.hashes[position, 3, 0] ^= np.uint64(1)
            b.sketch[position, 3, lane] += np.float32(1e-3)
        return verdict_of(tmp_path / folder, a, b).causes[0].label

    assert "one output channel is off" in label("same", [5, 5, 5])
    # Single elements that flip, each elsewhere: a norm whose scale is off a little leaves that.
    assert "one output channel" not in label("others", [1, 2, 12])
    assert "one output channel" not in label("single", [1])


def test_a_row_that_repeats_an_earlier_one_is_stale(tmp_path: Path) -> None:
    a, b = pair()
    for values in ("hashes", "sketch", "l2"):
        getattr(b, values)[9, 3] = getattr(b, values)[8, 3]
    verdict = verdict_of(tmp_path, a, b)
    assert verdict.causes[0].id == "stale-output"
    assert verdict.causes[0].label == (
        "Stale output: layers.0.mlp.gate_proj at position 9 repeats B's own row of position 8"
    )
    # Of equal inputs an equal row is no wonder: in A the rows are the same too.
    for one in (a, b):
        one.hashes[8, 3], one.sketch[8, 3], one.l2[8, 3] = one.hashes[9, 3], one.sketch[9, 3], one.l2[9, 3]
    a.hashes[8, 3] = a.hashes[9, 3]
    assert "stale-output" not in [one.id for one in verdict_of(tmp_path, a, b).causes]


def test_the_same_experts_in_another_order_are_no_other_experts(tmp_path: Path) -> None:
    choice = Site(name="layers.0.mlp.gate", part="2", module="Router", dtype="int64", width=2)
    sites = [*SITES[:4], choice, *SITES[4:]]
    a, b = (sequence(1, len(sites), prompt=6, decode=8) for _ in "ab")
    for side, chosen in ((a, (3, -1)), (b, (1, -3))):
        side.sketch[2, 4] = 0
        side.sketch[2, 4, :2] = chosen
    b.hashes[2, 4, 0] ^= np.uint64(1)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, one in zip(paths, (a, b), strict=True):
        write_trace(path, [one], header(sites))
    found = cause(diverge(*paths, tmp_path / "out"), "moe-routing")
    assert found.label.startswith("The same experts in a different order")
    assert "which experts compute a token is not changed" in sentences(found.evidence)[0]


@pytest.mark.parametrize("with_experts", [True, False])
def test_a_gate_is_a_router_only_beside_experts(tmp_path: Path, with_experts: bool) -> None:
    gate = Site(name="layers.0.mlp.gate", module="Linear", dtype="bfloat16", width=64)
    expert = Site(name="layers.0.mlp.experts.0.up_proj", module="Linear", dtype="bfloat16", width=64)
    sites = [SITES[0], gate, *([expert] if with_experts else []), *SITES[1:]]
    a, b = ([sequence(1, len(sites), prompt=6, decode=8)] for _ in "ab")
    replace_row(b[0], 0, 1, 0.5)
    label = two_traces(tmp_path, (a, b), sites).causes[0].label
    assert label.startswith("The router" if with_experts else "The linear layer")
