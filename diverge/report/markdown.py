"""Renders a postmortem as Markdown: for a ticket, a pull request, a wiki."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..verdict_words import is_cut
from ..words import count, number, plural, request_name
from .markdown_pair import pair_blocks
from .markdown_text import block, code, fenced, fold, table, text
from .markdown_top import MAX_FACT, opening, run_in, runs, timeline, two_sides

if TYPE_CHECKING:
    from .model import Postmortem, Proof

# Bounds that keep the text below what GitHub takes as one comment (65,536 characters).
MAX_PAIRS = 40
MAX_CHANGES = 60
MAX_ENVELOPES = 30
MAX_REQUESTS = 40
MAX_NOTES = 40


def to_markdown(document: Postmortem) -> str:
    """The document as GitHub-flavoured Markdown."""
    blocks = [
        *opening(document),
        *timeline(document),
        *runs(document),
        *_causes(document),
        *_texts(document),
        *_sequences(document),
        *(block for view in document.views[:1] for block in pair_blocks(document, view)),
        *_patterns(document),
        *_changes(document),
        *_levels(document),
        *_not_seen(document),
        *_appendix(document),
    ]
    return "\n\n".join(blocks) + "\n"


def _causes(document: Postmortem) -> list[str]:
    causes = document.verdict.causes
    if not causes and not document.proofs:
        return []
    blocks = ["## Causes"]
    if causes:
        blocks.append(
            "Ranked by the evidence in the two traces. A cause is confirmed by the command below it or by an"
            f" experiment, not by this list. {run_in(document)}"
        )
    for rank, cause in enumerate(causes, 1):
        blocks.append(f"### {rank}. {text(cause.label)} ({cause.confidence} confidence)")
        lines = [f"- {block(line)}" for line in cause.evidence]
        if cause.missing:
            lines.append(f"- Missing evidence: {'; '.join(text(line) for line in cause.missing)}")
        if lines:
            blocks.append("\n".join(lines))
        if cause.confirm:
            blocks += ["To confirm or refute:", fenced(document.place.command(cause.confirm))]
    for proof in document.proofs:
        blocks += _proof(proof)
    return blocks


def _proof(proof: Proof) -> list[str]:
    mark = "✅ " if proof.proven else ""
    blocks = [f"### {mark}{text(proof.title)}", block(proof.conclusion)]
    if proof.rows:
        blocks.append(table(["", ""], [[text(name), code(value)] for name, value in proof.rows]))
    if proof.lines:
        blocks.append("\n".join(f"- {code(line)}" for line in proof.lines))
    for heads, rows in proof.tables:
        blocks.append(table([text(head) for head in heads], [[text(cell) for cell in row] for row in rows]))
    return [*blocks, *(block(note) for note in proof.notes)]


def _texts(document: Postmortem) -> list[str]:
    blocks = []
    first = document.verdict.first_text
    if document.text_sides and first is not None:
        name = text(request_name(first.request_id, first.sample))
        blocks += ["## Texts", f"The first differing character is number {first.character:,} of {name}."]
        rows = [
            [
                side,
                ("…" if is_cut(first) else "") + text(before),
                f"**{text(after)}**" if after.strip() else "*output ends*",
            ]
            for side, before, after in document.text_sides
        ]
        blocks.append(table(["", "equal up to here", "goes on"], rows))
    if document.agreement is None:
        return blocks
    agreement = document.verdict.agreement
    assert agreement is not None
    rows = [[text(cell) for cell in row] for row in document.agreement]
    blocks += ["## Agreement", "With Wilson 95 % intervals. No hypothesis is tested."]
    blocks.append(table(["what", "name", "share"], rows))
    if agreement.requests:
        shown = agreement.requests[:MAX_REQUESTS]
        rows = [
            [
                code(one.request_id),
                one.by,
                f"{one.unique_a} of {one.samples_a}",
                f"{one.unique_b} of {one.samples_b}",
                f"{one.pairs_equal} of {one.pairs}",
            ]
            for one in shown
        ]
        heads = ["request", "by", "different in A", "different in B", "equal pairs"]
        title = f"{len(shown):,} of {plural(len(agreement.requests), 'request')}"
        blocks.append(fold(title, table(heads, rows)))
    if document.unique_line:
        blocks.append(block(document.unique_line))
    return [*blocks, *(block(note) for note in agreement.notes)]


def _sequences(document: Postmortem) -> list[str]:
    if document.pair_count < 2:
        return []
    shown = document.pairs[:MAX_PAIRS]
    rows = [
        [
            code(pair.request_id),
            str(pair.sample),
            count(pair.positions),
            "–"
            if pair.first_position is None
            else f"prompt, {pair.first_position}"
            if pair.first_step is None
            else str(pair.first_step),
            count(pair.rows_differing),
            number(pair.max_logit_diff),
        ]
        for pair in shown
    ]
    heads = ["request", "sample", "positions", "first divergent step", "rows differing"]
    heads.append(f"largest {document.kind} difference")
    blocks = ["## Sequences", table(heads, rows, range(1, 6))]
    if document.pair_count > len(shown):
        blocks.append(f"{plural(document.pair_count - len(shown), 'more sequence')} not listed.")
    return blocks


def _patterns(document: Postmortem) -> list[str]:
    if not document.patterns:
        return []
    blocks = ["## Patterns over the sequences"]
    for pattern in document.patterns:
        blocks.append(f"### {text(pattern.title)}")
        if pattern.lede:
            blocks.append(block(pattern.lede))
        if pattern.rows:
            rows = [[text(cell) for cell in row] for row in pattern.rows]
            blocks.append(table([text(head) for head in pattern.heads], rows))
        blocks += [block(note) for note in pattern.notes]
    return blocks


def _changes(document: Postmortem) -> list[str]:
    verdict = document.verdict
    blocks = ["## Environment changes"]
    if not document.rules:
        both = verdict.a.fingerprint and verdict.b.fingerprint
        said = (
            "The two fingerprints agree in every field that both hold."
            if both
            else "Not comparable: at least one of the traces carries no fingerprint."
        )
        return [*blocks, said]
    rows: list[list[str]] = []
    for group in document.rules:
        why = text(group.rule)
        if group.sources:
            why += f"<br>Source: {'; '.join(code(source) for source in group.sources)}"
        for name, before, after in group.fields:
            rows.append([code(name), code(before[:MAX_FACT]), code(after[:MAX_FACT]), text(group.risk), why])
            why = "″"
    blocks.append(table(["field", "A", "B", "puts in doubt", "rule"], rows[:MAX_CHANGES]))
    if len(rows) > MAX_CHANGES:
        blocks.append(f"{plural(len(rows) - MAX_CHANGES, 'more row')} not listed.")
    return blocks


def _levels(document: Postmortem) -> list[str]:
    rows = [
        [name, level.state, text(level.where or "–"), text(level.why or "–")]
        for name, level in document.verdict.levels.items()
    ]
    return ["## Levels", table(["level", "state", "first fails at", "why"], rows)]


def _not_seen(document: Postmortem) -> list[str]:
    blocks = []
    for title, lines in (
        ("## What was not seen", document.not_seen),
        ("### Said by the traces themselves", document.findings),
    ):
        if lines:
            blocks += [title, "\n".join(f"- {block(line)}" for line in lines[:MAX_NOTES])]
            if len(lines) > MAX_NOTES:
                blocks.append(f"{len(lines) - MAX_NOTES:,} more.")
    return blocks


def _appendix(document: Postmortem) -> list[str]:
    found = document.appendix
    blocks = ["## Appendix", "### Reproduce", run_in(document)]
    blocks.append(fenced("\n".join(f"# {what}\n{command}" for what, command in found.commands)))
    blocks += ["### Identities", two_sides(found.identities)]
    if found.envelopes:
        shown = found.envelopes[:MAX_ENVELOPES]
        rows = [[code(name), code(one), code(other)] for name, one, other in shown]
        title = f"SHA-256 of {len(shown):,} of {plural(len(found.envelopes), 'envelope')}"
        blocks.append(fold(title, table(["request", "A", "B"], rows)))
    left_out = [*found.left_out, *_left_out(document)]
    if left_out:
        blocks += ["### Left out of this document", "\n".join(f"- {block(line)}" for line in left_out)]
    tool = document.verdict.tool_version
    blocks.append(
        f"Compared {text(document.verdict.created)} and written by rip {text(tool)} from"
        f" {code(document.place.result)}. It holds prompt and output text"
        f"{'' if document.has_text else ' as token ids'}; treat it as you treat the requests."
    )
    return blocks


def _left_out(document: Postmortem) -> list[str]:
    """What the HTML form shows and this one does not."""
    found = ["pictures with values: the HTML form has them"]
    if len(document.views) > 1:
        found.append(f"details of {plural(len(document.views) - 1, 'further sequence')}: likewise")
    if document.site_count:
        found.append(f"totals of {plural(document.site_count, 'site')}: likewise, or table site_totals")
    return found
