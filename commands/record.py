"""`rip record`: a recording proxy in front of an inference server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import REDACTIONS, check_choice
from ..schemas.errors import BadInput, stated_option
from ..schemas.exit_codes import EXIT_HOLDS
from .console import counted, print_sentence, shown_progress, stderr_console
from .lane_options import model_option

if TYPE_CHECKING:
    from rich.console import Console

    from ..experiments.recording import Listening
    from ..replay.proxy.recorder import Recorder

MEGABYTE = 1_000_000
EXAMPLES = """\b
Examples:
  rip record --upstream http://127.0.0.1:8000 -o recorded
  rip record --upstream http://10.0.0.7:8000 --listen 0.0.0.0:8100 --rate 0.1 --rotate-mb 256 -o recorded
  rip record --upstream http://127.0.0.1:8000 --redact text --model ./my-model -o monday.jsonl
"""


def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The inference server, for example vLLM.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FOLDER|FILE.jsonl",
            help="Where envelopes are written. A folder takes any number of recordings; a file must be new.",
        ),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address where clients connect; port 0 takes a free one.")
    ] = "127.0.0.1:8100",
    rate: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the requests to record, 0 to 1.")
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", help="With --rate: seed of the choice; the same N chooses the same request ids."
        ),
    ] = 0,
    rotate_mb: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Start NAME.000001.jsonl, … after N megabytes. [default: one file]"
        ),
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(REDACTIONS),
            help="Keep digests in place of text, and no raw answers. text: token ids stay. ids: they go too.",
        ),
    ] = None,
    model: Annotated[
        str | None, model_option("The model that the server serves; its hashes go into every envelope.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw/--no-raw", help="Also keep the bytes of every answer, compressed.")
    ] = True,
    max_record_mb: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Longest answer that is recorded; longer ones are only forwarded."
        ),
    ] = 64,
    passive: Annotated[
        bool, typer.Option("--passive", help="Add nothing to requests; token ids may then be missing.")
    ] = False,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable that holds the key used to query the server's version and model. "
            "Clients' requests carry their own.",
        ),
    ] = None,
) -> None:
    """Forward everything to an OpenAI-compatible server, and record requests with their answers as envelopes.

    Clients get what they would get without it. Completions and chat completions are recorded: token ids and
    log-probabilities are requested where the server is known to support that, and removed from what clients
    get. Keys, cookies and Authorization are never kept. Ctrl-C stops it.
    """
    from ..experiments.recording import RecordingRequest, record_traffic

    if not 0 <= rate <= 1:
        raise BadInput(
            "not a share", "give a number from 0 to 1, for example 0.1", stated_option("rate", rate)
        )
    request = RecordingRequest(
        upstream,
        out,
        _address(listen),
        rate,
        seed,
        rotate_bytes=None if rotate_mb is None else rotate_mb * MEGABYTE,
        redact=None if redact is None else check_choice("redact", redact, REDACTIONS),
        model=model,
        keep_raw=raw,
        longest_bytes=max_record_mb * MEGABYTE,
        passive=passive,
        api_key_env=api_key_env,
    )
    console = stderr_console()
    share = f" {rate:g} of the requests (seed {seed})" if rate < 1 else ""

    def print_listening(proxy: Listening) -> None:
        progress.stop()
        print_sentence(
            console, f"listening on {proxy.address} for {proxy.upstream}; recording{share} to {proxy.path}"
        )

    with shown_progress(console) as progress:
        record_traffic(request, progress, print_listening, lambda recorder: _print_summary(console, recorder))
    raise typer.Exit(EXIT_HOLDS)


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\[?([^\[\]\s]+?)\]?:([0-9]{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise BadInput("not HOST:PORT", "for example --listen 127.0.0.1:8100", stated_option("listen", text))
    return match[1], int(match[2])


def _print_summary(console: Console, recorder: Recorder) -> None:
    """What was forwarded and what was recorded."""
    counts, written = recorder.counts, recorder.store.written
    requests = counted(counts.passed, "request")
    print_sentence(
        console,
        f"{requests} forwarded, {counts.generating} of them for completions; {counts.taken} chosen to record",
    )
    envelopes = f"{counted(written.envelopes, 'envelope')} of {counted(written.calls, 'request')}"
    print_sentence(console, f"{envelopes} written to {recorder.store.path.parent}")
    for count, what in (
        (counts.refused, "answered with an error"),
        (counts.broken, "aborted by the server"),
        (counts.disconnected, "cancelled by the client"),
        (counts.unreachable, "not answered by the server"),
        (counts.too_large, "too large to record, or more than memory holds"),
        (written.unrecordable, "without a prompt that an envelope can hold"),
    ):
        if count:
            print_sentence(console, f"  {count} {what}")
    for reason, count in written.without_ids.items():
        print_sentence(console, f"  {count} recorded without token ids: {reason}")
