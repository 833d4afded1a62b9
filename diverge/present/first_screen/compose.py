"""Makes the first screen of a verdict: the headline, its rows, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....schemas.command_line import path_argument, shell_line
from ...statistics import rate_without_failures
from ..findings.labels import label
from ..findings.sentences import in_shell
from ..format import BROKEN, duration, listed, pieces, plain, plural
from ..prompt_words import prompt_words
from ..verdict_sentences import has_moved, headline, unfinished_sides
from .causes import cause_rows, causes_listed, flips, is_proven
from .places import place_rows
from .screen import NO_COURSE, Course, FirstScreen, Row, State

if TYPE_CHECKING:
    from ....schemas.trace import TraceHeader
    from ....schemas.verdict import Cause, Verdict

_SHOWN_SETTINGS = 3
_LEVELS = ("token", "numeric", "bitwise")
"""Levels that are always shown; `semantic` only where something is known of it."""
_JUDGED = {
    "B is farther": "a regression: B is farther from the reference",
    "A is farther": "A is farther from the reference than B",
    "not judged": "the reference cannot judge",
}
"""What a reference says in short; any other verdict: rounding."""


@dataclass(frozen=True)
class Scene:
    """What a first screen needs beside the verdict.

    Attributes:
        result: The result folder, as commands name it.
        headers: Of A and B; None: not read.
        course: Of the drift, see `places.site_course`.
        more: Where the rest stands.
        in_report: It stands in a report, so there is one already.
    """

    result: str
    headers: tuple[TraceHeader | None, TraceHeader | None]
    course: Course = NO_COURSE
    more: str = "more: --verbose"
    in_report: bool = False


def first_screen(verdict: Verdict, scene: Scene) -> FirstScreen:
    """The first screen of a result."""
    state = _state(verdict)
    first = verdict.first_token or verdict.first_text
    words = {**prompt_words(scene.headers[1]), **prompt_words(scene.headers[0])}
    return FirstScreen(
        state=state,
        headline=headline(verdict, causes_listed(verdict)),
        tokens=_tokens(verdict, scene),
        prompt="" if first is None else words.get(first.request_id, ""),
        rows=tuple(_rows(verdict, scene, state)),
        levels=tuple(
            (name, level.state)
            for name, level in sorted(verdict.levels.items(), key=lambda item: _order(item[0]))
            if name in _LEVELS or (level.state in ("holds", "fails") and not _holds(verdict, "token"))
        ),
        safe=safe_under(verdict),
        judged=_judged(verdict),
        next=tuple(_next(verdict, scene, state)),
    )


def confirm_command(result: str, number: int) -> str:
    """What runs the experiment of a cause."""
    return plain(shell_line(["confirm", path_argument(result), str(number)]))


def safe_under(verdict: Verdict) -> str:
    """`safe under: token`: the levels that hold."""
    held = [name for name in _LEVELS if _holds(verdict, name)]
    if not held and _holds(verdict, "semantic"):
        held = ["semantic"]
    return f"safe under: {', '.join(held)}" if held else "safe under no level"


def _order(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else len(_LEVELS)


def _holds(verdict: Verdict, level: str) -> bool:
    return level in verdict.levels and verdict.levels[level].state == "holds"


def _state(verdict: Verdict) -> State:
    token = verdict.levels.get("token")
    if verdict.first_token is not None or verdict.first_text is not None:
        return "differs"
    if token is not None and token.state == "fails":
        return "differs"
    if token is None or token.state != "holds":
        return "unknown"
    return "moved" if has_moved(verdict) else "equal"


def _tokens(verdict: Verdict, scene: Scene) -> tuple[str, str] | None:
    """What the first different choice was on both sides."""
    first = verdict.first_token
    if first is not None:
        texts = [{} if header is None else header.token_text for header in scene.headers]
        return _token(first.token_a, texts[0]), _token(first.token_b, texts[1])
    text = verdict.first_text
    return None if text is None else (_excerpt(text.a), _excerpt(text.b))


def _token(token: int | None, texts: dict[str, str]) -> str:
    if token is None:
        return "(ends)"
    text = texts.get(str(token))
    if text is None or BROKEN in text:
        return f"token {token}"
    return _quoted(text)


def _excerpt(text: str) -> str:
    return _quoted(text[:_EXCERPT]) if text else "(ends)"


def _quoted(text: str) -> str:
    """On one line, what is invisible as a mark."""
    shown = "".join(part for _, part in pieces(text)).replace("\n", "")
    return f'"{shown}"'


_EXCERPT = 12
"""Characters of a text that differs."""


def _rows(verdict: Verdict, scene: Scene, state: State) -> list[Row]:
    cut = "is an unfinished run: only what it recorded was compared"
    rows = [Row("limits", f"{name} {cut}") for name in unfinished_sides(verdict)]
    if verdict.compared.texts and not verdict.compared.sequences:
        rows.append(Row("limits", "compared as text: a side returns no token ids, so numbers are unknown"))
    if state == "unknown" and verdict.compared.sequences:
        rows.append(Row("seen", _extent(verdict)))
    pairs = None if verdict.agreement is None else verdict.agreement.pairs
    if pairs is not None:
        rows.append(Row("agree", f"{pairs.count:,} of {plural(pairs.of, 'pair')} of samples"))
    if state in ("differs", "moved"):
        rows += cause_rows(verdict, scene.more)
        if not verdict.causes:
            rows.append(Row("cause", "none found in what the two runs recorded"))
        rows += place_rows(verdict, scene.course)
        if said := flips(verdict):
            rows.append(Row("flips", said))
        rows += _proven(verdict)
    if state in ("equal", "moved"):
        rows += _achieved(verdict, state)
    return rows


def _proven(verdict: Verdict) -> list[Row]:
    """Where a transplant proved that the difference starts."""
    done = None if verdict.zoom is None else verdict.zoom.transplant
    if done is None or done.state != "proven":
        return []
    where = done.origins[0].site if len(done.origins) == 1 else f"{len(done.origins):,} sites"
    text = f"by experiment: with A's rows put in at {plain(where)}, B follows A to position {done.last}"
    return [Row("proven", text, decided="confirmed")]


def _achieved(verdict: Verdict, state: State) -> list[Row]:
    """What equal answers show, and how little that is."""
    compared, changes, settings = verdict.compared, len(verdict.changes), verdict.settings or []
    rows = []
    if state == "equal":
        rows.append(Row("seen", _extent(verdict)))
        if verdict.a.fingerprint is None or verdict.b.fingerprint is None:
            rows.append(Row("effect", "not known: a trace has no fingerprint of its environment"))
        elif changes or settings:
            parts = [f"{plural(changes, 'field')} of the environment"] if changes else []
            if settings:
                parts.append(f"{plural(len(settings), 'setting')} ({listed(settings, _SHOWN_SETTINGS)})")
            what = f"{' and '.join(parts)} changed"
            had = "it had no effect" if changes + len(settings) == 1 else "none had an effect"
            rows.append(Row("effect", f"{what}; {had} on {_these(compared.sequences)}"))
        else:
            rows.append(Row("effect", "none: the two fingerprints agree in every field that both hold"))
    share = 100 * rate_without_failures(compared.sequences)
    most = f"{share:.0f}" if share >= 1 else f"{share:.2g}"
    answers = plural(compared.sequences, "equal answer")
    rows.append(Row("proves", f"{answers}: up to {most} % may still differ (95 % confidence)"))
    return rows


def _these(count: int) -> str:
    return "this request" if count == 1 else f"these {count:,} requests"


def _extent(verdict: Verdict) -> str:
    compared = verdict.compared
    positions = f"{plural(compared.positions, 'position')} of {plural(compared.sequences, 'request')}"
    if not compared.rows:
        return f"{positions}; no site, so the inside of the model is unknown"
    return f"{plural(compared.rows, 'row')} at {plural(compared.sites, 'site')}, {positions}"


def _judged(verdict: Verdict) -> str:
    """Rounding or a regression, as far as a reference tells."""
    if verdict.reference is not None:
        known = _JUDGED.get(verdict.reference.verdict)
        return known or "rounding: both sides are as close to the reference as their dtypes allow"
    moved = has_moved(verdict) and verdict.compared.rows > 0
    return "" if is_proven(verdict) or not moved else "rounding or regression? rip diverge A B --reference R"


def _next(verdict: Verdict, scene: Scene, state: State) -> list[Row]:
    rows = [_step(verdict, scene, state)]
    if not scene.in_report:
        command = shell_line(["report", path_argument(scene.result), "-o", "report.html"])
        rows.append(Row("", plain(command), scene.more, command=True))
    return rows


def _step(verdict: Verdict, scene: Scene, state: State) -> Row:
    """What a reader does now: confirm a cause, look closer, or keep what there is."""
    if state == "equal":
        return Row("next", "nothing to do: keep the two traces as evidence")
    if state == "unknown":
        return Row("next", "compare runs that record more")
    if is_proven(verdict):
        return Row("next", "fix what is proven, and replay B")
    untried = [
        (number, cause)
        for number, cause in enumerate(verdict.causes, start=1)
        if cause.has_experiment and cause.confirmation is None
    ]
    if untried:
        number, cause = untried[0]
        return Row(
            "next", confirm_command(scene.result, number), _estimate(cause, scene.headers[1]), command=True
        )
    return _without_experiment(verdict, scene)


def _without_experiment(verdict: Verdict, scene: Scene) -> Row:
    """What to do where rip has no experiment to run."""
    cause = next((one for one in verdict.causes if one.confirm and one.confirmation is None), None)
    if cause is not None and cause.confirm is not None:
        if cause.confirm.purpose == "rerun program":
            return Row("next", plain(in_shell(cause.confirm)))
        return Row("next", f"check the evidence for “{plain(label(cause))}”, fix it and replay B")
    if verdict.compared.texts and not verdict.compared.sequences:
        return Row("next", "replay both on an engine that returns token ids (docs/engines.md)")
    if not verdict.compared.rows:
        return Row("next", "record both again with module outputs: rip replay --capture sites")
    if verdict.zoom is None:
        command = shell_line(
            ["diverge", path_argument(verdict.a.path), path_argument(verdict.b.path), "--zoom"]
        )
        return Row("next", plain(command), "finds the op", command=True)
    return Row("next", "report the proof to the owners of the module")


def _estimate(cause: Cause, header: TraceHeader | None) -> str:
    """How long the experiment of a cause takes, as B's trace tells."""
    if header is None or cause.confirm is None:
        return ""
    control = [header.seconds_again()] if cause.needs_control else []
    return f"about {duration(*control, header.seconds_again(cause.confirm.repeats))}"
