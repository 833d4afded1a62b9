"""`rip fingerprint`: what an environment, a running process or a server is, as facts with their sources."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack, cast

import typer

from ..schemas.errors import BadInput
from .drift_options import ANY, STDOUT, AsJson, DriftOptions, FailOn, Html, Ignore, Markdown, report_drift

if TYPE_CHECKING:
    from rich.console import Console

    from ..fingerprint.model.read_options import Strength
    from ..fingerprint.model.ref import ModelRef
    from ..fingerprint.remote.address import Server
    from ..schemas.fingerprint import Fingerprint

STRENGTHS = ("verified", "sampled", "claimed")


class _Depth(TypedDict):
    """How a model is read."""

    strength: Strength
    fast: bool


def fingerprint(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="DIR|HF-ID|FILE.gguf", help="Also read this model; its files are hashed."
        ),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid",
            metavar="N",
            help="Read this running process from outside, in place of rip's own environment.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Ask this server; only questions that change nothing."),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env", metavar="NAME", help="The environment variable that holds the key of --url."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write here instead of standard output (-).")
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Only the thirteen keys, without sources.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="BASE.json",
            help="Compare with this fingerprint: say what changed; exit 1 if anything did.",
        ),
    ] = None,
    fail_on: FailOn = ANY,
    ignore: Ignore = None,
    as_json: AsJson = False,
    markdown: Markdown = None,
    html: Html = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--read",
            metavar="FILE",
            help="Take this recorded fingerprint, or pasted text, in place of reading the machine.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="cyclonedx|in-toto", help="Write it in this format: a BOM, or a statement."
        ),
    ] = None,
    strength: Annotated[
        str,
        typer.Option(
            "--strength",
            metavar="verified|sampled|claimed",
            help="How much of the weights is read: all bytes, windows of every tensor, or headers only "
            "(digests are then what the Hugging Face cache claims).",
        ),
    ] = "verified",
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Read all bytes, but for the tensors' BLAKE3 digests only: no SHA-256."),
    ] = False,
    hash_ids: Annotated[
        bool,
        typer.Option(
            "--hash-ids",
            help="Replace GPU UUIDs, serial numbers and host names by digests, so that it can be shared.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Read an environment: packages, loaded libraries, determinism variables, GPUs, CPU, OS, a model's files.

    By default that of this machine and this Python; with --pid that of a running engine, as its process has
    it; with --url what a server tells of itself. Every fact has a value and its source, or says why it is
    unavailable. Nothing is changed, and secrets are not kept.

    \b
    Examples:
      rip fingerprint --model ./my-model -o base.json
      rip fingerprint --model ./my-model --against base.json
      rip fingerprint --pid 4242 -o replica-7.json
      rip fingerprint --url http://127.0.0.1:8000 --api-key-env VLLM_API_KEY
      rip fingerprint --read pasted.txt -o incident.json
    """
    from ..fingerprint.load import from_bytes
    from ..fingerprint.model.ref import resolve
    from ..fingerprint.present.findings import list_warnings
    from ..schemas.files import write_private
    from .console import printable, stderr_console
    from .drift import load_fingerprint, name_of, read_file

    drift_options = DriftOptions(fail_on, ignore, as_json, markdown, html, force)
    inputs = (against, recorded, Path(model) if model is not None else None)
    drift_options.check(inputs, output)
    _check_combination(recorded, export, flat, model)
    if against is not None and output is None and (flat or export is not None):
        raise BadInput(
            "with --against what changed is shown; --flat and --export say how the document is written",
            "add -o FILE, or leave out --against",
        )
    if against == recorded == STDOUT:
        raise BadInput("--against and --read both take standard input", "give a file for one of them")
    if against is None and drift_options.are_given():
        raise BadInput(
            "--fail-on, --ignore, --json, --markdown and --html describe a comparison",
            "add --against BASE.json",
        )
    if recorded is not None and (pid is not None or url is not None):
        raise BadInput(
            "--read takes a recorded fingerprint, --pid and --url read one", "leave out one of the two"
        )
    server = _server(pid, url, api_key_env)
    base = load_fingerprint(against) if against is not None else None
    console = stderr_console()
    depth = _depth(strength, fast, model)
    content = None
    if recorded is not None:
        content = read_file(recorded)
        read = from_bytes(content, name_of(recorded))
    else:
        reference = resolve(model, accept_adapter=True) if model is not None else None
        read = _collect(reference, pid, server, console, **depth)
        for warning in list_warnings(read):
            print(f"warning: {printable(warning)}", file=sys.stderr)
    if hash_ids:
        from ..fingerprint.export import identifiers

        read = identifiers.hash_ids(read)
        base = identifiers.hash_ids(base) if base is not None else None
    text = _written(read, flat, export, recorded, content)
    if output is not None and output != STDOUT:
        write_private(output, text)
        print(f"Wrote {output}", file=sys.stderr)
    elif output == STDOUT or base is None:
        sys.stdout.write(text)
    if console.is_terminal and base is None:
        _print_summary(console, read)
    if against is not None and base is not None:
        observed = (
            name_of(recorded)
            if recorded is not None
            else url or (f"process {pid}" if pid is not None else "this environment")
        )
        names = name_of(against), observed
        raise typer.Exit(report_drift(base, read, names, drift_options, console))


