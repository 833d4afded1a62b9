"""`rip tap`: a trace from what the taps inside vLLM wrote by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tap(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder RIP_TAP of a vLLM process.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="TRACE.parquet", help="Where the trace goes.")],
    lane: Annotated[
        str, typer.Option("--lane", metavar="NAME", help="Name of this way to run, kept in the trace.")
    ] = "default",
    fingerprint: Annotated[
        Path | None,
        typer.Option("--fingerprint", metavar="FILE.json", help="The environment that the process ran in."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the trace.")] = False,
) -> None:
    """Make a trace of all that vLLM's taps saw: an offline LLM(...) program, or requests of any client.

    rip must be installed in vLLM's environment; it observes where RIP_TAP is set.

    \b
    Examples:
      RIP_TAP=taps-a python my_llm_program.py && rip tap taps-a -o a.parquet
      RIP_TAP=taps-b VLLM_BATCH_INVARIANT=1 python my_llm_program.py && rip tap taps-b -o b.parquet
      rip diverge a.parquet b.parquet
    """
    from ..replay.tap_trace import trace_from_tap
    from .console import check_output_file, stderr_console, tell
    from .drift import load_fingerprint

    check_output_file(out, force)
    environment = load_fingerprint(fingerprint) if fingerprint is not None else None
    header = trace_from_tap(folder, out, lane, environment, force)
    console = stderr_console()
    count = len(header.requests)
    tell(console, f"{count} request{'' if count == 1 else 's'}, {len(header.sites)} sites ({header.channel})")
    for sentence in header.findings[:8]:
        tell(console, f"note: {sentence}")
    for sentence in header.not_seen:
        tell(console, f"not seen: {sentence}")
    tell(console, f"Wrote {out}")
