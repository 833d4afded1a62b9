"""Renders a postmortem as Markdown: for a ticket, a pull request, a wiki."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings.interpretation import how_to_read
from ..findings.labels import label
from ..findings.sentence import sentence
from ..format import count, number, plain, plural, request_name
from ..verdict import is_cut
from .compared import AGREEMENT
from .markdown_pair import pair_blocks
from .markdown_text import block, code, fenced, fold, table, text
from .markdown_top import MAX_FACT, opening, runs, split, timeline, two_sides
from .pair_words import first_cause

if TYPE_CHECKING:
    from .model import Postmortem, Proof
    from .rows import Pair

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
        *_causes(document),
        *timeline(document),
        *runs(document),
        *_texts(document),
        *_sequences(document),
        *(block for view in document.views[:1] for block in pair_blocks(document, view)),
        *_patterns(document),
        *_changes(document),
        *_not_seen(document),
        *_appendix(document),
    ]
    return "\n\n".join(blocks) + "\n"


def _causes(document: Postmortem) -> list[str]:
    causes = document.verdict.causes
    if not causes and not document.proofs:
        return []
    blocks = ["## Causes"] if causes else ["## Experiments"]
    if len(causes) > 1:
        blocks.append(
            "Ranked by the evidence in the two traces; a command or an experiment confirms, not this list."
        )
    for rank, cause in enumerate(causes, 1):
        blocks.append(f"### {rank}. {text(label(cause))} ({cause.confidence} confidence)")
        lines = [f"- {block(sentence(one))}" for one in cause.evidence]
        if cause.missing:
            lines.append(f"- Missing evidence: {'; '.join(text(sentence(one)) for one in cause.missing)}")
        command = None if cause.confirm is None else document.place.command(cause.confirm)
        if command is not None and plain(command) == document.next_step.command:
            lines.append("- To confirm or refute: the command under Next.")
            command = None
        if lines:
            blocks.append("\n".join(lines))
        if command is not None:
            blocks += ["To confirm or refute:", fenced(command)]
            if reading := how_to_read(cause):
                blocks.append(f"How to read it: {text(reading)}.")
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
    blocks += ["## Agreement", AGREEMENT]
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
    return [*blocks, *(block(sentence(note)) for note in agreement.notes)]


def _sequences(document: Postmortem) -> list[str]:
    if document.pair_count < 2:
        return []
    shown = document.pairs[:MAX_PAIRS]
    diagnosed = any(pair.causes for pair in shown)
    columns: list[tuple[str, bool, list[str]]] = [
        ("request", False, [code(pair.request_id) for pair in shown]),
        ("sample", True, [str(pair.sample) for pair in shown if any(one.sample for one in shown)]),
        ("positions", True, [count(pair.positions) for pair in shown]),
        ("first divergent step", True, [_parts_at(pair) for pair in shown]),
        ("rows differing", True, [count(pair.rows_differing) for pair in shown]),
        (f"largest {document.kind} difference", True, [number(pair.max_logit_diff) for pair in shown]),
        (
            "cause ranked first",
            False,
            [text(first_cause(pair, document)) for pair in shown if diagnosed],
        ),
    ]
    columns = [column for column in columns if set(column[2]) - {"0", "–"}]
    rows = [list(row) for row in zip(*(cells for _, _, cells in columns), strict=True)]
    right = [index for index, (_, is_number, _) in enumerate(columns) if is_number]
    blocks = ["## Sequences", table([head for head, _, _ in columns], rows, right)]
    if document.pair_count > len(shown):
        blocks.append(f"{plural(document.pair_count - len(shown), 'more sequence')} not listed.")
    return blocks


def _parts_at(pair: Pair) -> str:
    if pair.first_position is None:
        return "–"
    return f"prompt, position {pair.first_position}" if pair.first_step is None else str(pair.first_step)


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
    if not document.rules:
        return []
    blocks = ["## Environment changes"]
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


def _not_seen(document: Postmortem) -> list[str]:
    lines = [*document.not_seen, *document.findings]
    if not lines:
        return []
    shown = "\n".join(f"- {block(line)}" for line in lines[:MAX_NOTES])
    more = [f"{len(lines) - MAX_NOTES:,} more."] if len(lines) > MAX_NOTES else []
    return ["## What was not seen", shown, *more]


def _appendix(document: Postmortem) -> list[str]:
    found = document.appendix
    blocks = ["## To reproduce"]
    blocks.append(fenced("\n".join(f"# {what}\n{command}" for what, command in found.commands)))
    differing, equal = split(found.identities)
    other, alike = split([(f"request {name}", a, b) for name, a, b in found.envelopes[:MAX_ENVELOPES]])
    lines = [
        f"Equal in both: {' · '.join(f'{text(name)} {code(value)}' for name, value in [*equal, *alike])}"
    ]
    if (hidden := len(found.envelopes) - MAX_ENVELOPES) > 0:
        lines.append(f"{plural(hidden, 'more request')} not listed.")
    differing += other
    tables = [two_sides(differing)] if differing else []
    blocks.append(fold("Digests (SHA-256) of traces, model and requests", *tables, *lines))
    left_out = "; ".join(text(line) for line in [*found.left_out, *_left_out(document)])
    tool = document.verdict.tool_version
    blocks.append(
        f"Compared {text(document.verdict.created)} and written by rip {text(tool)} from"
        f" {code(document.place.result)}. It holds prompt and output text"
        f"{'' if document.has_text else ' as token ids'}; treat it as you treat the requests."
        f" Not in it: {left_out}."
    )
    return blocks


def _left_out(document: Postmortem) -> list[str]:
    """What the HTML form shows and this one does not."""
    found = ["pictures with values"]
    if len(document.views) > 1:
        found.append(f"details of {plural(len(document.views) - 1, 'further sequence')}")
    if document.site_count:
        found.append(f"totals of {plural(document.site_count, 'site')}")
    return [*found[:-1], f"{found[-1]} (the HTML form has them)"]
