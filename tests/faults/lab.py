"""Runs both sides of a planted fault in this process, on small random models, and compares their traces.

A side is a fresh engine, so that what a fault changes dies with it. It knows no fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fakes.models import save_tiny_model
from faults.case import NEW_TOKENS, TOPK, Case, Rewrite, Side
from rip.diverge.compare import Context, diverge
from rip.fingerprint.collect import PROBES, collect
from rip.fingerprint.drift import drift
from rip.fingerprint.model.ref import resolve
from rip.replay.engines.base import Opening
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.request.resolve_request import Golden
from rip.replay.run import OpenedLane, Options, replay
from rip.schemas.envelope import Envelope, Runtime
from rip.schemas.fingerprint import Fingerprint
from rip.schemas.lane import Lane
from rip.schemas.trace import HEADER_KEY, TraceHeader, parquet_options
from rip.schemas.verdict import Verdict
from rip.schemas.zoom import Zoom


@dataclass(frozen=True)
class Seen:
    """What came of a case.

    Attributes:
        changed: Whether a plain loop over the two traces finds any difference: an ulp may be rounded away.
        first: (position, site label) that the plain loop finds first in the sequence of the verdict.
        a: The trace of A.
        b: The trace of B.
        result: The folder that the comparison wrote.
        zoom: What zoom found, where it was run.
        rewording_changes: Whether other sentences change the verdict; None: not tried.
    """

    case: Case
    verdict: Verdict
    changed: bool
    first: tuple[int, str] | None
    a: Path
    b: Path
    result: Path
    zoom: Zoom | None = None
    rewording_changes: bool | None = None

    @property
    def named(self) -> tuple[int, str] | None:
        """(position, site label) that the verdict names."""
        site = self.verdict.first_site
        if site is None:
            return None
        return site.position, site.label()

    @property
    def site_exact(self) -> bool | None:
        """The verdict names the site that the fault was put into, at the position where it first shows.

        None: the fault is not put into a site.
        """
        case, found = self.case, self.verdict.first_site
        if case.site is None:
            return None
        if found is None or self.named is None or self.named[1] != case.site:
            return False
        if case.position is not None:
            return found.position == case.position
        if case.step is not None:
            return found.position == len(case.b.prompts[int(found.request_id[1:])]) + case.step
        return self.named == self.first

    @property
    def ranked(self) -> list[str]:
        """Ids of the causes."""
        return [cause.id for cause in self.verdict.causes]

    @property
    def quiet(self) -> bool:
        """Nothing is claimed."""
        return self.verdict.level == "bitwise" and not self.ranked and self.named is None

    @property
    def said(self) -> str:
        """Label and evidence of the cause that is ranked first."""
        first = self.verdict.causes[:1]
        texts = ([cause.label, *(one.text or "" for one in cause.evidence)] for cause in first)
        return "\n".join(text for said in texts for text in said)

    def label_within(self, places: int) -> bool:
        """The right cause is among the first ones."""
        return any(name in self.case.causes for name in self.ranked[:places])


class Lab:
    """Makes models, traces and verdicts in a folder; a side that was run before is not run again.

    Args:
        folder: Empty; everything is written below it.
        smollm2: Folder of the real model, where there is one.
    """

    def __init__(self, folder: Path, smollm2: Path | None = None) -> None:
        self._folder = folder
        self._models: dict[str, Path] = {} if smollm2 is None else {"smollm2": smollm2}
        self._traces: dict[str, Path] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._count = 0

    def judge(self, case: Case) -> Seen:
        """Run both sides of a case and compare them."""
        free = self.trace(case.model, Side(prompts=case.a.prompts)) if case.a.golden else None
        a = self.trace(case.model, case.a, free)
        b = self.trace(case.model, case.b, (free or a) if case.b.golden else None)
        return self.compare(case, a, b)

    def compare(self, case: Case, a: Path, b: Path) -> Seen:
        """Compare the two traces of a case, and look for their first difference by a plain loop."""
        self._count += 1
        result = self._folder / f"result-{self._count}"
        verdict = _verdict(a, b, result)
        request = None if verdict.first_site is None else verdict.first_site.request_id
        sample = 0 if verdict.first_site is None else verdict.first_site.sample
        changed, first = _first_by_plain_loop(a, b, header_of(a), (request, sample))
        return Seen(case, verdict, changed, first, a, b, result)

    def compare_again(self, seen: Seen) -> Verdict:
        """Compare the same traces again, into the same folder."""
        return _verdict(seen.a, seen.b, seen.result)

    def model(self, family: str) -> Path:
        """The folder of a model, made when first asked for."""
        if family not in self._models:
            folder = self._folder / f"model-{family}"
            folder.mkdir()
            self._models[family] = save_tiny_model(family, folder)
        return self._models[family]

    def trace(self, family: str, side: Side, golden: Path | None = None) -> Path:
        """The trace of one side."""
        key = repr((family, side, golden))
        plain = side.plant is None and side.rewrite is None and not (side.model_changes or side.template)
        if plain and key in self._traces:
            return self._traces[key]
        self._count += 1
        path = self._folder / f"{self._count}.parquet"
        with self.opened(family, side) as (engine, fingerprint):
            options = dict(side.options)
            if golden is not None:
                options |= {
                    "mode": options.get("mode", "golden-decode"),
                    "golden": (tokens_of(golden), golden),
                }
            lane = Lane(name="default", engine="hf", model=family)
            replay(
                _envelopes(side),
                OpenedLane(engine, lane, fingerprint),
                Options(**options),
                path,
                lambda *_: None,
            )
        if side.rewrite is not None:
            _rewritten(path, side.rewrite)
        if plain:
            self._traces[key] = path
        return path

    @contextmanager
    def opened(self, family: str, side: Side) -> Iterator[tuple[HfEngine, Fingerprint]]:
        """A fresh engine with the side's fault in it, and the fingerprint of its model."""
        folder, fingerprint = self._checkpoint(family, side)
        given = {"threads": 1, **side.settings}
        opening = Opening(
            Runtime(), TOPK, re.compile(""), model=folder, model_sha256="0" * 64, settings=given
        )
        with closing(HfEngine(opening)) as engine, ExitStack() as stack:
            if side.plant is not None:
                side.plant(engine, stack)
            yield engine, fingerprint

    def _checkpoint(self, family: str, side: Side) -> tuple[Path, Fingerprint]:
        """The model folder with the side's changes, and a fingerprint that lists its tensors."""
        folder = self.model(family)
        if not side.model_changes and side.template is None:
            if family not in self._fingerprints:
                self._fingerprints[family] = _fingerprint(folder)
            return folder, self._fingerprints[family]
        from safetensors.torch import load_file, save_file

        self._count += 1
        changed = self._folder / f"changed-{self._count}"
        changed.mkdir()
        for file in folder.iterdir():
            if file.suffix != ".safetensors":
                (changed / file.name).write_bytes(file.read_bytes())
            elif not side.model_changes:
                (changed / file.name).symlink_to(file)
        if side.model_changes:
            tensors = load_file(folder / "model.safetensors")
            for name, change in side.model_changes.items():
                change(tensors[name])
            save_file(tensors, changed / "model.safetensors", {"format": "pt"})
        if side.template is not None:
            template = changed / "chat_template.jinja"
            template.write_text(side.template(template.read_text()))
        return changed, _fingerprint(changed)


