"""The appendix of a report: digests, envelopes, and the exact commands to reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....schemas.command_line import DivergeCommand, QueryCommand, shell_line
from ....schemas.lane import OWN_PROGRAM
from ...causes.commands import Commands
from ..findings.commands import in_shell
from ..format import NONE, plain, plural
from .document import Appendix

if TYPE_CHECKING:
    from ....schemas.trace import TraceHeader
    from ....schemas.verdict import TraceRef, Verdict
    from .reading.traces import ReportPaths, Source

MAX_ENVELOPES = 100
_UNAVAILABLE = "unavailable:"
"""How the flat fingerprint says that there is no digest."""

_DIGESTS = (
    ("model", "model_sha256"),
    ("tokenizer", "tokenizer_sha256"),
    ("chat template", "chat_template_sha256"),
)


def appendix(
    verdict: Verdict, paths: ReportPaths, sources: tuple[Source, Source], left_out: list[str]
) -> Appendix:
    """Collect what a reader needs to check the document.

    Args:
        verdict: Of the comparison.
        paths: Where its commands run.
        sources: The two traces.
        left_out: What the document does not show.
    """
    envelopes = _envelopes(sources)
    hidden = len(envelopes) - MAX_ENVELOPES
    if hidden > 0:
        left_out = [*left_out, f"{hidden:,} of {len(envelopes):,} envelopes"]
    return Appendix(
        identities=_identities(verdict, sources),
        envelopes=envelopes[:MAX_ENVELOPES],
        commands=_commands(verdict, paths, sources),
        left_out=left_out,
    )


def _identities(verdict: Verdict, sources: tuple[Source, Source]) -> list[tuple[str, str, str]]:
    left, right = (
        _identity(reference, source.header)
        for reference, source in zip((verdict.a, verdict.b), sources, strict=True)
    )
    rows = [(name, left.get(name, NONE), right.get(name, NONE)) for name in {**left, **right}]
    return [(name, plain(one), plain(other)) for name, one, other in rows]


def _identity(reference: TraceRef, header: TraceHeader | None) -> dict[str, str]:
    found = {
        "header of the trace": reference.sha256_of_header,
        "fingerprint": reference.fingerprint or "none",
    }
    if header is None:
        return found
    flat = {} if header.fingerprint is None else header.fingerprint.flat()
    for name, key in _DIGESTS:
        digest = str(flat.get(key) or "")
        if digest and not digest.startswith(_UNAVAILABLE):
            found[name] = digest
    found["trace written by"] = f"rip {header.tool_version}"
    if header.row_hash:
        found["rows hashed and summarised with"] = f"{header.row_hash}, {header.sketch or 'none'}"
    checked = header.observer
    found["output with and without capture"] = checked.state + (
        f" ({checked.compared})" if checked.compared else ""
    )
    return found


def _envelopes(sources: tuple[Source, Source]) -> list[tuple[str, str, str]]:
    sides = [
        {}
        if source.header is None
        else {request.request_id: request.envelope_sha256 for request in source.header.requests}
        for source in sources
    ]
    return [
        (plain(name), sides[0].get(name, NONE), sides[1].get(name, NONE)) for name in {**sides[0], **sides[1]}
    ]


def _commands(verdict: Verdict, paths: ReportPaths, sources: tuple[Source, Source]) -> list[tuple[str, str]]:
    a, b = sources
    found: list[tuple[str, str]] = []
    for source in sources:
        header = source.header
        if header is not None and header.lane.engine != OWN_PROGRAM:
            side = Commands(source.path, source.path, paths.result, header, header, folder=paths.folder)
            again = side.replay(out=f"{source.side.lower()}-again.parquet")
            found.append((f"run {source.side} again: it must repeat itself", in_shell(again)))
    found.append(_compare(verdict, paths, a, b))
    if verdict.first_token is not None:
        differing = "SELECT * FROM tokens WHERE NOT token_equal ORDER BY pair, position LIMIT 20"
        found.append(("show the differing tokens", _query(paths, differing)))
    if verdict.compared.rows_differing:
        by_layer = "SELECT layer, max(rel_drift) FROM sites GROUP BY layer ORDER BY layer"
        found.append(("show the drift by layer", _query(paths, by_layer)))
    return [(what, plain(command)) for what, command in found]


def _query(paths: ReportPaths, sql: str) -> str:
    return shell_line(QueryCommand(paths.result, sql).arguments())


def _compare(verdict: Verdict, paths: ReportPaths, a: Source, b: Source) -> tuple[str, str]:
    """The comparison again, with the options that the verdict holds."""
    reference = verdict.reference
    command = DivergeCommand(
        a.path,
        b.path,
        out=paths.result,
        force=True,
        reference=None if reference is None else reference.path,
        zoom=verdict.zoom is not None,
    )
    what = "compare the two traces again"
    if reference is not None and reference.repeats:
        what += f", with {plural(reference.repeats, 'repeat')} of A as --noise"
    return what, shell_line(command.arguments())
