"""Prompts that differ: what is said of a token that begins a text, and of what a clock wrote."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from pathlib import Path

import numpy as np
import pytest
from fakes.traces import header, sequence, write_trace
from rip.diverge.causes.observe.prompt_texts import written_by_a_clock
from rip.diverge.compare import diverge
from rip.schemas.findings.tokens import PromptsDiffer
from rip.schemas.verdict import Cause


def first_cause(folder: Path, a: Ids[int], b: Ids[int], texts: dict[int, str]) -> tuple[Cause, PromptsDiffer]:
    folder.mkdir(exist_ok=True)
    token_text = {str(token): text for token, text in texts.items()}
    for name, prompt in (("a", a), ("b", b)):
        made = sequence(1, 0, prompt=len(prompt), decode=2)
        made.tokens[: len(prompt)] = np.array(prompt)
        write_trace(folder / f"{name}.parquet", [made], header([], token_text=token_text))
    cause = diverge(folder / "a.parquet", folder / "b.parquet", folder / "out", force=True).causes[0]
    [found] = [one for one in cause.evidence if isinstance(one, PromptsDiffer)]
    return cause, found


def test_a_doubled_beginning_is_named_and_the_right_side_is_not_blamed(tmp_path: Path) -> None:
    texts = {1: "<s>", 7: "a", 8: "b", 9: "c"}
    right, doubled, without = (1, 7, 8, 9), (1, 1, 7, 8, 9), (7, 8, 9)
    cause, found = first_cause(tmp_path / "b", right, doubled, texts)
    assert (found.how, found.side) == ("BOS doubled", "B")
    assert cause.label == "B's prompt begins with the token that begins a text (BOS) twice"
    _, found = first_cause(tmp_path / "a", doubled, right, texts)
    assert (found.how, found.side) == ("BOS doubled", "A")
    cause, found = first_cause(tmp_path / "without", right, without, texts)
    assert (found.how, found.side) == ("BOS missing", "B")
    assert "token 1, which begins a text" in (found.text or "")
    # Any other token is only one that is missing, also where it stands twice.
    _, found = first_cause(tmp_path / "word", (7, 8, 9), (7, 7, 8, 9), texts)
    assert found.how == "first tokens missing"


@pytest.mark.parametrize(
    ("a", "b", "clock"),
    [
        ("Today is 01 Dec 2026 09:12:40.", "Today is 02 Dec 2026 10:00:01.", ("01 Dec 2026", "02 Dec 2026")),
        ("Now: 2026-05-01, Friday", "Now: 2026-05-02, Saturday", ("2026-05-01", "2026-05-02")),
        ("May 3, 2026: hello", "May 12, 2026: hello", ("May 3, 2026", "May 12, 2026")),
        ("at 9:05 PM", "at 10:15 AM", ("9:05 PM", "10:15 AM")),
        ("Today is 01 Dec 2026. hi", "Today is 02 Dec 2026. ho", None),
        ("page 12", "page 13", None),
        ("same 2026-05-01", "same 2026-05-01", None),
    ],
)
def test_what_a_clock_wrote_is_told_from_other_changes(a: str, b: str, clock: tuple[str, str] | None) -> None:
    found = written_by_a_clock(a, b)
    assert (None if found is None else (found.a, found.b)) == clock


def test_prompts_that_differ_in_a_date_only_say_so(tmp_path: Path) -> None:
    texts = {10 + index: letter for index, letter in enumerate("0123456789- ist")}
    ids = {letter: token for token, letter in texts.items()}
    days = [[ids[letter] for letter in f"it is {day}"] for day in ("2026-05-01", "2026-05-12")]
    cause, found = first_cause(tmp_path, days[0], days[1], texts)
    assert cause.id == "prompt-clock"
    assert (found.clock_a, found.clock_b) == ("2026-05-01", "2026-05-12")
    assert "clock" in cause.label
