"""`rip fingerprint`: what an environment, a running process or a server is, as facts with their sources."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.choices import STRENGTHS, Strength, check_choice
from ..schemas.errors import BadInput, printable
from .console import shown_progress, stderr_console, stdout_console
from .drift_output import ANY, STREAM, AsJson, DriftOptions, FailOn, Html, Ignore, Markdown, report_drift
from .lane_options import ApiKeyEnv

if TYPE_CHECKING:
    from rich.console import Console

    from ..fingerprint.model.ref import ModelRef
    from ..fingerprint.remote.address import Server
    from ..schemas.fingerprint import Fingerprint

EXAMPLES = """\b
Examples:
  rip fingerprint
  rip fingerprint --model ./my-model -o base.json
  rip fingerprint --model ./my-model --against base.json
  rip fingerprint --pid 4242 -o replica-7.json
  rip fingerprint --url http://127.0.0.1:8000 --api-key-env VLLM_API_KEY
  rip fingerprint --read pasted.txt -o incident.json
  rip fingerprint show base.json
"""
SHOW_EXAMPLES = """\b
Examples:
  rip fingerprint show base.json
  rip fingerprint show base.json --json | jq .sections.gpus
"""

app = typer.Typer(name="fingerprint", rich_markup_mode=None)


@dataclass(frozen=True)
class _Source:
    """The options that say what is read, and how."""

    model: str | None
    pid: int | None
    url: str | None
    api_key_env: str | None
    recorded: Path | None
    strength: Strength
    fast: bool

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            BadInput: They do.
        """
        if self.recorded is not None and self.model is not None:
            raise BadInput(
                "--read takes a recorded fingerprint, --model reads one", "leave out one of the two"
            )
        if self.recorded is not None and (self.pid is not None or self.url is not None):
            raise BadInput(
                "--read takes a recorded fingerprint, --pid and --url read one", "leave out one of the two"
            )
        if self.pid is not None and self.url is not None:
            raise BadInput("--pid and --url name two things to read", "leave out one of the two")
        if self.fast and self.strength != "verified":
            raise BadInput(
                f"--fast: --strength {self.strength} reads no file whole", "leave out one of the two"
            )
        if self.model is None and (self.fast or self.strength != "verified"):
            raise BadInput("--strength and --fast: there is no model to read", "add --model")

    @property
    def name(self) -> str:
        """What a report of changes calls it."""
        from ..fingerprint.load import input_name

        if self.recorded is not None:
            return input_name(self.recorded)
        return self.url or (f"process {self.pid}" if self.pid is not None else "this environment")


