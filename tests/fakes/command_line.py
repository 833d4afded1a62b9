"""The command line, run in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Rip:
    """Runs `rip …`; a traceback fails the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Done:
        from rip.cli import main

        self._monkeypatch.setattr(sys, "argv", ["rip", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(stopped.value.code or 0), said.out, said.err)
