"""Over many sequences: what damage goes with, with its counter-examples; nothing that chance explains."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip.diverge.compare import diverge
from rip.diverge.dependences import Case, find_dependence
from rip.diverge.present.sequence_sentences import dependence_line
from rip.schemas.sequences import Dependence, Property

LENGTHS = [16, 24, 19, 32, 33, 40, 48, 50, 53, 64, 66, 72, 80, 81, 85, 88, 96, 99, 101, 112]


def case(index: int, damaged: bool, first: int | None = None, row: int = 0, *beside: str) -> Case:
    return Case(f"r{index}", LENGTHS[index], damaged, first, row, frozenset(beside))


def found_in(cases: list[Case]) -> Dependence:
    found = find_dependence(cases, "rows differ")
    assert found is not None
    return found


def test_damage_of_prompts_that_fill_their_blocks_is_found_with_its_counter_examples() -> None:
    cases = [case(index, length % 16 == 0, 3) for index, length in enumerate(LENGTHS)]
    found = found_in(cases)
    assert found.property == Property(kind="prompt length modulo", modulus=16, value="0")
    assert (found.having.count, found.having.of) == (7, 7)
    assert found.others is not None
    assert (found.others.count, found.others.of) == (0, 13)
    assert dependence_line(found) == (
        "rows differ with prompts whose length leaves 0 when divided by 16: 7 of 7 sequences, "
        "elsewhere 0 of 13"
    )
    cases[3], cases[1] = case(3, False), case(1, True, 3)
    found = found_in(cases)
    assert (found.spared, found.exceptions) == (["r3"], ["r1"])
    assert dependence_line(found).endswith("; not damaged with it: r3; damaged without it: r1")


def test_a_batch_row_and_a_neighbour_are_found() -> None:
    rows = [case(index, index % 4 == 3, 3, index % 4) for index in range(20)]
    assert found_in(rows).property == Property(kind="batch row", value="3")
    mates = [case(index, index % 3 == 1, 3, 0, *(["big"] if index % 3 == 1 else [])) for index in range(20)]
    assert found_in(mates).property == Property(kind="neighbour", value="big")


def test_where_damage_begins_is_found() -> None:
    cases = [case(index, True, LENGTHS[index] - 1) for index in range(20)]
    found = found_in(cases)
    assert found.property.kind == "begins at the last prompt row"
    assert dependence_line(found).endswith("20 of 20 sequences; no exception")
    blocks = [case(index, True, 16 * (1 + index % 5)) for index in range(20)]
    assert found_in(blocks).property == Property(kind="begins at a position modulo", modulus=16, value="0")


@pytest.mark.parametrize("seed", range(5))
def test_damage_at_random_goes_with_nothing(seed: int) -> None:
    draw = random.Random(seed)
    cases = [
        case(index, draw.random() < 0.4, draw.randrange(LENGTHS[index]), index % 4) for index in range(20)
    ]
    assert find_dependence(cases, "rows differ") is None


def test_too_little_damage_goes_with_nothing() -> None:
    assert find_dependence([case(index, index in (3, 6), 3) for index in range(20)], "rows differ") is None


def test_two_traces_say_what_their_damage_goes_with(tmp_path: Path) -> None:
    sites = llama_sites(2)
    sides = []
    for damaged in (False, True):
        made = [
            sequence(index, len(sites), length, 4, request_id=f"r{index}")
            for index, length in enumerate(LENGTHS)
        ]
        for one, length in zip(made, LENGTHS, strict=True):
            if damaged and length % 16 == 0:
                disturb(one, 5, 3)
        path = tmp_path / f"{damaged}.parquet"
        write_trace(path, made, header(sites, [one.request_id for one in made]))
        sides.append(path)
    patterns = diverge(*sides, tmp_path / "d").patterns
    assert patterns is not None
    assert patterns.dependence is not None
    assert patterns.dependence.property == Property(kind="prompt length modulo", modulus=16, value="0")
    assert diverge(sides[0], sides[0], tmp_path / "same").patterns.dependence is None