def _verdict(a: Path, b: Path, result: Path) -> Verdict:
    base, now = (header_of(path).fingerprint for path in (a, b))
    assert base is not None
    assert now is not None
    return diverge(a, b, result, Context(drift(base, now)), force=True)


def _fingerprint(folder: Path) -> Fingerprint:
    """The model part of `rip fingerprint`."""
    return collect(resolve(str(folder)), probes=[probe for probe in PROBES if probe.name == "model"])


def _envelopes(side: Side) -> list[Envelope]:
    greedy = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    found = []
    for index, ids in enumerate(side.prompts):
        raw = {
            "request_id": f"r{index}",
            "prompt_token_ids": list(ids),
            "sampling": {**greedy, **side.sampling},
            **side.envelope,
        }
        found.append(Envelope.from_object({k: v for k, v in raw.items() if v is not None}, "fault"))
    return found


def tokens_of(trace: Path) -> Golden:
    """What each sequence of a trace generated."""
    found: dict[tuple[str, int], list[int]] = {}
    columns = ["request_id", "sample", "step", "token_id"]
    for row in pq.read_table(trace, columns=columns).to_pylist():
        if row["step"] is not None:
            found.setdefault((row["request_id"], row["sample"]), []).append(row["token_id"])
    return {key: tuple(tokens) for key, tokens in found.items()}


def header_of(path: Path) -> TraceHeader:
    """What a trace says of itself."""
    return TraceHeader.from_json(pq.read_metadata(path).metadata[HEADER_KEY], str(path))


def _rewritten(path: Path, rewrite: Rewrite) -> None:
    header = {HEADER_KEY: pq.read_metadata(path).metadata[HEADER_KEY]}
    changed = rewrite(pq.read_table(path).replace_schema_metadata(header))
    pq.write_table(changed, path, **parquet_options(changed.schema))


def _first_by_plain_loop(
    a: Path, b: Path, header: TraceHeader, wanted: tuple[str | None, int]
) -> tuple[bool, tuple[int, str] | None]:
    """Whether anything differs, and the first differing row of the wanted sequence while tokens agree."""
    columns = ["request_id", "sample", "position", "token_id", "site_hash", "logits_hash"]
    sides = [
        {(row["request_id"], row["sample"], row["position"]): row for row in _rows(path, columns)}
        for path in (a, b)
    ]
    labels = [site.label() for site in header.sites]
    changed = sides[0].keys() != sides[1].keys()
    first: dict[tuple[str, int], tuple[int, str]] = {}
    parted: set[tuple[str, int]] = set()
    for key, row in sides[0].items():
        sequence, other = key[:2], sides[1].get(key)
        if other is None or row["token_id"] != other["token_id"]:
            changed = True
            parted.add(sequence)
        if other is None or sequence in parted or sequence in first:
            continue
        # A row that was not computed is null as a whole in files that other tools wrote.
        sites = [side["site_hash"] or [None] * len(labels) for side in (row, other)]
        for label, left, right in zip(labels, *sites, strict=True):
            if left is not None and right is not None and left != right:
                first[sequence] = key[2], label
                break
        else:
            hashes = row["logits_hash"], other["logits_hash"]
            if None not in hashes and hashes[0] != hashes[1]:
                first[sequence] = key[2], "lm_head"
    changed = changed or bool(first)
    return changed, first.get((wanted[0], wanted[1])) if wanted[0] is not None else None


def _rows(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return found
