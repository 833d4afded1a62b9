"""The commands by name, each imported when it is used: the overview needs only a line of each."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = {
    "investigate": (".investigate:investigate", "Two sides in, the postmortem out: all steps in one."),
    "fingerprint": (".fingerprint:app", "Record this environment."),
    "drift": (".drift:drift", "Compare two fingerprints."),
    "envelope": (".envelope:app", "Make, import, show and check records of requests."),
    "record": (".record:record", "Record live traffic as envelopes, as a proxy."),
    "replay": (".replay:replay", "Re-run recorded requests, every layer observed."),
    "tap": (".tap:tap", "Make a trace of what the taps in vLLM observed."),
    "diverge": (".diverge:diverge", "Compare two traces: where and why they differ."),
    "confirm": (".confirm:confirm", "Run the experiment that confirms or refutes a cause."),
    "report": (".report:report", "Write the report of a comparison: HTML or Markdown."),
    "narrow": (".narrow:narrow", "Find by experiment which settings turn a divergence on."),
    "matrix": (".matrix:app", "Run what a team claims about determinism, and judge it."),
    "gate": (".gate:gate", "Let a release pass or stop, by a policy on a plan's evidence."),
    "bundle": (".bundle:bundle", "Pack the evidence of a release with digests."),
    "verify": (".verify:verify", "Check a bundle of evidence, offline."),
    "check": (".check:app", "Check what an engine promises."),
    "query": (".query:query", "Run SQL over a trace or a result."),
    "demo": (".demo:demo", "Demonstrate the workflow on a small model."),
}
"""Name → where the command is (a function, or the typer app of a group), and its line in the overview."""


class _Imported(UserDict[str, Any]):
    """Commands by name; one is imported when it is first taken out."""

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = _import(name)
        return super().__getitem__(name)


def _import(name: str) -> Any:
    target, short_help = COMMANDS[name]
    module, _, attribute = target.partition(":")
    command = import_module(module, __package__)
    found = getattr(command, attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, short_help=short_help)
    else:
        alone.command(name, short_help=short_help, epilog=command.EXAMPLES)(found)
    return get_group(alone).commands[name]


class CommandGroup(TyperGroup):
    """The group `rip`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Imported(dict.fromkeys(COMMANDS))})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the overview."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the overview."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])
