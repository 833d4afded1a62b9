"""Two small traces with a planted difference, and what `rip diverge` says of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fakes.traces import (
    Sequence,
    disturb,
    disturb_logits,
    header,
    llama_sites,
    sequence,
    write_trace,
)
from rip.diverge.compare import Context, diverge
from rip.diverge.present.findings.sentences import in_shell
from rip.diverge.present.findings.sentences import sentence as sentence_of
from rip.schemas.change import Change
from rip.schemas.findings.statement import Statement
from rip.schemas.fingerprint import fact
from rip.schemas.lane import Lane, Setting
from rip.schemas.trace import Request
from rip.schemas.verdict import Cause, Verdict

SITES = llama_sites(2)


def verdict_of(tmp_path: Path, a: Sequence, b: Sequence, changes: list[Change] = [], **about: Any) -> Verdict:  # noqa: B006
    headers = [
        header(SITES, **{k[2:]: v for k, v in about.items() if k.startswith(side + "_")})
        for side in ("a", "b")
    ]
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, one, said in zip(paths, (a, b), headers, strict=True):
        write_trace(path, [one], said)
    return diverge(paths[0], paths[1], tmp_path / "out", Context(changes), force=True)


def pair(*differences: tuple[int, int]) -> tuple[Sequence, Sequence]:
    a, b = (sequence(1, len(SITES), prompt=6, decode=8) for _ in "ab")
    for position, site in differences:
        disturb(b, position, site)
    return a, b


def flip(b: Sequence, step: int, size: float = 0.05) -> None:
    """Let B's logits before `step` drift and its token at `step` differ."""
    disturb_logits(b, b.prompt_length + step - 1, size)
    b.tokens[b.prompt_length + step] += 1


def cause(verdict: Verdict, name: str) -> Cause:
    found = [item for item in verdict.causes if item.id == name]
    assert found, [item.id for item in verdict.causes]
    return found[0]


def lane(**settings: Any) -> Lane:
    known = {name: Setting(resolved=value, source="lane") for name, value in settings.items()}
    return Lane(name="main", engine="hf", model="./model dir", settings=known)


def change(section: str, field: str, before: object, after: object) -> Change:
    return Change(section=section, field=field, before=fact(before, "test"), after=fact(after, "test"))


def sampled(**values: Any) -> list[Request]:
    settings = {name: Setting(resolved=value, source="engine default") for name, value in values.items()}
    return [Request(request_id="r0", envelope_sha256="0" * 64, sampling=settings)]


def sentences(found: Iterable[Statement]) -> list[str]:
    """What findings say."""
    return [sentence_of(one) for one in found]


def typed(one: Cause) -> str:
    """The confirming command of a cause, as it is typed; empty: there is none."""
    return "" if one.confirm is None else in_shell(one.confirm)
