"""`rip bundle`: everything that a release review wants to see, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_sentence, stderr_console

EXAMPLES = """\b
Examples:
  rip bundle acceptance --policy policy.toml -o evidence
  rip bundle acceptance --policy policy.toml --no-traces -o evidence
"""


def bundle(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of rip matrix run.")],
    policy: Annotated[Path, typer.Option("--policy", metavar="policy.toml", help="The policy.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="The folder to make.")],
    environment: Annotated[
        Path | None,
        typer.Option(
            "--environment",
            metavar="fp.json",
            help="Fingerprint of where the candidate will serve, if judged.",
        ),
    ] = None,
    traces: Annotated[
        bool, typer.Option("--traces/--no-traces", help="Pack the traces, or leave them out.")
    ] = True,
) -> None:
    """Pack requests, claims, evidence, cost, fingerprints and policy with a manifest of digests.

    statement.json is the verdict as an in-toto Statement: sign it with the signer that you use. Files have
    mode 0600: they hold prompts and outputs. The decision is packed whatever it is.
    """
    from ..experiments.bundle import make_bundle
    from ..experiments.gate import GateRequest
    from ..experiments.gating.sentences import packed

    made = make_bundle(GateRequest(folder, policy, environment), out, traces)
    for sentence in packed(made, str(out)):
        print_sentence(stderr_console(), sentence)
