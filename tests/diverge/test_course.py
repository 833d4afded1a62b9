"""How a difference goes on: several origins, each cause at its own place, what is absorbed and what grows."""

from __future__ import annotations

from pathlib import Path

from fakes.traces import disturb
from fakes.verdicts import SITES, cause, change, pair, sentences, verdict_of
from rip.diverge.present.findings.places import course
from rip.schemas.change import Change
from rip.schemas.findings.rows import DriftGrows, OriginsAbsorbed
from rip.schemas.fingerprint import fact, unavailable

LABELS = [site.label() for site in SITES]
UP, DOWN = LABELS.index("layers.0.self_attn.q_proj"), LABELS.index("layers.1.mlp.gate_proj")
WEIGHTS = change(
    "model", "tensors", {f"model.{LABELS[DOWN]}.weight": "a"}, {f"model.{LABELS[DOWN]}.weight": "b"}
)
VARIABLE = Change(
    section="determinism",
    field="ATEN_CPU_CAPABILITY",
    before=unavailable("not set", "environ"),
    after=fact("default", "environ"),
)


def test_two_causes_have_each_its_own_place(tmp_path: Path) -> None:
    a, b = pair()
    for site in range(UP, len(SITES)):
        disturb(b, 2, site, 1e-4 if site < DOWN else 0.5)
    verdict = verdict_of(tmp_path, a, b, [VARIABLE, WEIGHTS])
    weights, variable = (cause(verdict, name) for name in ("weights", "threads"))
    assert verdict.causes[0] == weights  # beyond rounding comes before what is rounding-sized
    assert weights.place is not None
    assert variable.place is not None
    assert (weights.place.role, weights.place.site, weights.place.within_rounding) == (
        "grows",
        LABELS[DOWN],
        False,
    )
    assert weights.place.factor is not None
    assert 1000 < weights.place.factor < 10000
    assert (variable.place.role, variable.place.site) == ("begins", LABELS[UP])
    assert variable.place.within_rounding
    assert "drift-grows" not in [one.id for one in verdict.causes]
    said = course(verdict)
    assert said.startswith(
        f"begins at {LABELS[UP]} (ATEN_CPU_CAPABILITY: not set → default, rounding-sized); grows ×"
    )
    assert said.endswith(f"at {LABELS[DOWN]} (Different weights, beyond rounding)")


def test_a_jump_beyond_rounding_ranks_above_a_rounding_sized_beginning(tmp_path: Path) -> None:
    a, b = pair()
    b.shapes["batch_size"][:] = 3
    for site in range(UP, len(SITES)):
        disturb(b, 2, site, 1e-4 if site < DOWN else 0.5)
    verdict = verdict_of(tmp_path, a, b)
    assert [one.id for one in verdict.causes] == ["drift-grows", "batch-shape"]
    grows, batch = verdict.causes
    [found] = [one for one in grows.evidence if isinstance(one, DriftGrows)]
    assert (found.site, found.position) == (LABELS[DOWN], 2)
    assert grows.place is not None
    assert grows.place.site == LABELS[DOWN]
    # A run alone that equals A does not prove that the shape alone did it.
    assert batch.confidence == "medium"
    assert batch.interpretation == grows.interpretation == "module computes it otherwise"
    # The control: a drift that grows as rounding does is no jump.
    folder = tmp_path / "rounding"
    folder.mkdir()
    a, b = pair()
    b.shapes["batch_size"][:] = 3
    for index, site in enumerate(range(UP, len(SITES))):
        disturb(b, 2, site, 1e-4 * 2**index)
    assert [one.id for one in verdict_of(folder, a, b).causes] == ["batch-shape"]


def test_a_jump_at_a_later_position_is_found(tmp_path: Path) -> None:
    a, b = pair()
    b.shapes["batch_size"][:] = 3
    for position in (2, 3):
        for site in range(UP, len(SITES)):
            disturb(b, position, site, 1e-4)
    disturb(b, 6, DOWN, 0.9)  # the first decode step
    found = cause(verdict_of(tmp_path, a, b), "drift-grows")
    assert found.place is not None
    assert (found.place.site, found.place.position) == (LABELS[DOWN], 6)


def test_origins_that_are_absorbed_are_told_from_the_one_that_survives(tmp_path: Path) -> None:
    a, b = pair()
    changes = [change("frameworks", "torch", "2.12", "2.13")]
    gate = LABELS.index("layers.0.mlp.gate_proj")
    for position in (1, 2, 3):
        disturb(b, position, gate, 1e-4)  # layers.0 and everything behind it are equal there
    for site in range(DOWN, len(SITES)):
        disturb(b, 4, site, 1e-4)
    verdict = verdict_of(tmp_path, a, b, changes)
    [found] = [one for one in verdict.causes[0].evidence if isinstance(one, OriginsAbsorbed)]
    assert (found.count, found.site, found.position) == (3, LABELS[DOWN], 4)
    assert sentences([found])[0].startswith("3 origins before it were absorbed")
    assert "the first that survives: layers.1.mlp.gate_proj at position 4" in course(verdict)
    # The control: a difference that leaves its layer is not absorbed.
    folder = tmp_path / "goes on"
    folder.mkdir()
    disturb(b, 1, LABELS.index("layers.0"), 1e-4)
    again = verdict_of(folder, a, b, changes)
    assert not [one for one in again.causes[0].evidence if isinstance(one, OriginsAbsorbed)]
