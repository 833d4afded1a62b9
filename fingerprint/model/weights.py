"""A model's weights as facts: files, tensors and their roots, at the strength that was asked for.

What each digest is computed over is specified in docs/fingerprint.md; anybody can recompute it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.choices import Strength
from ...schemas.fingerprint import Fact, fact, unavailable
from .gguf_metadata import GgufHeader
from .hub_cache import claim_of
from .read_and_hash import Job, Reading, ReadOptions, read_files, report_unreadable, sample_tensors
from .tensor_digests import Layout, LayoutFault, Tensor, layout_sha256, listed, root_of, safetensors_layout

if TYPE_CHECKING:
    from .digest_cache import DigestCache

VERIFIED = "file-sha256:verified"
TENSORS_VERIFIED = "tensor-blake3:verified"
TENSORS_SAMPLED = "tensor-windows-8x4096-blake3:sampled"
HEADER = "weights-header"
_TENSOR_FIELDS = ("tensors_root", "tensors", "sampled_root", "sampled_tensors")
_HEADER_FIELDS = ("layout_sha256", "tensor_dtypes", "weights_metadata_sha256")
WEIGHT_FIELDS = ("sha256", "files", *_TENSOR_FIELDS, *_HEADER_FIELDS, "contradicted_claims")
_MOST_NAMED = 100
"""Tensors of an index that are named where they are not in their file."""
Layouts = Mapping[Path, Layout | LayoutFault]


@dataclass(frozen=True)
class Weights:
    """What was found."""

    facts: dict[str, Fact]
    cached: bool
    """Nothing of it was read now: earlier runs had."""
    readings: dict[Path, Reading]
    """Of all files that were read whole, those that are no weights included."""


def layouts_of(files: Sequence[Path], gguf: Mapping[Path, GgufHeader]) -> Layouts:
    """Where the tensors of each weights file lie, or why that is unknown.

    Raises:
        BadInput: A file cannot be read.
    """
    return {path: gguf[path].layout if path in gguf else _layout(path) for path in files}


def _layout(path: Path) -> Layout | LayoutFault:
    if path.suffix != ".safetensors":
        return LayoutFault("pickled tensors are not read; convert the model to safetensors")
    found: Layout | LayoutFault
    with report_unreadable(path):
        try:
            found = safetensors_layout(path)
        except LayoutFault as fault:
            found = fault
    return found


def read_weights(
    layouts: Layouts, options: ReadOptions, cache: DigestCache | None, others: Sequence[Path] = ()
) -> Weights:
    """Facts about weights files.

    Args:
        layouts: Of each weights file.
        options: How they are to be read.
        cache: Digests of earlier runs.
        others: Files that are read in the same go, such as a tokenizer's; always whole.

    Raises:
        BadInput: A file cannot be read, or changes meanwhile.
    """
    known = {path: layout for path, layout in layouts.items() if isinstance(layout, Layout)}
    tensors = _Tensors.of(layouts)
    is_fast = options.fast and tensors.reason is None  # otherwise nothing would identify the weights
    jobs = [Job(path) for path in others]
    if options.strength == "verified":
        jobs += [Job(path, known.get(path), sha256=not is_fast) for path in layouts]
    readings = read_files(jobs, options.progress, cache, options.stop)
    if options.strength == "verified":
        weights = {path: readings[path] for path in layouts}
        facts = _verified(weights, is_fast) | tensors.verified(weights)
    else:
        facts = _claimed(layouts, options.strength)
        if options.strength == "sampled":
            facts |= tensors.sampled(sample_tensors(tensors.layouts, options.stop))
        else:
            facts |= dict.fromkeys(_TENSOR_FIELDS, not_read("claimed"))
    facts |= tensors.described()
    return Weights(
        {name: facts[name] for name in WEIGHT_FIELDS},
        cached=options.strength == "verified" and all(readings[path].cached for path in layouts),
        readings=readings,
    )


def index_facts(promised: Mapping[str, str], layouts: Layouts) -> dict[str, Fact]:
    """`contradicted_index`: tensors that are not where the index promises them; nothing where all are.

    Args:
        promised: Tensor → file name, as the index says.
        layouts: Of each weights file. Of one that could not be taken apart nothing is known.
    """
    held: dict[str, list[str]] = {}
    unknown = {path.name for path, layout in layouts.items() if isinstance(layout, LayoutFault)}

    def add(more: Layouts) -> None:
        for path, layout in more.items():
            for tensor in layout.tensors if isinstance(layout, Layout) else ():
                held.setdefault(tensor.name, []).append(path.name)

    add(layouts)
    wrong = [
        (tensor, file)
        for tensor, file in sorted(promised.items())
        if file not in unknown and file not in held.get(tensor, [])
    ][:_MOST_NAMED]
    if not wrong:
        return {}
    # A file that the index leaves out is not loaded; it may hold what is missing.
    folder = next(iter(layouts)).parent
    add(layouts_of([path for path in sorted(folder.glob("*.safetensors")) if path not in layouts], {}))
    places = {
        tensor: {"promised": file, "found": ", ".join(held.get(tensor, ["in no file"]))}
        for tensor, file in wrong
    }
    return {"contradicted_index": fact(places, HEADER)}


def not_read(strength: Strength) -> Fact:
    """A fact that strength `verified` would have had: not a difference of models."""
    return unavailable(f"not read at strength {strength}", f"strength:{strength}")


# Files ---------------------------------------------------------------------------------------------------


def _verified(weights: Mapping[Path, Reading], is_fast: bool) -> dict[str, Fact]:
    if is_fast:
        reason = "left out with --fast: tensors_root covers every tensor"
        names = ("sha256", "files", "contradicted_claims")
        return dict.fromkeys(names, unavailable(reason, "strength:verified"))
    files = {path.name: {"sha256": reading.sha256, "size": reading.size} for path, reading in weights.items()}
    contradicted = {
        path.name: {"claimed": claim.sha256, "read": reading.sha256, "by": claim.source}
        for path, reading in weights.items()
        if (claim := claim_of(path)) is not None and claim.sha256 != reading.sha256
    }
    return {
        "sha256": fact(_of_files(files), VERIFIED),
        "files": fact(files, VERIFIED),
        "contradicted_claims": fact(contradicted, VERIFIED),
    }


def _claimed(layouts: Layouts, strength: Strength) -> dict[str, Fact]:
    files: dict[str, dict[str, Any]] = {}
    sources: set[str] = set()
    reasons: list[Fact] = []
    for path, layout in layouts.items():
        claim = claim_of(path)
        if claim is None:
            reason = f"nothing claims a digest of {path.name}: read it with --strength verified"
            reasons.append(unavailable(reason, f"strength:{strength}"))
        elif isinstance(layout, LayoutFault) and path.suffix in (".safetensors", ".gguf"):
            reason = f"{path.name} is claimed to be {claim.sha256[:12]}…, but {layout}"
            reasons.insert(0, unavailable(reason, claim.source))  # says more than that a claim is missing
        else:
            with report_unreadable(path):
                files[path.name] = {"sha256": claim.sha256, "size": path.stat().st_size}
            sources.add(claim.source)
    source = "+".join(sorted(sources))
    return {
        "sha256": reasons[0] if reasons else fact(_of_files(files), source),
        "files": reasons[0] if reasons else fact(files, source),
        "contradicted_claims": not_read(strength),
    }


def _of_files(files: Mapping[str, Mapping[str, Any]]) -> str:
    if len(files) == 1:
        return str(next(iter(files.values()))["sha256"])  # what `sha256sum` prints
    return sha256_of({name: file["sha256"] for name, file in files.items()})


# Tensors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensors:
    """All tensors of a model over its files, or why they are unknown."""

    layouts: dict[Path, Layout]
    reason: str | None

    @classmethod
    def of(cls, layouts: Layouts) -> _Tensors:
        known: dict[Path, Layout] = {}
        names: set[str] = set()
        for path, layout in layouts.items():
            if isinstance(layout, LayoutFault):
                return cls({}, f"{path.name}: {layout}")
            known[path] = layout
            for tensor in layout.tensors:
                if tensor.name in names:
                    return cls({}, f"tensor {tensor.name!r} stands in two files, also in {path.name}")
                names.add(tensor.name)
        return cls(known, None)

    def all(self) -> list[Tensor]:
        return [tensor for layout in self.layouts.values() for tensor in layout.tensors]

    def described(self) -> dict[str, Fact]:
        """What the headers alone say."""
        if self.reason is not None:
            return dict.fromkeys(_HEADER_FIELDS, unavailable(self.reason, HEADER))
        tensors = self.all()
        metadata = {sha256_of(layout.metadata) for layout in self.layouts.values()}
        return {
            "layout_sha256": fact(layout_sha256(tensors), HEADER),
            "tensor_dtypes": fact(dict(sorted(Counter(tensor.dtype for tensor in tensors).items())), HEADER),
            "weights_metadata_sha256": fact(sha256_of(sorted(metadata)), HEADER),
        }

    def verified(self, readings: Mapping[Path, Reading]) -> dict[str, Fact]:
        if self.reason is not None:
            return self._unknown()
        contents = self._with({path: reading.contents for path, reading in readings.items()})
        sampled = self._with({path: reading.sampled for path, reading in readings.items()})
        return {
            "tensors_root": fact(root_of(contents), TENSORS_VERIFIED),
            "tensors": fact(listed(contents), TENSORS_VERIFIED),
            # The same value as from windows alone, so that a sample can be held against a verified base.
            "sampled_root": fact(root_of(sampled), TENSORS_VERIFIED),
            "sampled_tensors": unavailable("tensors says more", "strength:verified"),
        }

    def sampled(self, windows: Mapping[Path, Sequence[bytes]]) -> dict[str, Fact]:
        if self.reason is not None:
            return self._unknown()
        sampled = self._with(windows)
        return {
            **dict.fromkeys(("tensors_root", "tensors"), not_read("sampled")),
            "sampled_root": fact(root_of(sampled), TENSORS_SAMPLED),
            "sampled_tensors": fact(listed(sampled), TENSORS_SAMPLED),
        }

    def _unknown(self) -> dict[str, Fact]:
        assert self.reason is not None
        return dict.fromkeys(_TENSOR_FIELDS, unavailable(self.reason, HEADER))

    def _with(self, digests: Mapping[Path, Sequence[bytes]]) -> list[tuple[Tensor, bytes]]:
        return [
            pair
            for path, layout in self.layouts.items()
            for pair in zip(layout.tensors, digests[path], strict=True)
        ]