@dataclass(frozen=True)
class _Document:
    """The options that say how the fingerprint is written, and where."""

    output: Path | None
    flat: bool
    export: str | None

    def check(self, recorded: Path | None, against: Path | None) -> None:
        """Refuse options that contradict each other.

        Raises:
            BadInput: They do.
        """
        from ..fingerprint.export import FORMATS

        if self.export is not None:
            check_choice("export", self.export, tuple(FORMATS), "format")
        if self.export is not None and self.flat:
            raise BadInput("--export and --flat are two formats", "leave out one of the two")
        if self.export == "in-toto" and recorded in (None, STREAM):
            raise BadInput(
                "an in-toto statement names a recorded fingerprint by digest",
                "record it first: rip fingerprint -o base.json, then --read base.json --export in-toto",
            )
        if against is not None and self.output is None and (self.flat or self.export is not None):
            raise BadInput(
                "--against prints what changed; --flat and --export say how the document is written",
                "add -o FILE, or leave --against out",
            )

    def text(self, read: Fingerprint, recorded: Path | None, content: bytes | None) -> str:
        """The document; `content`: the bytes of `recorded`."""
        if self.export is not None:
            from ..fingerprint.export import export

            document = content if content is not None else read.to_json().encode()
            return export(
                read, self.export, document, recorded.name if recorded is not None else "fingerprint.json"
            )
        if self.flat:
            return json.dumps(read.flat(), indent=2, ensure_ascii=False) + "\n"
        return read.to_json()


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def fingerprint(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|HF-ID|FILE.gguf", help="Also read this model; its files are hashed."),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Read this running process from outside, in place of rip's own environment."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Read this server; only requests that change nothing.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write. [default: -, standard output]")
    ] = None,
    flat: Annotated[
        bool, typer.Option("--flat", help="Write only the 13 main facts, without sources.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="BASE.json",
            help="Compare with this fingerprint and print what changed; exit 1 if anything did.",
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
            help="Read this recorded fingerprint, or pasted text, instead of the machine.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="cyclonedx|in-toto", help="Write it in this format: a bill of materials, or a statement."
        ),
    ] = None,
    strength: Annotated[
        str,
        typer.Option(
            metavar="|".join(STRENGTHS),
            help="How much of the weights is read: all bytes, windows of every tensor, or headers only "
            "(digests are then what the Hugging Face cache claims).",
        ),
    ] = "verified",
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Read all bytes, but compute only the tensors' BLAKE3 digests: no SHA-256."
        ),
    ] = False,
    hash_ids: Annotated[
        bool,
        typer.Option(
            "--hash-ids",
            help="Replace GPU UUIDs, serial numbers and host names by digests, so that it can be shared.",
        ),
    ] = False,
    no_texts: Annotated[
        bool,
        typer.Option(
            "--no-texts",
            help="Keep only digests of the chat template and of the small JSON files: a change then shows "
            "that they differ, not where.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Read an environment: packages, loaded libraries, determinism variables, GPUs, CPU, OS, a model's files.

    By default of this machine and this Python; with --pid of a running process; with --url what a server
    reports of itself. Every fact has a value and its source, or the reason why it is unavailable. Nothing is
    changed, and secrets are not kept.

    Exit code 0: read, and with --against nothing changed that counts. 1: something changed. 3: the two
    have no field in common.
    """
    if context.invoked_subcommand is not None:
        return
    from ..fingerprint.load import input_name, read_fingerprint
    from ..schemas.files import write_private

    source = _Source(
        model, pid, url, api_key_env, recorded, check_choice("strength", strength, STRENGTHS), fast
    )
    document = _Document(output, flat, export)
    drift_options = DriftOptions(fail_on, tuple(ignore or ()), as_json, markdown, html, force)
    drift_options.check((against, recorded, Path(model) if model is not None else None), output)
    document.check(recorded, against)
    source.check()
    if against == recorded == STREAM:
        raise BadInput("--against and --read both take standard input", "give a file for one of them")
    if against is None and replace(drift_options, as_json=False).any_stated():
        raise BadInput(
            "--fail-on, --ignore, --markdown and --html describe a comparison",
            "add --against BASE.json",
        )
    console = stderr_console()
    base = read_fingerprint(against) if against is not None else None
    read, content = _read(source, console)
    if hash_ids:
        from ..fingerprint import export as exports

        read = exports.hash_ids(read)
        base = exports.hash_ids(base) if base is not None else None
    if no_texts:
        from ..fingerprint import export as exports

        read = exports.without_texts(read)
    text = document.text(read, recorded, content)
    if output is not None and output != STREAM:
        write_private(output, text)
        print(f"Wrote {output}", file=sys.stderr)
    elif output == STREAM or (base is None and not _is_for_people(document, as_json)):
        sys.stdout.write(text)
    if against is not None and base is not None:
        raise typer.Exit(report_drift(base, read, (input_name(against), source.name), drift_options, console))
    if output is None and _is_for_people(document, as_json):
        _print_summary(stdout_console(), read)
        stdout_console().print("the whole document: --json, or -o FILE", style="dim")


@app.command("show", epilog=SHOW_EXAMPLES, short_help="Print what a kept fingerprint says, in short.")
def show(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A recorded fingerprint or pasted text. -: standard input."),
    ],
    as_json: AsJson = False,
) -> None:
    """Print the summary of a recorded fingerprint: versions, devices, and what could not be read."""
    read, _ = _read(_Source(None, None, None, None, file, "verified", False), stderr_console())
    if as_json:
        sys.stdout.write(read.to_json())
    else:
        _print_summary(stdout_console(), read)


def _read(source: _Source, console: Console) -> tuple[Fingerprint, bytes | None]:
    """The fingerprint, and the bytes of the file that holds it, if one does; warnings are printed.

    Raises:
        BadInput: The file, model or server cannot be read.
    """
    from ..experiments.lanes.request import read_server_key
    from ..fingerprint.load import from_bytes, input_name, read_input
    from ..fingerprint.model.ref import resolve
    from ..fingerprint.present.drift_sentences import paste_note
    from ..fingerprint.present.warnings import describe_contradictions, list_warnings
    from ..fingerprint.remote.address import Server

    key = read_server_key(source.url, source.api_key_env)
    if source.recorded is not None:
        content = read_input(source.recorded)
        recorded = from_bytes(content, input_name(source.recorded))
        if note := paste_note(recorded, input_name(source.recorded)):
            print(f"note: {printable(note)}", file=sys.stderr)
        for warning in describe_contradictions(recorded):
            print(f"warning: {printable(warning)}", file=sys.stderr)
        return recorded, content
    model = resolve(source.model, accept_adapter=True) if source.model is not None else None
    server = Server(source.url, key) if source.url is not None else None
    read = _collect(source, model, server, console)
    for warning in list_warnings(read):
        print(f"warning: {printable(warning)}", file=sys.stderr)
    return read, None


def _collect(source: _Source, model: ModelRef | None, server: Server | None, console: Console) -> Fingerprint:
    """Collect, with progress where it can take long: the files of a model, the answers of a server."""
    from ..experiments.progress import show_bytes
    from ..fingerprint.collect import collect

    if model is None and server is None:
        return collect(pid=source.pid)
    with shown_progress(console) as progress:
        if server is not None:
            server = replace(
                server, on_request=lambda path: progress.stage("reading the server", detail=printable(path))
            )
        if model is None:
            return collect(server=server)
        return collect(
            model,
            pid=source.pid,
            server=server,
            progress=show_bytes(progress, f"reading {model.path.name}"),
            strength=source.strength,
            fast=source.fast,
        )


def _is_for_people(document: _Document, as_json: bool) -> bool:
    """Whether standard output is a terminal, and no form of the document was asked for."""
    return sys.stdout.isatty() and not as_json and not document.flat and document.export is None


def _print_summary(console: Console, read: Fingerprint) -> None:
    """About fifteen lines."""
    from rich.table import Table
    from rich.text import Text

    from ..fingerprint.present.summary import summary_rows

    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in summary_rows(read):
        table.add_row(label, Text(value, overflow="fold"))
    console.print(table)
