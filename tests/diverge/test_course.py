"""How a difference goes on: several origins, each cause at its own place, what is absorbed and what grows."""

from __future__ import annotations

from pathlib import Path

from fakes.traces import Sequence, disturb, header, sequence, write_trace
from fakes.verdicts import SITES, cause, change, pair, sentences, typed, verdict_of
from rip.diverge.compare import diverge
from rip.diverge.present.findings.places import course
from rip.schemas.change import Change
from rip.schemas.findings.rows import DriftGrows, OriginsAbsorbed
from rip.schemas.fingerprint import fact, unavailable
from rip.schemas.trace import Site
from rip.schemas.verdict import Verdict

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


def test_a_shape_is_no_sure_cause_of_what_rounding_does_not_explain(tmp_path: Path) -> None:
    found = {}
    for size in (1e-4, 0.1, 0.6):
        folder = tmp_path / str(size)
        folder.mkdir()
        a, b = pair()
        b.shapes["batch_size"][:] = 2
        disturb(b, 3, UP, size)
        found[size] = cause(verdict_of(folder, a, b), "batch-shape").confidence
    assert found == {1e-4: "high", 0.1: "medium", 0.6: "low"}


def padded(folder: Path, name: str, part: str = "") -> tuple[Sequence, Sequence, list[Site]]:
    folder.mkdir()
    sites = [SITES[0], Site(name=name, part=part, module="Module", dtype="float32", width=64), *SITES[1:]]
    a, b = (sequence(1, len(sites), prompt=6, decode=8) for _ in "ab")
    b.shapes["batch_size"][:], b.shapes["padded_tokens"][:] = 2, 3
    return a, b, sites


def compared(folder: Path, a: Sequence, b: Sequence, sites: list[Site]) -> Verdict:
    for name, one in (("a", a), ("b", b)):
        write_trace(folder / f"{name}.parquet", [one], header(sites))
    return diverge(folder / "a.parquet", folder / "b.parquet", folder / "out", force=True)


def test_padding_that_is_counted_in_the_positions_is_named(tmp_path: Path) -> None:
    a, b, sites = padded(tmp_path / "counted", "rotary_emb", "0")
    b.tokens[6:] += 1  # the answer parts at once; A's rows behind it still say what is shifted
    a.has_logits[:] = b.has_logits[:] = False
    for values in ("hashes", "sketch", "l2"):
        getattr(b, values)[:11, 1] = getattr(a, values)[3:14, 1]
    a.present[-1] = True
    first = compared(tmp_path / "counted", a, b, sites).causes[0]
    assert first.label == "Padding is counted in B's positions: they are 3 higher in B"
    assert "--set batch_size=1" in typed(first)
    # Of positions that A does not have, the padding is the shift to look for.
    a, b, sites = padded(tmp_path / "unseen", "rotary_emb", "0")
    for position in range(13):
        disturb(b, position, 1, 0.5)
    first = compared(tmp_path / "unseen", a, b, sites).causes[0]
    assert first.id == "positions"
    assert (
        "3 padded tokens more: positions that count them are off by as many" in sentences(first.evidence)[0]
    )


def test_padding_that_is_attended_to_comes_before_the_shape_of_the_batch(tmp_path: Path) -> None:
    a, b, sites = padded(tmp_path / "mask", "layers.0.self_attn", "attn")
    disturb(b, 0, 1, 0.2)
    causes = compared(tmp_path / "mask", a, b, sites).causes
    assert [one.id for one in causes][:2] == ["padding", "batch-shape"]
    assert causes[0].confidence == "high"
    assert any("the padding was attended to" in line for line in sentences(causes[0].evidence))
