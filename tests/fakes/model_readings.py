"""Reading only a model into a fingerprint, and what changed between two of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rip.fingerprint.collect import Probe, collect
from rip.fingerprint.drift import drift
from rip.fingerprint.model.ref import resolve
from rip.schemas.choices import Strength
from rip.schemas.fingerprint import Fact, Fingerprint

MODEL_PROBE = (Probe("model", ".probes.model_files:probe", ("model",), limit_s=None),)


WEIGHTS = "model.safetensors"
FILE = {"model.sha256", "model.files"}
TENSORS = {"model.tensors_root", "model.tensors"}
SMALL_TENSORS_CHANGED = {*FILE, *TENSORS, "model.sampled_root"}  # a sample of a small tensor is all of it


def read(path: Path, strength: Strength = "verified", fast: bool = False) -> Fingerprint:
    model = resolve(str(path), accept_adapter=True)
    return collect(model, probes=MODEL_PROBE, strength=strength, fast=fast)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def reading(found: Fingerprint, section: str, field: str) -> Fact:
    fact = found.get(section, field)
    assert fact is not None
    return fact


def changed_fields(before: Fingerprint, after: Fingerprint) -> set[str]:
    return {f"{change.section}.{change.field}" for change in drift(before, after)}
