"""`rip verify`: is a bundle intact, and does its evidence still say what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.exit_codes import EXIT_FAILS
from .console import print_sentence, stdout_console

EXAMPLES = """\b
Examples:
  rip verify evidence
"""


def verify(
    folder: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of rip bundle.")],
) -> None:
    """Check a bundle offline: files against digests, the verdict against the ledger, the decision again.

    Who made it is what a signature over statement.json says; check that with your signer.

    Exit code 0: intact, with the same verdict and decision; 1: it is not; 2: it is no bundle.
    """
    from ..experiments.bundle import verify_bundle
    from ..experiments.gating.sentences import fault, headline

    checked = verify_bundle(folder)
    console = stdout_console()
    if checked.faults:
        print_sentence(console, f"{folder} is not as packed:", style="bold red")
        for found in checked.faults:
            print_sentence(console, f"  {fault(found)}")
        raise typer.Exit(EXIT_FAILS)
    print_sentence(console, f"{folder} is intact, and its evidence says what was packed.", style="green")
    if checked.gate is not None:
        print_sentence(console, headline(checked.gate))
