"""`rip envelope`: make, import, show and check the records of requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import IMPORT_FORMATS, REDACTIONS, check_choice
from ..schemas.errors import BadInput, printable
from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS
from ..schemas.files import check_output_file, write_private
from .completion import sampling_keys
from .console import counted, print_sentence, shown_progress, stderr_console
from .lane_options import model_option

if TYPE_CHECKING:
    from rich.console import Console

    from ..replay.proxy.imported import Imported
    from ..schemas.envelope import Envelope, Expected

SHOWN_TEXT = 100
"""Characters of a prompt that `show` prints."""
SHOWN_ITEMS = 8
"""Lines, fields and ids of one kind that `import` names; the rest is counted."""
CREATE_EXAMPLES = """\b
Examples:
  rip envelope create --model ./SmolLM2 --chat "What is a tie in sampling?" --sampling temperature=0 \\
      --sampling max_tokens=64 -o request.json
  rip envelope create --model ./SmolLM2 --prompt-file long.txt --sampling seed=42 -o set.jsonl
  rip envelope create --model ./SmolLM2 --from prompts.txt --sampling temperature=0 -o set.jsonl
"""
IMPORT_EXAMPLES = """\b
Examples:
  rip envelope import batch_input.jsonl batch_output.jsonl -o set.jsonl
  rip envelope import crash_dump_2026-11-30.pkl --model ./my-model -o set.jsonl
"""
SHOW_EXAMPLES = """\b
Examples:
  rip envelope show request.json
  rip envelope show set.jsonl --json | head -1
"""
CHECK_EXAMPLES = """\b
Examples:
  rip envelope check set.jsonl
  rip envelope check request.json --model ./SmolLM2
