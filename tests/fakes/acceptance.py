"""The folder of an acceptance plan that nobody ran: two lanes side by side, written from what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rip.schemas.fingerprint import Fingerprint, Section, fact
from rip.schemas.matrix import Cell, Comparison, Invalid, Run

PLAN = """
requests = "set.jsonl"
rounds = 1
[lanes.now]
engine = "hf"
[lanes.next]
engine = "hf"
[[vary]]
dimension = "restart"
values = [2]
[[vary]]
dimension = "lane"
values = ["now", "next"]
[[vary]]
dimension = "dtype"
values = ["float32", "bfloat16"]
[[claims]]
id = "restart"
level = "token"
varied = ["restart"]
[[claims]]
id = "upgrade"
level = "token"
varied = ["lane"]
[[claims]]
id = "control"
level = "token"
varied = ["dtype"]
lanes = ["next"]
control = true
"""
POLICY = """
rollback = "image:1.0"
baseline = "lane:now"
[[rules]]
variable = "frameworks.*"
action = "within tolerance"
claims = ["upgrade"]
[[rules]]
variable = "gpus.*"
action = "unsupported"
"""
WEIGHTS = "ab" * 32


def environment(
    values: Mapping[str, str] | None = None, weights: str = WEIGHTS, strength: str = "verified"
) -> Fingerprint:
    """A fingerprint with some `section.field` as stated."""
    source = f"strength:{strength}"
    files = {"model.safetensors": {"sha256": weights, "size": 8}}
    facts = {
        "model": {"files": fact(files, source), "tensors_root": fact(weights, source)},
        "frameworks": {"torch": fact("2.12", "importlib.metadata")},
        "gpus": {"name_and_compute_capability": fact("H100 9.0", "nvml")},
        "lane": {"dtype": fact("float32", "lane")},
        "engine": {"version": fact("1", "importlib.metadata")},
    }
    for name, value in (values or {}).items():
        section, _, key = name.partition(".")
        facts[section][key] = fact(value, "test")
    sections = {name: Section(facts=found) for name, found in facts.items()}
    return Fingerprint.build("0.1.0", "2026-01-01T00:00:00+00:00", sections)


@dataclass
class Acceptance:
    """What came of the plan.

    Attributes:
        differing: Dimensions in which outputs differ.
        missing: Dimensions whose cells were not run.
        sequences: Outputs that each cell compares.
        relaunched: The environment of the second launch of `next`; None: as the first.
    """

    now: Fingerprint = field(default_factory=environment)
    next: Fingerprint = field(default_factory=environment)
    differing: tuple[str, ...] = ("dtype",)
    missing: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    sequences: int = 4
    relaunched: Fingerprint | None = None
    started: str = "2026-01-01T00:00:00+00:00"

    def write(self, folder: Path) -> Path:
        """Write the folder as `rip matrix run` leaves it, and a policy beside it."""
        for name in ("traces", "fingerprints", "cells", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        folder.with_name("policy.toml").write_text(POLICY)
        (folder / "plan.toml").write_text(PLAN)
        (folder / "requests.jsonl").write_text('{"request_id": "r0", "prompt_token_ids": [1, 2]}\n')
        (folder / "logs" / "now-1.log").write_text("loaded\n")
        (folder / "cells" / "control-a-b").mkdir(exist_ok=True)
        (folder / "cells" / "control-a-b" / "summary.json").write_text("{}\n")
        cells = self._cells()
        planned = {cell.id: (cell.lane, cell.dimension) for cell in cells}
        (folder / "planned.json").write_text(json.dumps(planned))
        done = [cell for cell in cells if cell.dimension not in self.missing]
        lines = [*self._runs(folder), *done]
        (folder / "ledger.jsonl").write_text(
            "".join(line.model_dump_json(exclude_none=True) + "\n" for line in lines)
        )
        return folder

    def _runs(self, folder: Path) -> list[Run]:
        launches = {
            ("now", 1): self.now,
            ("now", 2): self.now,
            ("next", 1): self.next,
            ("next", 2): self.relaunched or self.next,
            ("bf16", 1): self.next,
        }
        runs = []
        for (key, launch), ran_in in launches.items():
            content = f"trace of {key} {launch}".encode()
            digest = hashlib.sha256(content).hexdigest()
            (folder / "traces" / f"{digest}.parquet").write_bytes(content)
            if launch == 1:
                (folder / "fingerprints" / f"{key}.json").write_text(ran_in.to_json())
            runs.append(
                Run(
                    key=key,
                    launch=launch,
                    command=["replay"],
                    trace=digest,
                    started=self.started,
                    seconds=1.0,
                    environment=ran_in.root_digest,
                    claimed=ran_in.is_claimed,
                )
            )
        return runs

    def _cells(self) -> list[Cell]:
        return [
            self._cell("restart-now", "now", "restart", (None, 2), ["now", "now"], []),
            self._cell("restart-next", "next", "restart", (None, 2), ["next", "next"], []),
            self._cell("upgrade", "now", "lane", ("now", "next"), ["now"], ["next"]),
            self._cell("control", "next", "dtype", ("float32", "bfloat16"), ["next"], ["bf16"]),
        ]

    def _cell(
        self,
        name: str,
        lane: str,
        dimension: str,
        values: tuple[str | None, str | int],
        runs_a: list[str],
        runs_b: list[str],
    ) -> Cell:
        invalid = dimension in self.invalid
        outcome = "differs" if dimension in self.differing else "equal"
        comparison = Comparison(
            pair="a-b" if runs_b else "a-a",
            launch_a=1,
            launch_b=1 if runs_b else 2,
            sequences=self.sequences,
            bitwise=outcome,
            token=outcome,
        )
        return Cell(
            id=name,
            lane=lane,
            dimension=dimension,
            value_a=values[0],
            value_b=values[1],
            runs_a=runs_a,
            runs_b=runs_b,
            state="invalid" if invalid else "done",
            why=[Invalid(kind="run failed", side="a", message="no room")] if invalid else [],
            comparisons=[] if invalid else [comparison],
        )
