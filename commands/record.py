"""`rip record`: a recording proxy in front of an inference server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import BadInput, EngineFailed, MissingPackage
from .exit_codes import EXIT_HOLDS

if TYPE_CHECKING:
    from ..fingerprint.remote.address import Server
    from ..replay.proxy.call import Upstream
    from ..replay.proxy.recorder import Recorder
    from ..schemas.fingerprint import Fingerprint

REDACTIONS = ("text", "ids")
MEGABYTE = 1_000_000
RUNTIME_FACTS = {
    "engine": ("engine", "name"),
    "engine_version": ("engine", "version"),
    "torch_version": ("frameworks", "torch"),
    "tensor_parallel_size": ("parallelism", "tensor_parallel_size"),
    "attention_backend": ("engine", "attention_backend"),
    "quantization": ("model", "quantization_method"),
    "dtype": ("engine", "dtype"),
}
"""Field of an envelope's runtime → section and field of a fingerprint."""


def record(
    upstream: Annotated[
        str, typer.Option("--upstream", metavar="URL", help="The inference server, for example of vLLM.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FOLDER|FILE.jsonl",
            help="Where envelopes go. A folder takes one recording after another; a file must be new.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where clients connect; port 0 takes a free one."),
    ] = "127.0.0.1:8100",
    rate: Annotated[
        float, typer.Option("--rate", metavar="SHARE", help="Share of the requests to record, 0 to 1.")
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="With --rate: which requests; the same N chooses the same ids."
        ),
    ] = 0,
    rotate_mb: Annotated[
        int | None,
        typer.Option("--rotate-mb", metavar="N", min=1, help="Begin NAME.000001.jsonl, … after N megabytes."),
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(
            "--redact",
            metavar="|".join(REDACTIONS),
            help="Keep digests in place of text, and no raw answers. text: token ids stay. ids: they go too.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR|FILE.gguf|HUB-ID",
            help="The model that the server serves: its hashes go into every envelope.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw/--no-raw", help="Also keep the bytes of every answer, compressed.")
    ] = True,
    max_record_mb: Annotated[
        int,
        typer.Option(
            "--max-record-mb",
            metavar="N",
            min=1,
            help="Longest answer that is kept; the rest is passed on only.",
        ),
    ] = 64,
    passive: Annotated[
        bool,
        typer.Option("--passive", help="Add nothing to requests, though token ids may then be missing."),
    ] = False,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env",
            metavar="NAME",
            help="The environment variable that holds a key for asking the server what it is. "
            "Requests of clients carry their own.",
        ),
    ] = None,
) -> None:
    """Stand in front of an OpenAI-compatible server, pass everything on, and record requests as envelopes.

    Clients get what they would get without it. Completions and chat completions are recorded with their
    answers: token ids and log-probabilities are asked for where the server is known to give them, and taken
    out of what clients see. Keys, cookies and Authorization are never kept. Ctrl-C ends it.

    \b
    Examples:
      rip record --upstream http://127.0.0.1:8000 -o recorded
      rip record --upstream http://10.0.0.7:8000 --listen 0.0.0.0:8100 --rate 0.1 --rotate-mb 256 -o recorded
      rip record --upstream http://127.0.0.1:8000 --redact text --model ./my-model -o monday.jsonl
    """
    from .console import stderr_console, tell
    from .server_key import server_key

    host, port = _address(listen)
    if not 0 <= rate <= 1:
        raise BadInput(f"--rate {rate:g}: not a share", "give a number from 0 to 1, for example 0.1")
    if redact is not None and redact not in REDACTIONS:
        raise BadInput(f"--redact {redact}: no such choice", f"choose one of: {', '.join(REDACTIONS)}")
    console = stderr_console()

    def say(sentence: str) -> None:
        tell(console, sentence)

    from ..fingerprint.remote.address import Server, checked
    from ..fingerprint.untrusted.redact import is_secret

    url = checked(upstream)
    server = Server(url, server_key(url, api_key_env))
    try:
        from ..replay.proxy.serve import listening_socket, serve
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the package {error.name!r} is not installed", "pip install 'rip-forensics[record]'"
        ) from None
    from ..replay.proxy.call import Upstream
    from ..replay.proxy.recorder import Recorder
    from ..replay.proxy.store import Place, Store

    place = Place.of(out)
    identity = _identity(model)
    listener = listening_socket(host, port)
    with listener:
        store = Store(
            place,
            identity,
            is_secret,
            say,
            rotate_bytes=None if rotate_mb is None else rotate_mb * MEGABYTE,
            redact=redact,
            keep_raw=raw,
        )
        recorder = Recorder(store, Upstream(url), rate, seed, max_record_mb * MEGABYTE, passive, say)
        bound = listener.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        share = f" {rate:g} of the requests (seed {seed})" if rate < 1 else ""
        address = f"http://{shown}:{bound[1]}"

        def begins() -> None:
            say(f"listening on {address} for {url}; recording{share} to {store.path}")

        try:
            serve(listener, url, recorder, lambda: _identify(server, store.keep_document), begins)
        finally:
            store.close()
            _summarise(recorder, say)
    raise typer.Exit(EXIT_HOLDS)


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\[?([^\[\]\s]+?)\]?:([0-9]{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise BadInput(f"--listen {text}: not HOST:PORT", "for example --listen 127.0.0.1:8100")
    return match[1], int(match[2])


def _identity(model: str | None) -> dict[str, Any]:
    """The hashes of a model, as fields of an envelope."""
    if model is None:
        return {}
    from ..experiments.model_identity import identity_fields, identity_of

    return identity_fields(identity_of(model))


def _identify(server: Server, keep_document: Callable[[str, str], None]) -> Upstream | None:
    """What the server tells of itself; None while it does not answer."""
    from ..fingerprint.collect import collect
    from ..replay.proxy.call import Upstream

    try:
        found = collect(server=server)
    except EngineFailed:
        return None
    told = {name: _told(found, *place) for name, place in RUNTIME_FACTS.items()}
    runtime = {name: value for name, value in told.items() if value is not None}
    engine = runtime.get("engine")
    digest = found.root_digest
    keep_document(f"fingerprint-{digest[:12]}.json", found.to_json())
    return Upstream(server.url, engine if isinstance(engine, str) else None, runtime, digest)


def _told(fingerprint: Fingerprint, section: str, field: str) -> str | int | None:
    fact = fingerprint.get(section, field)
    value = None if fact is None or fact.unavailable is not None else fact.value
    if field == "tensor_parallel_size":
        return value if type(value) is int else None
    return value if isinstance(value, str) else None


def _summarise(recorder: Recorder, say: Callable[[str], None]) -> None:
    """What went by and what was kept, for people."""
    from .console import counted

    counts, written = recorder.counts, recorder.store.written
    say(
        f"{counted(counts.passed, 'request')} passed on, {counts.generating} of them for completions; "
        f"{counts.taken} chosen for recording"
    )
    made = f"{counted(written.envelopes, 'envelope')} of {counted(written.calls, 'request')}"
    say(f"{made} written to {recorder.store.path.parent}")
    for count, what in (
        (counts.refused, "answered with an error"),
        (counts.broken, "broken off by the upstream"),
        (counts.disconnected, "given up by the client"),
        (counts.unreachable, "not answered by the upstream"),
        (counts.too_large, "too large to record, or more than memory holds"),
        (written.unrecordable, "without a prompt that an envelope can hold"),
    ):
        if count:
            say(f"  {count} {what}")
    for why, count in written.without_ids.items():
        say(f"  {count} recorded without token ids: {why}")
