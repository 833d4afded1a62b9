"""`rip tap`: a trace from what the taps inside vLLM wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.files import check_output_file
from .console import counted, print_notes, print_sentence, stderr_console

EXAMPLES = """\b
Examples:
  RIP_TAP=taps-a python my_llm_program.py && rip tap taps-a -o a.parquet
  RIP_TAP=taps-b VLLM_BATCH_INVARIANT=1 python my_llm_program.py && rip tap taps-b -o b.parquet
  rip diverge a.parquet b.parquet
"""


def tap(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder RIP_TAP of a vLLM process.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TRACE.parquet", help="The trace to write.")],
    lane: Annotated[str, typer.Option(metavar="NAME", help="Name of the lane in the trace.")] = "default",
    fingerprint: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Fingerprint of the process's environment.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the trace.")] = False,
) -> None:
    """Make a trace of everything that the taps in vLLM observed: an offline LLM(...) program, or any client.

    rip must be installed in the environment of vLLM; it observes where RIP_TAP is set.
    """
    from ..fingerprint.load import read_fingerprint
    from ..replay.tap_trace import trace_from_tap

    check_output_file(out, force)
    environment = read_fingerprint(fingerprint) if fingerprint is not None else None
    header = trace_from_tap(folder, out, lane, environment, force)
    console = stderr_console()
    requests = counted(len(header.requests), "request")
    print_sentence(console, f"{requests}, {len(header.sites)} sites ({header.channel})")
    print_notes(console, header)
    print_sentence(console, f"Wrote {out}")
