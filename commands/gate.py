"""`rip gate`: does a release pass, by a policy, on the evidence of a plan?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.exit_codes import EXIT_FAILS, EXIT_HOLDS, EXIT_NOTHING_COMPARED
from .console import print_sentence, stderr_console, stdout_console

if TYPE_CHECKING:
    from ..schemas.gate import Gate

EXAMPLES = """\b
Examples:
  rip gate acceptance --policy policy.toml
  rip gate acceptance --policy policy.toml --environment here.parquet --junit gate.xml --markdown gate.md
  rip gate evidence --json
"""
_EXIT_CODES = {
    "pass": EXIT_HOLDS,
    "drift report": EXIT_HOLDS,
    "block": EXIT_FAILS,
    "refused": EXIT_NOTHING_COMPARED,
}
_STYLES = {"failed": "bold red", "refused": "bold yellow", "reported": "yellow", "passed": "green"}


def gate(
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE", help="The folder of rip matrix run, or of rip bundle.")
    ],
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="policy.toml", help="The policy. [default: that of the bundle]"),
    ] = None,
    environment: Annotated[
        Path | None,
        typer.Option(
            "--environment",
            metavar="FINGERPRINT|TRACE",
            help="Of where the candidate will serve: evidence of another environment is refused.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write SARIF 2.1.0.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown for a pull request.")
    ] = None,
) -> None:
    """Decide whether a release passes: for each changed variable block, drift report or record only.

    Missing, invalid, stale or vacuous evidence is refused. Reports are overwritten.

    Exit code 0: pass, or pass with a drift report; 1: block; 3: refused; 2: it could not work.
    """
    from ..experiments.gate import GateRequest, decide_gate
    from ..experiments.gating.bundle_folder import POLICY
    from ..experiments.gating.reports import to_junit, to_markdown, to_sarif
    from ..schemas.files import check_output_file, write_private

    for path in (junit, sarif, markdown):
        if path is not None:
            check_output_file(path, force=True)
    decided = decide_gate(GateRequest(evidence, policy, environment))
    shown = (policy or evidence / POLICY).as_posix()
    if junit is not None:
        write_private(junit, to_junit(decided))
    if sarif is not None:
        write_private(sarif, to_sarif(decided, shown))
    if markdown is not None:
        write_private(markdown, to_markdown(decided))
    for path in (junit, sarif, markdown):
        if path is not None:
            print_sentence(stderr_console(), f"Wrote {path}")
    if as_json:
        print(decided.to_json(), end="")
    else:
        _print_decision(decided)
    raise typer.Exit(_EXIT_CODES[decided.decision])


def _print_decision(decided: Gate) -> None:
    from ..experiments.gating.reports import MARKS, list_checks
    from ..experiments.gating.sentences import headline, not_inherited, rollback

    console = stdout_console()
    print_sentence(console, headline(decided))
    for check in list_checks(decided):
        print_sentence(console, f"{MARKS[check.outcome]} {check.sentence}", style=_STYLES.get(check.outcome))
    if decided.not_inherited:
        print_sentence(console, not_inherited(decided))
    print_sentence(console, rollback(decided))
