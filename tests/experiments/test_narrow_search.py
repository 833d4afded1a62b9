"""The search of `rip narrow`: it finds what is planted, in few runs, and never claims more than it ran."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rip.experiments.settings_search.continuation import Continuation
from rip.experiments.settings_search.noise import Counts, Rule, are_distinguishable
from rip.experiments.settings_search.resume import Ledger, configuration_name, continued_search
from rip.experiments.settings_search.search import GOOD, Finding, On, narrow
from rip.experiments.settings_search.sentences import (
    continuation_line,
    difference_in_words,
    run_rows,
    sentence,
    setting_rows,
)
from rip.schemas.errors import OutputFailed
from rip.schemas.findings.statement import Location
from rip.schemas.narrow import Narrow, NarrowObservation, RunDifference, VariedSetting

GOLDEN = Path(__file__).parent.parent / "golden"

SIXTEEN = [f"s{index}" for index in range(16)]
MOST_FOR_ONE_OF_SIXTEEN = 16
"""2·log2(16) + 8."""


@dataclass
class Lab:
    """A run function: a rule says what diverges. It counts the runs and what was promised of their number."""

    diverges: Callable[[On], bool | None]
    flips: float = 0.0
    """Chance that a run ends the other way."""
    seed: int = 0
    made: list[On] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = random.Random(self.seed)

    def run(self, on: On, index: int) -> bool | None:
        assert index == self.made.count(on)
        self.made.append(on)
        if on == GOOD and index == 0:
            return False
        outcome = self.diverges(on)
        return outcome if outcome is None else outcome != (self.draws.random() < self.flips)

    def watch(self, on: On, done: int, most: int) -> None:
        assert done == len(self.made)
        self.promised.append(done + most)

    def search(self, names: Iterable[str], repeat: int = 1) -> Finding:
        return narrow(list(names), self.run, repeat, self.watch)


def needs(*sets: Iterable[str]) -> Callable[[On], bool]:
    """Diverges where all settings of one of the sets are on."""
    return lambda on: any(set(one) <= on for one in sets)


@pytest.mark.parametrize("planted", SIXTEEN)
def test_one_setting_of_sixteen_is_found_in_few_runs(planted: str) -> None:
    lab = Lab(needs([planted]))
    finding = lab.search(SIXTEEN)
    assert finding.state == "found"
    assert [found.settings for found in finding.found] == [(planted,)]
    assert finding.found[0].undecided == ()
    assert len(lab.made) <= MOST_FOR_ONE_OF_SIXTEEN
    assert min(lab.promised) >= len(lab.made), "no run came that was not promised"
    assert finding.outcomes[frozenset(SIXTEEN) - {planted}] == "same", "nothing else turns it on"


@pytest.mark.parametrize(("size", "most", "mean"), [(1, 13, 11), (2, 21, 17), (3, 26, 21)])
def test_settings_that_are_needed_together_are_found_and_nothing_else(
    size: int, most: int, mean: float
) -> None:
    """All pairs and triples: the figures of docs/narrow.md."""
    counts = []
    for planted in itertools.combinations(SIXTEEN, size):
        lab = Lab(needs(planted))
        finding = lab.search(SIXTEEN)
        assert [found.settings for found in finding.found] == [planted]
        assert min(lab.promised) >= len(lab.made)
        counts.append(len(lab.made))
    assert max(counts) == most
    assert round(sum(counts) / len(counts)) == mean


def test_settings_that_each_turn_it_on_are_all_found() -> None:
    counts = []
    for one, other in itertools.combinations(SIXTEEN, 2):
        lab = Lab(needs([one], [other]))
        finding = lab.search(SIXTEEN)
        assert {found.settings for found in finding.found} == {(one,), (other,)}
        assert finding.rest == frozenset(SIXTEEN) - {one, other}
        assert finding.outcomes[finding.rest] == "same"
        counts.append(len(lab.made))
    assert (max(counts), round(sum(counts) / len(counts))) == (22, 19)


def test_a_setting_that_masks_another_is_no_hindrance() -> None:
    """`a` turns it on, unless `b` is on; `c` and `d` together do in any case."""
    finding = Lab(lambda on: ("a" in on and "b" not in on) or {"c", "d"} <= on).search("abcd")
    assert [set(found.settings) for found in finding.found] == [{"c", "d"}]
    assert finding.outcomes[frozenset("ab")] == "same"


def test_mixtures_that_cannot_run_are_neither_outcome() -> None:
    """`b` cannot run without `a`: the culprit `b` is found with it, and that `a` is needed is not claimed."""
    finding = Lab(lambda on: None if "b" in on and "a" not in on else "b" in on).search("abcdefgh")
    assert [found.settings for found in finding.found] == [("a", "b")]
    assert finding.found[0].undecided == ("a",)
    assert finding.outcomes[frozenset("b")] == "failed"


def test_lanes_that_do_not_diverge_are_run_three_times_and_no_more() -> None:
    lab = Lab(lambda on: False)
    assert lab.search(SIXTEEN).state == "no divergence"
    assert lab.made == [GOOD, frozenset(SIXTEEN), GOOD]


@pytest.mark.parametrize("broken", ["good", "bad"])
def test_a_lane_that_cannot_run_ends_the_search(broken: str) -> None:
    lab = Lab(lambda on: None if bool(on) == (broken == "bad") else False)
    finding = lab.search("abc")
    assert finding.failed == (GOOD if broken == "good" else frozenset("abc"))
    assert finding.found == []


@given(
    some.integers(1, 7).flatmap(
        lambda size: some.tuples(
            some.just(size),
            some.lists(some.sampled_from([True, False, None]), min_size=2**size, max_size=2**size),
        )
    )
)
def test_whatever_settings_do_to_each_other_what_is_found_is_true(
    case: tuple[int, list[bool | None]],
) -> None:
    """Any outcome for any mixture: each set diverges, and no single setting of it can be taken away."""
    size, outcomes = case
    names = SIXTEEN[:size]

    def diverges(on: On) -> bool | None:
        if on in (GOOD, frozenset(names)):
            return bool(on)
        return outcomes[sum(1 << names.index(name) for name in on)]

    lab = Lab(diverges)
    finding = lab.search(names)
    assert finding.state == "found"
    assert finding.found
    left = set(names)
    for found in finding.found:
        assert diverges(found.on) is True
        assert found.on <= left, "the sets have nothing in common"
        left -= found.on
        for name in found.settings:
            without = diverges(found.on - {name})
            assert without is False or (without is None and name in found.undecided)
    assert not left or diverges(frozenset(left)) is not True
    assert all(lab.made.count(on) == 1 for on in lab.made if on not in {f.on for f in finding.found} | {GOOD})


# Noise


def test_without_repeats_a_good_lane_that_does_not_repeat_itself_ends_the_search() -> None:
    lab = Lab(lambda on: True)
    assert lab.search(SIXTEEN).state == "noise"
    assert len(lab.made) == 3


def test_a_set_that_does_not_diverge_again_is_not_reported() -> None:
    """The second run of a found set catches an outcome that was chance."""

    def run(on: On, index: int) -> bool:
        return "s3" in on and index == 0

    finding = narrow(SIXTEEN, run)
    assert (finding.state, finding.found, finding.unstable) == ("noise", [], frozenset({"s3"}))


def test_with_repeats_a_planted_setting_is_found_through_noise() -> None:
    """One run in ten ends the other way: the culprit is found, or nothing is claimed."""
    exact = 0
    for seed in range(60):
        lab = Lab(needs(["s5"]), flips=0.1, seed=seed)
        finding = lab.search(SIXTEEN, repeat=12)
        if finding.state == "noise":
            continue
        assert any("s5" in found.settings for found in finding.found)
        exact += [found.settings for found in finding.found] == [("s5",)]
        for found in finding.found:
            counts = finding.counts[found.on]
            assert counts.runs == 12
            assert counts.diverged > counts.same
    assert exact >= 54, "nine in ten"


def test_noise_as_strong_as_the_effect_is_never_a_finding() -> None:
    """The negative control: nothing is planted, every run is a coin."""
    states = [Lab(lambda on: False, flips=0.5, seed=seed).search(SIXTEEN, 8).state for seed in range(40)]
    assert set(states) <= {"noise", "found with noise"}
    assert states.count("noise") >= 38, "the two lanes' intervals overlap, but for chance"


def test_repeats_without_noise_end_early() -> None:
    lab = Lab(needs(["s5"]))
    finding = lab.search(SIXTEEN, repeat=8)
    assert finding.state == "found"
    halves = [
        on for on in set(lab.made) if on not in (GOOD, frozenset(SIXTEEN), *(f.on for f in finding.found))
    ]
    assert {lab.made.count(on) for on in halves if on != finding.rest} == {2}


def test_the_sequential_rule() -> None:
    rule = Rule.measured(8, Counts(same=8), Counts(diverged=8))
    assert rule.outcome(Counts(diverged=1)) is None, "one run cannot show noise"
    assert rule.outcome(Counts(diverged=2)) == "diverges"
    assert rule.outcome(Counts(same=2)) == "same"
    assert rule.outcome(Counts(diverged=1, same=1)) is None
    assert rule.outcome(Counts(diverged=4, same=4)) == "undecided"
    assert rule.outcome(Counts(failed=1)) == "failed"
    assert are_distinguishable(Counts(same=1), Counts(diverged=1))
    assert not are_distinguishable(Counts(diverged=1, same=1), Counts(diverged=2))
    assert are_distinguishable(Counts(diverged=1, same=19), Counts(diverged=19, same=1))


# What is kept, and what is said


def document(names: Iterable[str], **fields: object) -> Narrow:
    varied = [VariedSetting(name=name, good="old", bad=f"new {name}") for name in names]
    known = {
        "tool_version": "0",
        "created": "",
        "digest": "",
        "requests": "set.jsonl",
        "engine": "hf",
        "level": "token",
        "repeat": 1,
        "state": "unfinished",
        "configurations": [],
    }
    return Narrow(**{**known, "varied": varied, **fields})  # type: ignore[arg-type]


def remembered(
    tmp_path, lab: Lab, names: list[str], repeat: int = 1, begun: Narrow | None = None
) -> tuple[Ledger, Finding]:  # type: ignore[no-untyped-def]
    """A search whose runs are remembered, as the command line does it."""
    ledger = Ledger(begun or document(names, repeat=repeat), tmp_path)

    def run(on: On, index: int) -> bool | None:
        known = ledger.known(on, index)
        if known is None:
            outcome = lab.run(on, index)
            trace = ledger.trace(on, index)
            trace.touch()
            told = {} if outcome is None else {"token": outcome, "bitwise": outcome}
            known = NarrowObservation(trace=None if outcome is None else trace.name, diverges=told)  # type: ignore[arg-type]
            ledger.add(on, known)
        return known.diverges.get("token")

    return ledger, narrow(names, run, repeat)


def test_a_search_goes_on_from_what_its_document_holds(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lab = Lab(needs(["b", "d"]))
    ledger, finding = remembered(tmp_path, lab, list("abcd"))
    result = ledger.document(finding)
    runs = len(lab.made)
    cut = ledger.document().model_copy(update={"configurations": result.configurations[:4]})
    again = Lab(needs(["b", "d"]))
    again.made = [frozenset(known.on) for known in cut.configurations for _ in known.observations]
    before = len(again.made)
    resumed = remembered(tmp_path, again, list("abcd"), begun=Narrow.from_json(cut.to_json(), "narrow.json"))
    assert before < runs
    assert len(again.made) == runs, "not one run twice"
    assert resumed[0].document(resumed[1]) == result


def test_a_lost_reference_makes_every_comparison_worthless(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lab = Lab(needs(["b"]))
    ledger, finding = remembered(tmp_path, lab, list("ab"))
    assert Ledger(ledger.document(finding), tmp_path).finished_runs == len(lab.made)
    (tmp_path / "bad.parquet").unlink()
    assert Ledger(ledger.document(finding), tmp_path).finished_runs == len(lab.made) - 1
    (tmp_path / "good.parquet").unlink()
    assert Ledger(ledger.document(finding), tmp_path).finished_runs == 0


def test_runs_that_failed_are_tried_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    broken = Lab(lambda on: None if on == frozenset("a") else "b" in on)
    ledger, finding = remembered(tmp_path, broken, list("abcd"))
    assert finding.outcomes[frozenset("b")] == "diverges"
    assert Ledger(ledger.document(), tmp_path).known(frozenset("a"), 0) is None


@pytest.mark.parametrize(
    ("diverges", "said"),
    [
        (needs(["a"]), "a=new a alone turns the divergence on. With everything but it on (3 settings)"),
        (
            needs(["a"], ["d"]),
            "a=new a alone turns the divergence on; so does d=new d alone. With everything but them on (2",
        ),
        (needs(["a", "d"]), "a=new a and d=new d together turn the divergence on, each alone does not. With"),
        (
            needs(["a"], ["b", "d"]),
            "a=new a alone turns the divergence on; so do b=new b and d=new d together. With everything but",
        ),
        (
            needs("abd"),
            "a=new a, b=new b and d=new d together turn the divergence on, without any one of them it ",
        ),
        (needs(), "The bad lane does not diverge from the good one at the level token: "),
        (
            lambda on: None if on == {"a"} else {"a", "b"} <= on or None,
            "a=new a and b=new b together turn the divergence on; it is not known whether a and b are",
        ),
    ],
)
def test_the_sentence_says_what_was_found(tmp_path, diverges, said: str) -> None:  # type: ignore[no-untyped-def]
    def outcome(on: On) -> bool | None:
        return False if on == GOOD else diverges(on)

    lab = Lab(outcome)
    ledger, finding = remembered(tmp_path, lab, list("abcd"))
    told = ledger.document(finding).sentence
    assert f"{len(lab.made)} runs" in told
    assert re.sub(r" \(\d+ runs\)", "", told).startswith(said)


def test_the_table_shows_with_and_without(tmp_path) -> None:  # type: ignore[no-untyped-def]
    ledger, finding = remembered(tmp_path, Lab(needs(["b", "d"])), list("abcd"))
    result = ledger.document(finding)
    assert [row[:2] for row in run_rows(result)] == [
        ("nothing: the good lane, repeated", "same"),
        ("everything: the bad lane", "diverges"),
        ("b and d", "diverges in 2 of 2"),
        ("d, without b", "same"),
        ("b, without d", "same"),
        ("everything but b and d", "same"),
    ]
    assert [row[3] for row in setting_rows(result)] == ["", "turns it on, with d", "", "turns it on, with b"]


def test_noise_is_told_with_its_interval(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lab = Lab(needs(["b"]), flips=0.1, seed=1)
    ledger, finding = remembered(tmp_path, lab, list("abcd"), repeat=12)
    result = ledger.document(finding)
    assert "found with noise" in result.sentence
    rate = next(known.rate for known in result.configurations if known.name == "with-b")
    assert rate is not None
    assert rate.of == 12
    assert rate.low < rate.share < rate.high


@pytest.mark.parametrize("coin", [1.0, 0.5])
def test_what_is_too_noisy_is_said_with_the_rates(tmp_path, coin: float) -> None:  # type: ignore[no-untyped-def]
    lab = Lab(lambda on: on != GOOD or coin == 1.0, flips=0.0 if coin == 1.0 else 0.5, seed=3)
    ledger, finding = remembered(tmp_path, lab, list("abcd"), repeat=1 if coin == 1.0 else 4)
    assert finding.state == "noise"
    assert "try --repeat 8" in sentence(ledger.document(finding))


def test_equal_runs_that_decide_nothing_are_told_as_counts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The bad lane diverges in half of its runs; what the good one did is told in the same words."""
    answers = iter([False, True, False, True, False])
    lab = Lab(lambda on: next(answers) if on else False)
    ledger, finding = remembered(tmp_path, lab, list("ab"), repeat=4)
    result = ledger.document(finding)
    assert result.sentence.startswith("The bad lane is noisy: it diverged in 2 of 4 runs (")
    assert [row[1] for row in run_rows(result)] == [
        "undecided: diverged in 0 of 4 (0.00 to 0.49)",
        "undecided: diverged in 2 of 4 (0.15 to 0.85)",
    ]


