"""A sample of the fault corpus: of every kind the first and the last case. `make test-faults` runs all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from fakes.exact_kernels import exact_kernels
from faults import plants
from faults.case import Case, Named, Side
from faults.corpus import NO_FAULT, by_kind, is_right
from faults.kinds import an_op
from faults.kinds_cache import BLOCK
from faults.kinds_modules import negate
from faults.kinds_weights import scale_first
from faults.lab import Lab
from faults.zoomed import Zoomer, op_named, proven
from rip.diverge.present.report.build import write_report
from rip.replay.engines.hf.engine import HfEngine

KINDS = by_kind()
SAMPLED_PAIRS = 12
OF_SHAPES = (
    "different attention kernel in decode",
    "prefix cache warm",
    "prefill chunked differently",
    "attention implementation",
    "scoring against decoding",
    "batch size",
    "neighbours",
    "left versus right padding",
)
"""Kinds that change in which passes, or by which kernels, rows are computed."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def zoomer(lab: Lab) -> Zoomer:
    return Zoomer(lab)


def test_the_corpus_is_as_large_as_promised() -> None:
    faults = [case for kind, cases in KINDS.items() if kind != NO_FAULT for case in cases]
    assert len(KINDS) - 1 >= 30
    assert len(faults) >= 300
    assert len(KINDS[NO_FAULT]) >= 100
    assert len({case.model for case in faults}) >= 5
    assert len({case.id for case in faults}) == len(faults)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != NO_FAULT])
def test_a_planted_fault_is_found_where_it_is_and_named_for_what_it_is(
    kind: str, lab: Lab, zoomer: Zoomer
) -> None:
    for case in {KINDS[kind][0].id: KINDS[kind][0], KINDS[kind][-1].id: KINDS[kind][-1]}.values():
        seen = lab.judge(case)
        assert seen.changed, f"{case.id}: nothing was changed, so nothing was tested"
        assert seen.site_exact in (True, None), (case.id, seen.named, seen.first)
        assert seen.label_within(1), (case.id, seen.ranked)
        if case.named is not None:
            seen = zoomer.look(seen)
            assert op_named(seen), (case.id, case.named, seen.zoom)
            assert proven(seen), (case.id, seen.zoom)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != NO_FAULT])
def test_the_report_of_every_kind_of_fault_can_be_made_and_names_the_cause(
    kind: str, lab: Lab, tmp_path: Path
) -> None:
    seen = lab.judge(KINDS[kind][0])
    for name in ("report.md", "report.html"):
        write_report(seen.result, tmp_path / name, seen.a, seen.b)
        text = unescape((tmp_path / name).read_text())
        assert seen.verdict.causes[0].label in text.replace("\\", "")


def test_what_shapes_and_kernels_do_to_rounding_is_planted_and_needs_no_machine_that_does_it(
    tmp_path: Path,
) -> None:
    chunked = Side(settings={"prefill_chunk": BLOCK})
    with exact_kernels():
        lab = Lab(tmp_path)
        assert lab.judge(Case("control", "", "llama", Side(), chunked, ())).verdict.level == "bitwise"
        for kind in OF_SHAPES:
            seen = lab.judge(KINDS[kind][0])
            assert seen.changed, kind
            assert seen.label_within(1), (kind, seen.ranked)


@pytest.mark.parametrize(
    "case", KINDS[NO_FAULT][:: len(KINDS[NO_FAULT]) // SAMPLED_PAIRS], ids=lambda case: case.id
)
def test_where_nothing_was_changed_nothing_is_claimed(case: Case, lab: Lab) -> None:
    seen = lab.judge(case)
    assert is_right(seen), (seen.ranked, seen.named)


def test_what_zoom_must_name_is_not_met_by_anything_else(lab: Lab, zoomer: Zoomer) -> None:
    site, other = "layers.0.mlp", "layers.2.mlp.up_proj"
    alone, second = plants.output(site, negate), plants.weight(other, scale_first)

    def both(engine: HfEngine, stack: ExitStack) -> None:
        alone(engine, stack)
        second(engine, stack)

    right = Case("x", "", "llama", Side(), Side(plant=alone), (), site, named=an_op("neg.default"))
    seen = zoomer.look(lab.judge(right))
    assert op_named(seen)
    assert proven(seen)
    for wrong in (an_op("mul.Tensor"), an_op("neg.default", module="layers.1.mlp"), Named("weight", ("x",))):
        assert not op_named(replace(seen, case=replace(right, named=wrong)))
    two = zoomer.look(lab.judge(replace(right, b=Side(plant=both))))
    assert op_named(two)
    assert not proven(two)


def test_a_fault_that_does_not_come_again_is_not_blamed_on_an_op(lab: Lab, zoomer: Zoomer) -> None:
    found = zoomer.look(lab.judge(KINDS["a run that does not repeat itself"][0])).zoom
    assert found is not None
    assert found.finding is None
    assert found.transplant.state == "not run"
    assert (found.a.state, found.b.state) == ("repeated", "not repeated")