def _check_combination(recorded: Path | None, export: str | None, flat: bool, model: str | None) -> None:
    """Options that contradict each other.

    Raises:
        BadInput: They do.
    """
    from ..fingerprint.export import FORMATS

    if export is not None and export not in FORMATS:
        raise BadInput(f"--export {export}: no such format", f"choose one of: {', '.join(FORMATS)}")
    if export is not None and flat:
        raise BadInput("--export and --flat name two formats", "leave out one of the two")
    if recorded is not None and model is not None:
        raise BadInput("--read takes a recorded fingerprint, --model reads one", "leave out one of the two")
    if export == "in-toto" and recorded in (None, STDOUT):
        raise BadInput(
            "a statement names a recorded fingerprint by digest",
            "record it first: rip fingerprint -o base.json, then --read base.json --export in-toto",
        )


def _written(
    read: Fingerprint, flat: bool, export: str | None, recorded: Path | None, content: bytes | None
) -> str:
    """The document as the options ask for it; `content`: the bytes of `recorded`."""
    if export is not None:
        from ..fingerprint.export import export as exported

        document = content if content is not None else read.to_json().encode()
        return exported(read, export, document, recorded.name if recorded is not None else "fingerprint.json")
    return json.dumps(read.flat(), indent=2, ensure_ascii=False) + "\n" if flat else read.to_json()


def _depth(strength: str, fast: bool, model: str | None) -> _Depth:
    """The options on how the model is read, checked."""
    if strength not in STRENGTHS:
        raise BadInput(f"--strength {strength}: no such choice", f"choose one of: {', '.join(STRENGTHS)}")
    if fast and strength != STRENGTHS[0]:
        raise BadInput(f"--fast: --strength {strength} reads no file whole", "leave out one of the two")
    if model is None and (fast or strength != STRENGTHS[0]):
        raise BadInput("--strength and --fast: there is no model to read", "add --model")
    return {"strength": cast("Strength", strength), "fast": fast}


def _server(pid: int | None, url: str | None, api_key_env: str | None) -> Server | None:
    """The server to ask, with its key out of the environment.

    Raises:
        BadInput: The options contradict each other, or the variable is not set.
    """
    if pid is not None and url is not None:
        raise BadInput("--pid and --url name two things to read", "leave out one of the two")
    from .server_key import server_key

    key = server_key(url, api_key_env)
    if url is None:
        return None
    from ..fingerprint.remote.address import Server

    return Server(url, key)


def _collect(
    model: ModelRef | None,
    pid: int | None,
    server: Server | None,
    console: Console,
    **depth: Unpack[_Depth],
) -> Fingerprint:
    """Read, with progress where it can take long: the files of a model, the answers of a server."""
    from dataclasses import replace

    from ..fingerprint.collect import collect

    if model is None and server is None:
        return collect(pid=pid)
    from .console import printable, progress_bar

    with progress_bar(console) as bar:
        if server is not None:
            asking = bar.add_task("asking the server", total=None, note="")
            server = replace(server, on_request=lambda path: bar.update(asking, note=printable(path)))
        if model is None:
            return collect(server=server)
        task = bar.add_task(f"reading {model.path.name}", total=None, note="")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, note=f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

        return collect(model, pid=pid, server=server, progress=show, **depth)


def _print_summary(console: Console, read: Fingerprint) -> None:
    """The thirteen keys, for a person."""
    from rich.table import Table
    from rich.text import Text

    from ..schemas.fingerprint import is_absent_text

    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in read.flat().items():
        absent = is_absent_text(value)
        table.add_row(key, Text(str(value), style="dim" if absent else "", overflow="fold"))
    table.add_row("root_digest", read.root_digest)
    console.print(table)
