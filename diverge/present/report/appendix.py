"""The appendix of a report: digests, envelopes, and the exact commands to reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....schemas.command_line import DivergeCommand, QueryCommand, shell_line
from ....schemas.lane import OWN_PROGRAM
from ...causes.commands import Commands
from ..findings.reference import reference_sentence
from ..findings.sentences import in_shell, sentence
from ..format import NONE, number, plain, plural, request_name
from ..zoom import finding_sentence, proof_line, zoom_lines
from .document import Appendix, Proof

if TYPE_CHECKING:
    from ....schemas.reference import Reference, ReferenceSite
    from ....schemas.trace import TraceHeader
    from ....schemas.verdict import TraceRef, Verdict
    from ....schemas.zoom import Transplant, Zoom
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


MAX_ORIGINS = 16
"""Sites of a transplant that are listed."""


def proofs(verdict: Verdict) -> list[Proof]:
    """The experiments that the verdict holds, the strongest first."""
    zoom = verdict.zoom
    found = []
    if zoom is not None:
        if zoom.transplant.state != "not run":
            found.append(_transplant(zoom, zoom.transplant))
        if zoom.finding is not None or zoom.transplant.state == "not run":
            found.append(_zoom(zoom))
    if verdict.reference is not None:
        found.append(_reference(verdict.reference))
    return found


def _transplant(zoom: Zoom, done: Transplant) -> Proof:
    hidden = len(done.origins) - MAX_ORIGINS
    rows = [
        [plain(one.site), f"{one.positions:,}", str(one.first), str(one.last)]
        for one in done.origins[:MAX_ORIGINS]
    ]
    return Proof(
        title=f"Transplant (activation patching): {done.state}",
        conclusion=_sentence(proof_line(zoom)),
        proven=done.state == "proven",
        tables=[(["A's rows put in at", "positions", "first", "last"], rows)] if rows else [],
        notes=[f"{plural(hidden, 'more site')} not listed"] if hidden > 0 else [],
    )


def _zoom(zoom: Zoom) -> Proof:
    where = f"{plain(zoom.site) or 'the logits'} at position {zoom.position}"
    title = f"Zoom into {where} of {request_name(zoom.request_id, zoom.sample)}"
    _, *lines = zoom_lines(zoom)
    if zoom.finding is None:
        return Proof(title, "Both sides ran again; no differing op was found.", False, lines=_plain(lines))
    return Proof(title, _sentence(finding_sentence(zoom.finding)), False, lines=_plain(lines[1:]))


def _plain(lines: list[str]) -> list[str]:
    return [plain(line) for line in lines]


def _sentence(line: str) -> str:
    text = plain(line).rstrip(".")
    is_name = "." in text.split(" ")[0]  # an op keeps its case: aten.mm
    return f"{text[:1] if is_name else text[:1].upper()}{text[1:]}."


def _reference(found: Reference) -> Proof:
    dtypes = [("dtypes", f"A {found.dtype_a}, B {found.dtype_b}, reference {found.dtype_reference}")]
    farther = [
        (what, site)
        for what, site in (("first farther site", found.first), ("at the output", found.output))
        if site is not None
    ]
    rows = [
        *(dtypes if found.dtype_reference else []),
        ("positions compared", f"{found.rows:,}"),
        ("expected ratio of distances B / A, by dtype", f"× {number(found.expected_ratio)}"),
        ("sites with a farther side", f"{found.sites_farther:,} of {found.sites:,}"),
        ("repeats for the noise", str(found.repeats)),
    ]
    return Proof(
        title=f"Against the reference: {found.verdict}",
        conclusion=plain(reference_sentence(found)),
        proven=False,
        rows=[(name, plain(value)) for name, value in rows],
        tables=[
            (
                ["where", "site", "distance B / A", "95 % interval", "rows", "from position"],
                [_reference_row(what, site) for what, site in farther],
            )
        ]
        if farther
        else [],
        notes=[plain(sentence(note)) for note in found.notes],
    )


def _reference_row(what: str, site: ReferenceSite) -> list[str]:
    return [
        what,
        plain(site.site),
        f"× {number(site.ratio)}",
        f"{number(site.low)} to {number(site.high)}",
        f"{site.rows:,}",
        f"{site.position} of {request_name(site.request_id, site.sample)}",
    ]