"""

app = typer.Typer(
    name="envelope",
    epilog="\b\nExamples:\n  rip envelope create --help\n  rip envelope show request.json",
    no_args_is_help=True,
    help="Make, import, show and check envelopes: the immutable records of requests that rip replays.",
)


@dataclass
class _Made:
    """What was made, for the last line."""

    envelopes: int = 0
    tokens: int = 0
    first: str = ""

    def count(self, envelope: Envelope) -> Envelope:
        """Count one and hand it on."""
        self.first = self.first or envelope.request_id
        self.envelopes += 1
        self.tokens += len(envelope.prompt_token_ids or ())
        return envelope


@app.command("create", epilog=CREATE_EXAMPLES, short_help="Make an envelope from a prompt or messages.")
def create(
    model: Annotated[str, model_option("The model whose tokenizer and chat template make the token ids.")],
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="A prompt, taken as it is.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, from a UTF-8 file.")
    ] = None,
    chat: Annotated[
        str | None, typer.Option(metavar="TEXT", help="One user message, put through the chat template.")
    ] = None,
    messages: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="A JSON list of chat messages.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE.txt|.jsonl",
            help="Many: a text with a prompt a line, or lines with prompt, chat or messages, and perhaps id.",
        ),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option("--id", help="Request id. [default: a digest of the content]")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A sampling field, for example temperature=0. Repeatable.",
            autocompletion=sampling_keys,
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
            metavar="|".join(REDACTIONS),
            help="Keep digests in place of the prompt. text: token ids stay, so it can be replayed. "
            "ids: token ids are removed too.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a .json file.")] = False,
) -> None:
    """Make an envelope from a prompt or chat messages: token ids by the real tokenizer, hashes filled in."""
    from ..experiments.new_envelope import (
        append_envelopes,
        new_envelopes,
        read_prompt,
        read_prompts,
        read_sampling,
    )
    from ..schemas.envelope import SET_SUFFIX

    if prompts is not None:
        if any(one is not None for one in (prompt, prompt_file, chat, messages, request_id)):
            raise BadInput("--from takes the prompts and ids of a file", "leave out the other ones")
        if out is None or out.suffix != SET_SUFFIX:
            raise BadInput("--from makes a request set", "add -o SET.jsonl")
        for _ in read_prompts(prompts):  # a broken line shows before the model is read
            pass
        stated_prompts = read_prompts(prompts)
    else:
        one = read_prompt(prompt, prompt_file, chat, messages)
        stated_prompts = iter([replace(one, request_id=request_id)])
    stated_sampling = read_sampling(sampling or [])
    redaction = None if redact is None else check_choice("redact", redact, REDACTIONS)
    if out is not None:
        if out.suffix not in (".json", SET_SUFFIX):
            raise BadInput(
                f"{out}: neither the name of an envelope nor of a request set",
                "end it in .json, or in .jsonl to append to a set",
            )
        check_output_file(out, force or out.suffix == SET_SUFFIX)  # a set grows
    console = stderr_console()
    made = _Made()
    keep_ids = redaction == "text"
    with shown_progress(console) as progress:
        envelopes = (
            envelope if redaction is None else envelope.redacted(keep_ids)
            for envelope in map(made.count, new_envelopes(model, stated_prompts, stated_sampling, progress))
        )
        if out is not None and out.suffix == SET_SUFFIX:
            append_envelopes(out, envelopes)
        else:
            [first] = envelopes
            if out is None:
                print(first.to_json(), end="")
                return
            write_private(out, first.to_json())
    what = made.first if made.envelopes == 1 else counted(made.envelopes, "envelope")
    print_sentence(console, f"Wrote {out}: {what}, {made.tokens} prompt tokens")


@app.command("import", epilog=IMPORT_EXAMPLES, short_help="Make a request set from recorded requests.")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="JSONL files, logs, or request dumps of SGLang (.pkl)."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="SET.jsonl", help="The request set to write.")],
    model: Annotated[str | None, model_option("The model that answered; its hashes are filled in.")] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="|".join(IMPORT_FORMATS), help="Format of the files. auto: detect it."
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the request set.")] = False,
) -> None:
    """Make a request set from recorded requests: OpenAI batches and logs, logs and dumps of engines.

    It reads lines of a batch's input and output (joined by custom_id), of {"request": …, "response": …},
    plain request bodies, vLLM's log with --enable-log-requests, SGLang's JSON request log, and the pickle
    files of --dump-requests-folder and --crash-dump-folder. Pickles are read as data: nothing in them is
    imported or run.
    """
    from ..experiments.model_identity import identity_fields, identity_of
    from ..experiments.new_envelope import envelope_line
    from ..replay.proxy.imported import import_files
    from ..schemas.envelope import SET_SUFFIX
    from ..schemas.redact import is_secret

    read_as = check_choice("format", form, IMPORT_FORMATS)
    if out.suffix != SET_SUFFIX:
        raise BadInput(f"{out}: not the name of a request set", "end it in .jsonl")
    check_output_file(out, force)
    console = stderr_console()
    identity: dict[str, str] = {}
    if model is not None:
        with shown_progress(console) as progress:
            identity = identity_fields(identity_of(model, progress))
    found = import_files(files, read_as, identity, is_secret)
    if not found.envelopes:
        raise BadInput(
            f"{files[0]}: no request that rip can read", "give requests to completions or chat completions"
        )
    write_private(out, "".join(map(envelope_line, found.envelopes)))
    _print_imported(console, found, out)


@app.command("show", epilog=SHOW_EXAMPLES, short_help="Show what envelopes hold.")
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
    """Show envelopes: identity, prompt, stated sampling fields, and fields unknown to rip."""
    from ..fingerprint.export import otel_attributes
    from ..schemas.base import exactly_representable
    from ..schemas.envelope import iter_request_set

    if as_json and otel:
        raise BadInput("--json and --otel are two formats", "leave out one of the two")
    shown = 0
    for envelope in iter_request_set(path):
        shown += 1
        if as_json or otel:
            lines = otel_attributes(envelope) if otel else envelope.to_object()
            print(json.dumps(exactly_representable(lines), ensure_ascii=False))
            continue
        print(printable(f"{envelope.request_id}  (id {envelope.sha256()})"))
        for name, value in _rows(envelope):
            print(printable(f"  {name:22} {value}"))
    if not shown:
        raise BadInput(
            f"{path}: an empty request set", "write one envelope per line (rip envelope create --help)"
        )


@app.command("check", epilog=CHECK_EXAMPLES, short_help="Check that envelopes can be replayed.")
def check(
    path: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to check.")],
    model: Annotated[str | None, model_option("Also compare the hashes of this model.")] = None,
) -> None:
    """Check that envelopes are valid and complete enough to replay.

    Requests that were answered with an error when recorded are counted separately: rip replay skips them.
    Exit code 0: all others are complete, and the model's hashes agree; 1: valid, but something is missing or
    differs, or every request was answered with an error; 2: a file or line is invalid.
    """
    from ..experiments.model_identity import identity_of
    from ..replay.request.contract import refusals
    from ..replay.request.findings import sentence
    from ..replay.request.from_trace import was_refused
    from ..replay.request.identity import completeness, identity_differences
    from ..schemas.envelope import load_requests

    envelopes = load_requests(path)
    fingerprint = None
    if model is not None:
        with shown_progress(stderr_console()) as progress:
            fingerprint = identity_of(model, progress)
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
            print(
                printable(f"{envelope.request_id}: note: kept, though unknown to rip: {', '.join(unknown)}")
            )
        for finding in found:
            print(printable(f"{envelope.request_id}: {sentence(finding)}"))
    if fingerprint is not None and any(envelope.messages for envelope in envelopes):
        from ..fingerprint.present.warnings import clock_warning

        if clock := clock_warning(fingerprint):
            print(printable(f"warning: {clock}"), file=sys.stderr)
    skipped = f", {refused} answered with an error: rip replay skips them" if refused else ""
    print(f"{len(envelopes)} valid, {len(envelopes) - refused - faults} complete{skipped}")
    raise typer.Exit(EXIT_FAILS if faults or refused == len(envelopes) else EXIT_HOLDS)


def _rows(envelope: Envelope) -> Iterator[tuple[str, str]]:
    """What `show` prints of an envelope: label and value."""
    from ..schemas.envelope import is_placeholder

    for field in ("model_artifact_sha256", "tokenizer_sha256", "chat_template_sha256"):
        value = getattr(envelope, field)
        yield field, "not stated" if value is None or is_placeholder(value) else value
    ids = envelope.prompt_token_ids
    yield "prompt", "no token ids" if ids is None else f"{len(ids)} token ids"
    text = envelope.prompt_text or json.dumps(envelope.messages or "", ensure_ascii=False).strip('"')
    if text:
        yield "text", _short(text)
    for name, part in (("sampling", envelope.sampling), ("runtime", envelope.runtime)):
        stated = part.model_dump(exclude_none=True)
        yield name, ", ".join(f"{key}={value}" for key, value in stated.items()) or "not stated"
    if envelope.expected is not None:
        yield "expected", _answer_summary(envelope.expected)
    if envelope.redactions:
        yield "redacted", ", ".join(envelope.redactions)
    if envelope.unknown_fields():
        yield "unknown, kept", ", ".join(envelope.unknown_fields())


def _answer_summary(expected: Expected) -> str:
    """What a recorded answer holds: ids, text, tool calls, further samples."""
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


def _print_imported(console: Console, found: Imported, out: Path) -> None:
    """What was written, what nothing can apply, and what was left out."""
    from ..replay.request.from_trace import was_refused

    answered = sum(envelope.expected is not None for envelope in found.envelopes)
    envelopes = counted(len(found.envelopes), "envelope")
    print_sentence(console, f"Wrote {out}: {envelopes}, {answered} with a complete answer")
    if refused := sum(map(was_refused, found.envelopes)):
        print_sentence(console, f"{refused} answered with an error: rip replay skips them")
    for where, unread in list(found.unread.items())[:SHOWN_ITEMS]:
        print_sentence(console, f"{where}: kept, though no engine can apply it: {', '.join(unread)}")
    if found.unread:
        requests = f"{counted(len(found.unread), 'request')} with a sampling field that no engine can apply"
        fields = dict.fromkeys(field for unread in found.unread.values() for field in unread)
        print_sentence(console, f"{requests}: {', '.join(list(fields)[:SHOWN_ITEMS])}", style="yellow")
    if found.unclaimed:
        answers = f"{counted(len(found.unclaimed), 'answer')} left out, without a request in any of the files"
        print_sentence(console, f"{answers}: {', '.join(found.unclaimed[:SHOWN_ITEMS])}", style="yellow")
    if found.passed_over:
        print_sentence(console, f"left out, because not for (chat) completions: {found.passed_over}")
