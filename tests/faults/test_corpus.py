"""A sample of the fault corpus: of every kind the first and the last case. `make test-faults` runs all."""

from __future__ import annotations

import pytest
from faults.corpus import NO_FAULT, by_kind, is_right
from faults.lab import Case, Lab

KINDS = by_kind()
SAMPLED_PAIRS = 12


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("faults"))


def test_the_corpus_is_as_large_as_promised() -> None:
    faults = [case for kind, cases in KINDS.items() if kind != NO_FAULT for case in cases]
    assert len(KINDS) - 1 >= 30
    assert len(faults) >= 300
    assert len(KINDS[NO_FAULT]) >= 100
    assert len({case.model for case in faults}) >= 5
    assert len({case.id for case in faults}) == len(faults)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != NO_FAULT])
def test_a_planted_fault_is_found_where_it_is_and_named_for_what_it_is(kind: str, lab: Lab) -> None:
    for case in {KINDS[kind][0].id: KINDS[kind][0], KINDS[kind][-1].id: KINDS[kind][-1]}.values():
        seen = lab.judge(case)
        assert seen.changed, f"{case.id}: nothing was changed, so nothing was tested"
        assert seen.site_exact in (True, None), (case.id, seen.named, seen.first)
        assert seen.label_within(1), (case.id, seen.ranked)


@pytest.mark.parametrize(
    "case", KINDS[NO_FAULT][:: len(KINDS[NO_FAULT]) // SAMPLED_PAIRS], ids=lambda case: case.id
)
def test_where_nothing_was_changed_nothing_is_claimed(case: Case, lab: Lab) -> None:
    seen = lab.judge(case)
    assert is_right(seen), (seen.ranked, seen.named)
