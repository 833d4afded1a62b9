"""`rip envelope import`: envelopes from what others recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from ..schemas.errors import BadInput

FORMATS = ("auto", "openai", "sglang")
SHOWN_LINES = 8
"""Lines, fields and ids of one kind that are named; the rest is counted."""


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="JSONL files, or request dumps of SGLang (.pkl).")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="SET.jsonl", help="The request set to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="DIR|FILE.gguf|HUB-ID", help="The model that answered: fills in its hashes."
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="|".join(FORMATS), help="What the files hold. auto: looks."),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the request set.")] = False,
) -> None:
    """Make a request set from recorded requests: OpenAI batches and logs, SGLang dumps and logs.

    Read are lines of a batch's input and output (joined by custom_id), of {"request": …, "response": …},
    plain request bodies, SGLang's JSON request log, and the pickle files of --dump-requests-folder and
    --crash-dump-folder. Pickles are read as data: nothing in them is imported or run.

    \b
    Examples:
      rip envelope import batch_input.jsonl batch_output.jsonl -o set.jsonl
      rip envelope import crash_dump_2026-11-30.pkl --model ./my-model -o set.jsonl
    """
    from ..experiments.model_identity import identity_fields, identity_of
    from ..fingerprint.untrusted.redact import is_secret
    from ..replay.proxy.imported import Format, import_files
    from ..replay.request.from_trace import was_refused
    from ..schemas.base import exactly_representable
    from ..schemas.envelope import SET_SUFFIX
    from ..schemas.files import write_private
    from .console import check_output_file, counted, stderr_console, tell

    if form not in FORMATS:
        raise BadInput(f"--format {form}: no such choice", f"choose one of: {', '.join(FORMATS)}")
    if out.suffix != SET_SUFFIX:
        raise BadInput(f"{out}: not the name of a request set", "end it with .jsonl")
    check_output_file(out, force)
    identity = identity_fields(identity_of(model)) if model is not None else {}
    found = import_files(files, cast("Format", form), identity, is_secret)
    if not found.envelopes:
        raise BadInput(
            f"{files[0]}: no request that rip can read", "give requests to completions or chat completions"
        )
    lines = [
        json.dumps(exactly_representable(envelope.to_object()), ensure_ascii=False)
        for envelope in found.envelopes
    ]
    write_private(out, "\n".join(lines) + "\n")
    answered = sum(envelope.expected is not None for envelope in found.envelopes)
    console = stderr_console()
    made = counted(len(found.envelopes), "envelope")
    tell(console, f"Wrote {out}: {made}, {answered} with a whole answer")
    refused = sum(was_refused(envelope) for envelope in found.envelopes)
    if refused:
        tell(console, f"{refused} answered with an error: rip replay passes over them")
    for where, unread in list(found.unread.items())[:SHOWN_LINES]:
        tell(console, f"{where}: kept as stated, though nothing can apply it: {', '.join(unread)}")
    if found.unread:
        fields = f"{counted(len(found.unread), 'request')} with a sampling field that nothing can apply"
        examples = dict.fromkeys(one for unread in found.unread.values() for one in unread)
        tell(console, f"{fields}: {', '.join(list(examples)[:SHOWN_LINES])}", style="yellow")
    if found.unclaimed:
        left = (
            f"{counted(len(found.unclaimed), 'answer')} left out, to requests that are in none of the files"
        )
        tell(console, f"{left}: {', '.join(found.unclaimed[:SHOWN_LINES])}", style="yellow")
    if found.passed_over:
        tell(console, f"passed over, because they are no requests to (chat) completions: {found.passed_over}")
