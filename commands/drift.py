"""`rip drift`: what changed between two fingerprints, and which level each change puts at risk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import BadInput
from .console import stdout_console
from .drift_output import ANY, STREAM, AsJson, DriftOptions, FailOn, Html, Ignore, Markdown, report_drift

EXAMPLES = """\b
Examples:
  rip drift monday.json tuesday.json
  rip drift monday.json tuesday.json --fail-on token --ignore 'os.*'
  rip drift old-bug-report.txt now.json --html drift.html
"""


def drift(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="The fingerprint to compare with, or a pasted text.")
    ],
    now: Annotated[
        Path, typer.Argument(metavar="NOW", help="The fingerprint that may have changed, or a pasted text.")
    ],
    fail_on: FailOn = ANY,
    ignore: Ignore = None,
    as_json: AsJson = False,
    markdown: Markdown = None,
    html: Html = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the reports.")] = False,
) -> None:
    """Compare two fingerprints: each change, the level at risk, the rule that says so, what to replay.

    A file is a document of rip fingerprint, or pasted text: a report of collect_env and its like, nvidia-smi,
    rocm-smi, npu-smi, pip freeze, the start-up log of an engine; of such a text, what it states is compared.
    -: standard input.

    Exit code 0: no change that counts (see --fail-on, --ignore). 1: at least one. 3: the two have no field in
    common. A rule names the level at risk; only a replay shows whether it is lost.
    """
    from ..fingerprint.load import input_name, read_fingerprint

    options = DriftOptions(fail_on, tuple(ignore or ()), as_json, markdown, html, force)
    options.check(inputs=(base, now))
    if base == now == STREAM:
        raise BadInput("BASE and NOW are both standard input", "give a file for one of them")
    sides = read_fingerprint(base), read_fingerprint(now)
    raise typer.Exit(report_drift(*sides, (input_name(base), input_name(now)), options, stdout_console()))
