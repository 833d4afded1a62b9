"""The words of `rip narrow`: its result in a sentence, the rows of its tables, a line for every run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...diverge.present.format import NONE, plain, plural
from ...schemas.narrow import Configuration, MinimalSet, Narrow, NarrowLevel, NarrowObservation, NarrowOutcome

_MORE_REPEATS = 8


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
            if name in found.unjudged:
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
        outcome = f" failed: {run.why}"
    elif run.diverges[level]:
        outcome = f" diverges: {run.where.get(level, '')}"
    else:
        outcome = " is the reference" if name == "good" and not index else " is the same"
    return f"run {number}: {name}{repeated}{outcome} ({run.seconds:.1f} s; at most {most} more for one set)"


def _set_in_words(found: MinimalSet, values: dict[str, str | None]) -> str:
    named = _named(found.settings, values)
    if len(found.settings) == 1:
        return f"{named} alone turns the divergence on"
    if found.unjudged:
        verb = "is" if len(found.unjudged) == 1 else "are"
        return (
            f"{named} together turn the divergence on; it is not known whether {join(found.unjudged)} "
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
    shaky = next(
        one for one in reversed(result.configurations) if one.rate and 0 < one.rate.count < one.rate.of
    )
    noise = f"it diverged in {_share(shaky)} runs ({runs}); {fix}."
    if shaky.name == "bad":
        return f"The bad lane is noisy: {noise}"
    return f"The outcome is noisy: with {join(shaky.on)} on, {noise}"


def _share(configuration: Configuration) -> str:
    rate = configuration.rate
    return "0 of 0" if rate is None else f"{rate.count} of {rate.of}"


def _where(configuration: Configuration, result: Narrow) -> str:
    for one in configuration.observations:
        if one.why is not None:
            return plain(one.why)
        if result.level in one.where:
            return plain(one.where[result.level])
    return NONE


def _named(settings: Sequence[str], values: dict[str, str | None]) -> str:
    return plain(
        join(f"{name} not stated" if values[name] is None else f"{name}={values[name]}" for name in settings)
    )


def _value(text: str | None) -> str:
    return "not stated" if text is None else plain(text)
