"""Shell completion: options, engines, settings, sampling fields and questions."""

from __future__ import annotations

import pytest
from fakes.command_line import Rip


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rip:
    return Rip(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("rip nar", {"narrow"}),
        ("rip replay --neigh", {"--neighbours"}),
        ("rip replay --engine v", {"vllm"}),
        ("rip replay --set thr", {"threads="}),
        ("rip replay --set dtype=fl", {"dtype=float64", "dtype=float32", "dtype=float16"}),
        ("rip replay --engine vllm --set ca", {"cache="}),
        ("rip replay --sampling temp", {"temperature="}),
        ("rip query result --ask near", {"near-ties"}),
        ("rip fingerprint sh", {"show"}),
    ],
)
def test_a_word_is_completed(
    rip: Rip, monkeypatch: pytest.MonkeyPatch, line: str, completed: set[str]
) -> None:
    monkeypatch.setenv("_RIP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert set(rip().out.split()) == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(rip: Rip, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_RIP_COMPLETE", f"source_{shell}")
    done = rip()
    assert (done.code, f"_RIP_COMPLETE=complete_{shell}" in done.out) == (0, True)
