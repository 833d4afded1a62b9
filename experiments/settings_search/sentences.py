"""The words of `rip narrow`: its result in a sentence, the rows of its tables, a line for every run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...diverge.present.findings.sentences import sentence as finding_sentence
from ...diverge.present.format import NONE, plain, plural, request_name
from ...schemas.narrow import (
    Configuration,
    MinimalSet,
    Narrow,
    NarrowLevel,
    NarrowObservation,
    NarrowOutcome,
    RunDifference,
)
from .continuation import Continuation, SearchChange

_MORE_REPEATS = 8
_MOST_CHANGES = 3
"""Changes that an error names."""


def sentence(result: Narrow) -> str:
    """What was found, in one or two sentences."""
    runs = plural(sum(len(one.observations) for one in result.configurations), "run")
    if result.state == "no divergence":
        closer = "" if result.level == "bitwise" else "; --require bitwise compares bits instead of tokens"
        return f"The bad lane does not diverge from the good one at the level {result.level}: {runs}{closer}."
    if result.state == "noise":
        return _noise(result, runs)
    if not result.found:
        return f"The search is not finished: {runs} so far."
    noisy = ", found with noise" if result.state == "found with noise" else ""
    first, *more = result.found
    values = {setting.name: setting.bad for setting in result.varied}
    text = _set_in_words(first, values)
    for other in more:
        text += f"; so {'do' if len(other.settings) > 1 else 'does'} {_named(other.settings, values)}"
        text += " together" if len(other.settings) > 1 else " alone"
    return f"{text}{noisy} ({runs}).{_rest(result)}"


def setting_rows(result: Narrow) -> list[tuple[str, str, str, str]]:
    """Per setting: name, good value, bad value, and what it does."""
    does: dict[str, str] = {}
    for found in result.found:
        for name in found.settings:
            others = [other for other in found.settings if other != name]
            does[name] = f"turns it on, with {join(others)}" if others else "turns it on"
            if name in found.undecided:
                does[name] += " (not known whether it is needed)"
    return [
        (plain(one.name), _value(one.good), _value(one.bad), plain(does.get(one.name, "")))
        for one in result.varied
    ]


class RunRow(NamedTuple):
    """One deciding configuration: what is on, its runs in words, the first difference, how it ended."""

    label: str
    runs: str
    where: str
    outcome: NarrowOutcome


def run_rows(result: Narrow) -> list[RunRow]:
    """The deciding configurations."""
    by_name = {one.name: one for one in result.configurations}
    rows: list[RunRow] = []

    def add(label: str, name: str | None) -> None:
        if name in by_name:
            one = by_name[name]
            rows.append(RunRow(plain(label), outcome_text(one), _where(one, result), one.outcome))

    add("nothing: the good lane, repeated", "good")
    add("everything: the bad lane", "bad")
    for found in result.found:
        if len(found.settings) < len(result.varied):
            add(join(found.settings), found.configuration)
        if len(found.settings) > 1:
            for name, without in found.without.items():
                rest = [other for other in found.settings if other != name]
                add(f"{join(rest)}, without {name}", without)
    if result.rest is not None:
        gone = [name for found in result.found for name in found.settings]
        add(f"everything but {join(gone)}", result.rest)
    return rows


def outcome_text(configuration: Configuration) -> str:
    """`same`, `diverges in 2 of 2`, or where runs disagree `diverges: diverged in 7 of 8 (0.53 to 0.98)`."""
    rate = configuration.rate
    if configuration.outcome == "failed" or rate is None:
        return configuration.outcome
    agrees = configuration.outcome == ("diverges" if rate.count else "same") and rate.count in (0, rate.of)
    if agrees or rate.of == 1:
        times = "" if rate.of == 1 else f" in {rate.of} of {rate.of}"
        return f"{configuration.outcome}{times}"
    return (
        f"{configuration.outcome}: diverged in {rate.count} of {rate.of} ({rate.low:.2f} to {rate.high:.2f})"
    )


def join(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(names)
    return f"{', '.join(first)} and {last}" if first else last


def run_line(
    name: str, run: NarrowObservation, level: NarrowLevel, index: int, number: int, most: int
) -> str:
    """One line a run: `run 5: with-dtype diverges: request q1, step 28 (3.1 s; at most …)`.

    Args:
        name: Of the configuration.
        index: Number of the configuration's run, from 0.
        number: Number of the run in this search, from 1.
        most: Runs that one set needs at most after it.
    """
    repeated = f", run {index + 1} of it" if index else ""
    if level not in run.diverges:
        outcome = f" failed: {failure_in_words(run)}"
    elif run.diverges[level]:
        outcome = f" diverges: {difference_in_words(run.first[level]) if level in run.first else ''}"
    else:
        outcome = " is the reference" if name == "good" and not index else " is the same"
    return f"run {number}: {name}{repeated}{outcome} ({run.seconds:.1f} s; at most {most} more for one set)"


def failure_in_words(run: NarrowObservation | None) -> str:
    """Why a run could not be made or compared; None: there is none."""
    if run is None or run.failure is None:
        return "it did not end"
    return "it wrote no trace" if run.failure.kind == "no trace" else run.failure.message or ""


def difference_in_words(found: RunDifference) -> str:
    """How a run first differs: `request q1, step 28`, `request q1, position 3, layers.0`."""
    at = found.at
    if found.of == "not known":
        return "" if at is None else at.text or ""
    if found.of == "bits":
        where = "" if at is None else finding_sentence(at)
        return where or "; ".join(finding_sentence(reason) for reason in found.why) or "bits differ"
    if at is None or at.request_id is None:
        return "tokens differ"
    name = request_name(at.request_id, at.sample)
    if found.of == "text":
        return f"{name}, character {at.character}"
    if found.of == "token":
        return (
            f"{name}, position {at.position}, in the prompt" if at.step is None else f"{name}, step {at.step}"
        )
    return f"{name}, position {at.position}, {at.site if found.of == 'site' else 'log-probabilities'}"


def stage_of_run(number: int, name: str, most: int) -> tuple[str, str]:
    """What is shown while a configuration runs, and how many more runs one set needs at most."""
    return f"run {number}: {name}", f"at most {most} more for one set"


def continuation_line(found: Continuation, out: Path) -> str:
    """What is kept of the earlier search of the folder."""
    runs = plural(found.runs, "run")
    if found.kind == "continued":
        return f"continuing after {runs} in {out}"
    if found.kind == "started over":
        return f"no run of the earlier search in {out} succeeded: starting over"
    kept = "is kept" if found.runs == 1 else "are kept"
    return f"the bad lane has changed: {runs} of the good lane in {out} {kept}"


def different_search(out: Path, runs: int, changes: Sequence[SearchChange]) -> str:
    """Why the search of a folder is not continued."""
    named = "; ".join(_change(change) for change in changes[:_MOST_CHANGES])
    more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f"{out} holds a different search with {plural(runs, 'run')}: {named}{more}"


def _change(found: SearchChange) -> str:
    before, now = ("not stated" if text is None else text for text in (found.before, found.now))
    return {
        "requests": "the requests have changed",
        "varied now": f"{found.name} is varied now",
        "no longer varied": f"{found.name} is no longer varied",
        "value": f"{found.name} in the {found.side} lane: {before} → {now}",
        "fixed setting": "a setting that is not varied has changed",
        "options": "--capture or --allow-drift has changed",
        "version": f"version of rip: {before} → {now}",
    }[found.kind]


def command_lines(result: Narrow) -> list[str]:
    """The commands of a result, as they are typed into a shell."""
    return [shlex.join(command) for command in result.commands]


def _set_in_words(found: MinimalSet, values: dict[str, str | None]) -> str:
    named = _named(found.settings, values)
    if len(found.settings) == 1:
        return f"{named} alone turns the divergence on"
    if found.undecided:
        verb = "is" if len(found.undecided) == 1 else "are"
        return (
            f"{named} together turn the divergence on; it is not known whether {join(found.undecided)} "
            f"{verb} needed"
        )
    if len(found.settings) == 2:
        return f"{named} together turn the divergence on, each alone does not"
    return f"{named} together turn the divergence on, without any one of them it disappears"


def _rest(result: Narrow) -> str:
    """What everything else does."""
    if result.rest is None:
        return ""
    rest = next(one for one in result.configurations if one.name == result.rest)
    sets = "it" if sum(len(found.settings) for found in result.found) == 1 else "them"
    others = len(result.varied) - sum(len(found.settings) for found in result.found)
    lead = f" With everything but {sets} on ({plural(others, 'setting')})"
    if rest.outcome == "same":
        return f"{lead} nothing diverges."
    if rest.outcome == "failed":
        return f"{lead} the run fails, so it is not known whether anything else turns it on."
    return f"{lead} the outcome is too noisy to decide."


def _noise(result: Narrow, runs: str) -> str:
    by_name = {one.name: one for one in result.configurations}
    good, bad = by_name["good"], by_name["bad"]
    fix = f"try --repeat {max(_MORE_REPEATS, 2 * result.repeat)}"
    if good.rate is not None and good.rate.count:
        return (
            f"The good lane does not repeat itself: it diverged from its first run in {_share(good)} runs, "
            f"the bad lane in {_share(bad)}; {plural(result.repeat, 'repeat')} cannot distinguish them "
            f"({runs}); {fix}."
        )
    undecided = (
        one for one in reversed(result.configurations) if one.rate and 0 < one.rate.count < one.rate.of
    )
    shaky = next(undecided, bad)
    noise = f"it diverged in {_share(shaky)} runs ({runs}); {fix}."
    if shaky.name == "bad":
        return f"The bad lane is noisy: {noise}"
    return f"The outcome is noisy: with {join(shaky.on)} on, {noise}"


def _share(configuration: Configuration) -> str:
    rate = configuration.rate
    return "0 of 0" if rate is None else f"{rate.count} of {rate.of}"


def _where(configuration: Configuration, result: Narrow) -> str:
    for one in configuration.observations:
        if one.failure is not None:
            return plain(failure_in_words(one))
        if result.level in one.first:
            return plain(difference_in_words(one.first[result.level]))
    return NONE


def _named(settings: Sequence[str], values: dict[str, str | None]) -> str:
    return plain(
        join(f"{name} not stated" if values[name] is None else f"{name}={values[name]}" for name in settings)
    )


def _value(text: str | None) -> str:
    return "not stated" if text is None else plain(text)