@given(some.lists(some.text(min_size=1), min_size=1, max_size=6, unique=True), some.data())
def test_every_mixture_has_a_file_name_of_its_own(names: list[str], data: some.DataObject) -> None:
    one, other = (frozenset(data.draw(some.sets(some.sampled_from(names)))) for _ in range(2))
    files = [configuration_name(on, names) for on in (one, other)]
    assert (files[0] == files[1]) == (one == other)
    assert all("/" not in file and len(file) < 100 and not file.startswith(".") for file in files)


def test_a_search_of_version_1_goes_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    old = json.loads((GOLDEN / "narrow-v1.json").read_text("utf-8"))
    (tmp_path / "narrow.json").write_text(json.dumps({**old, "state": "unfinished"}))
    runs = [run for one in old["configurations"] for run in one["observations"] if "trace" in run]
    for run in runs:
        (tmp_path / run["trace"]).touch()
    same = Narrow.from_object(old, "the same command")
    known, kept = continued_search(tmp_path, same, force=False)
    assert kept == Continuation("continued", len(runs))
    assert continuation_line(kept, tmp_path) == f"continuing after {len(runs)} runs in {tmp_path}"
    assert known.configurations == same.configurations
    other = same.model_copy(update={"digest": "", "varied": same.varied[:1]})
    with pytest.raises(OutputFailed, match=r"with 4 runs: .*neighbours is no longer varied"):
        continued_search(tmp_path, other, force=False)


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (RunDifference(of="token", at=Location(request_id="r", position=9, step=2)), "request r, step 2"),
        (
            RunDifference(of="token", at=Location(request_id="r", position=9)),
            "request r, position 9, in the prompt",
        ),
        (
            RunDifference(of="text", at=Location(request_id="r", sample=1, character=4)),
            "request r, sample 1, character 4",
        ),
        (
            RunDifference(of="site", at=Location(request_id="r", position=3, site="layers.0")),
            "request r, position 3, layers.0",
        ),
        (
            RunDifference(of="logprobs", at=Location(request_id="r", position=3)),
            "request r, position 3, log-probabilities",
        ),
        (RunDifference(of="token"), "tokens differ"),
        (RunDifference(of="bits"), "bits differ"),
    ],
)
def test_a_first_difference_is_said(difference: RunDifference, said: str) -> None:
    assert difference_in_words(difference) == said
