"""`rip envelope`: make, show and check the record of a request."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import BadInput, OutputFailed
from .envelope_import import import_
from .exit_codes import EXIT_FAILS, EXIT_HOLDS

if TYPE_CHECKING:
    from ..schemas.envelope import Envelope, Expected

REDACTIONS = ("text", "ids")
SHOWN_TEXT = 100
"""Characters of a prompt that `show` prints."""

app = typer.Typer(
    no_args_is_help=True,
    help="Make, show and check envelopes: the immutable records of requests that rip replays.",
)


app.command("import")(import_)


@app.command("create")
def create(
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="DIR|FILE.gguf|HUB-ID", help="Whose tokenizer and template make the ids."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="A prompt, taken as it is.")
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="The same, from a UTF-8 file.")
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option("--chat", metavar="TEXT", help="One user message, put through the chat template."),
    ] = None,
    messages: Annotated[
        Path | None, typer.Option("--messages", metavar="FILE.json", help="A JSON list of chat messages.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--id", help="Request id. [default: from the content]")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            "--sampling", metavar="KEY=VALUE", help="A sampling field, for example temperature=0. Repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="A .json file, or a .jsonl set to append to. [default: stdout]",
        ),
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(
            "--redact",
            metavar="|".join(REDACTIONS),
            help="Keep digests in place of what was asked. text: token ids stay, and it can be replayed. "
            "ids: token ids go too.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a .json file.")] = False,
) -> None:
    """Make an envelope from a prompt or chat messages: token ids from the real tokenizer, hashes filled in.

    \b
    Examples:
      rip envelope create --model ./SmolLM2 --chat "What is a tie in sampling?" --sampling temperature=0 \\
          --sampling max_tokens=64 -o request.json
      rip envelope create --model ./SmolLM2 --prompt-file long.txt --sampling seed=42 -o set.jsonl
    """
    from ..schemas.envelope import SET_SUFFIX
    from ..schemas.files import write_private
    from .console import check_output_file, stderr_console, tell
    from .prompt_options import asked_prompt, asked_sampling

    text, spoken = asked_prompt(prompt, prompt_file, chat, messages)
    asked = asked_sampling(sampling or [])
    if redact is not None and redact not in REDACTIONS:
        raise BadInput(f"--redact {redact}: no such choice", f"choose one of: {', '.join(REDACTIONS)}")
    if out is not None:
        _check_target(out)
        check_output_file(out, force or out.suffix == SET_SUFFIX)  # a set grows

    from ..experiments.model_identity import identified_envelope, identity_of
    from ..fingerprint.model.ref import resolve
    from ..replay.engines.model_files import load_local_tokenizer
    from ..replay.request.prompt import tokenize

    fingerprint = identity_of(model)
    tokenizer = load_local_tokenizer(resolve(model).path, str(fingerprint.flat()["model_sha256"]))
    ids = tokenize(tokenizer, text, spoken, None)
    if not ids:
        raise BadInput("the prompt has no tokens", "give a text that is not empty")
    envelope = identified_envelope(fingerprint, request_id, ids, text, spoken, asked)
    if redact is not None:
        envelope = envelope.redacted(keep_token_ids=redact == "text")
    if out is None:
        print(envelope.to_json(), end="")
        return
    if out.suffix == SET_SUFFIX:
        _append(out, envelope)
    else:
        write_private(out, envelope.to_json())
    tell(stderr_console(), f"Wrote {out}: {envelope.request_id}, {len(ids)} prompt tokens")


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to show.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="One complete JSON document per envelope, a line each.")
    ] = False,
    otel: Annotated[
        bool,
        typer.Option(
            "--otel", help="Its OpenTelemetry GenAI attributes (gen_ai.request.*), a JSON line each."
        ),
    ] = False,
) -> None:
    """Show envelopes: identity, prompt, sampling as asked, what is silent and what is unknown.

    \b
    Examples:
      rip envelope show request.json
      rip envelope show set.jsonl --json | head -1
    """
    from ..fingerprint.export.otel import attributes
    from ..schemas.base import exactly_representable
    from ..schemas.envelope import iter_request_set
    from .console import printable

    if as_json and otel:
        raise BadInput("--json and --otel name two formats", "leave out one of the two")
    shown = 0
    for envelope in iter_request_set(path):
        shown += 1
        if as_json or otel:
            lines = attributes(envelope) if otel else envelope.to_object()
            print(json.dumps(exactly_representable(lines), ensure_ascii=False))
            continue
        print(printable(f"{envelope.request_id}  (id {envelope.sha256()})"))
        for name, value in _described(envelope):
            print(printable(f"  {name:22} {value}"))
    if not shown:
        raise BadInput(
            f"{path}: an empty request set", "write one envelope per line (rip envelope create --help)"
        )


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to check.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|FILE.gguf|HUB-ID", help="Compare its hashes as well."),
    ] = None,
) -> None:
    """Check that envelopes are valid and complete enough to replay.

    Requests that were answered with an error when they were recorded are counted apart: rip replay passes
    over them. Exit code 0: all others are complete, and the model's hashes agree; 1: valid, but something is
    missing or differs, or every request was answered with an error; 2: a file or line is invalid.

    \b
    Examples:
      rip envelope check set.jsonl
      rip envelope check request.json --model ./SmolLM2
    """
    from ..experiments.model_identity import identity_of
    from ..replay.request.contract import refusals
    from ..replay.request.from_trace import was_refused
    from ..replay.request.identity import completeness, identity_differences
    from ..schemas.envelope import load_requests
    from .console import printable

    envelopes = load_requests(path)
    fingerprint = identity_of(model) if model else None
    faults = refused = 0
    for envelope in envelopes:
        if was_refused(envelope):
            refused += 1
            continue
        found = completeness(envelope)
        if fingerprint is not None:
            found += identity_differences(envelope, fingerprint)
            found += refusals(envelope, fingerprint)
        faults += bool(found)
        if unknown := envelope.unknown_fields():
            print(printable(f"{envelope.request_id}: note: unknown to rip, kept: {', '.join(unknown)}"))
        for finding in found:
            print(printable(f"{envelope.request_id}: {finding}"))
    apart = f", {refused} answered with an error: rip replay passes over them" if refused else ""
    print(f"{len(envelopes)} valid, {len(envelopes) - refused - faults} complete{apart}")
    raise typer.Exit(EXIT_FAILS if faults or refused == len(envelopes) else EXIT_HOLDS)


def _described(envelope: Envelope) -> Iterator[tuple[str, str]]:
    """What `show` says about an envelope: label and value."""
    from ..schemas.envelope import is_placeholder

    for field in ("model_artifact_sha256", "tokenizer_sha256", "chat_template_sha256"):
        value = getattr(envelope, field)
        yield field, "not stated" if value is None or is_placeholder(value) else value
    ids = envelope.prompt_token_ids
    yield "prompt", "no token ids" if ids is None else f"{len(ids)} token ids"
    text = envelope.prompt_text or json.dumps(envelope.messages or "", ensure_ascii=False).strip('"')
    if text:
        yield "asked", _short(text)
    for name, part in (("sampling", envelope.sampling), ("runtime", envelope.runtime)):
        stated = part.model_dump(exclude_none=True)
        yield name, ", ".join(f"{key}={value}" for key, value in stated.items()) or "silent"
    if envelope.expected is not None:
        yield "expected", _described_answer(envelope.expected)
    if envelope.redactions:
        yield "redacted", ", ".join(envelope.redactions)
    if envelope.unknown_fields():
        yield "unknown, kept", ", ".join(envelope.unknown_fields())


def _described_answer(expected: Expected) -> str:
    """What a recorded answer holds: ids, text, calls of tools, further samples."""
    from .console import counted

    calls, others = expected.tool_calls or [], expected.samples or []
    parts = [
        f"{len(expected.token_ids)} token ids" if expected.token_ids is not None else "no token ids",
        _short(json.dumps(expected.text, ensure_ascii=False)) if expected.text is not None else "no text",
        *([counted(len(calls), "tool call")] if calls else []),
        *([counted(len(others), "further sample")] if others else []),
    ]
    return ", ".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}…"


def _check_target(out: Path) -> None:
    from ..schemas.envelope import SET_SUFFIX

    if out.suffix not in (".json", SET_SUFFIX):
        raise BadInput(
            f"{out}: the name says neither a single envelope nor a set",
            "end it with .json, or with .jsonl to append to a set",
        )


def _append(path: Path, envelope: Envelope) -> None:
    """Add a line to a request set, which is created with mode 0600: the whole line or nothing."""
    from ..schemas.base import exactly_representable
    from ..schemas.envelope import iter_request_set

    if path.exists() and any(other.request_id == envelope.request_id for other in iter_request_set(path)):
        raise BadInput(
            f"{path} holds a request {envelope.request_id!r} already", "choose another one with --id"
        )
    line = json.dumps(exactly_representable(envelope.to_object()), ensure_ascii=False).encode() + b"\n"
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # someone wrote the last line without its end
            try:
                written = file.write(line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)
                if not end:
                    path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise OutputFailed(
            f"{path} could not be written: {error.strerror}", "check the folder and free space"
        ) from None
