"""Facts from text that people paste into bug reports: reports of an environment, start-up logs, tables.

Only lines that state a field are taken, by the one table of `pasted/readers.py`; of the others only the
number is kept. A drift compares only what a text states.
"""

from __future__ import annotations

from ... import __version__
from ...schemas.fingerprint import (
    FLAT_KEYS,
    NO_TIME,
    NOT_PASTED,
    NOT_SET,
    PASTED,
    Fingerprint,
    Section,
    fact,
    unavailable,
)
from ..fields.known_names import ALL_VARIABLES, BATCH_INVARIANCE_VARIABLES
from ..pasted.accelerators import state_cards
from ..pasted.lines import is_json_log, plain_lines
from ..pasted.paste import Paste
from ..pasted.readers import READERS
from ..pasted.reports import MARKS, kind_of, split_label

MAX_BYTES = 4 << 20
"""Longest text that is read; what people paste has some ten thousand characters."""
KINDS = (
    "torch.utils.collect_env, vllm collect-env, transformers env, sglang.check_env, TGI's --env, nvidia-smi, "
    "rocminfo, rocm-smi, amd-smi, npu-smi, pip freeze or list, start-up logs of vLLM, SGLang, llama.cpp and "
    "Ollama"
)
"""What is recognised, for people."""
_FEW_PACKAGES = 2
"""Lines `name==version` that make a text a list of packages."""
# vLLM prints every variable that begins so, and all of its own: one that is missing there was not set.
_REPORTED = ("TORCH", "PYTORCH", "NCCL", "CUDA", "CUBLAS", "OMP_", "MKL_", "NVIDIA", "VLLM_")


def from_text(content: bytes) -> Fingerprint | None:
    """The fingerprint that a pasted text amounts to, or None where it is not one of the known kinds.

    Args:
        content: A file's bytes: the text alone, or a bug report with the text in it.
    """
    if len(content) > MAX_BYTES or (content.lstrip()[:1] == b"{" and not is_json_log(content)):
        return None
    lines = list(plain_lines(content))
    paste = Paste(report=_report(lines) or "report")
    for line in lines:
        _read(line, paste)
    is_known = paste.report != "report" or paste.kinds or paste.packages >= _FEW_PACKAGES
    state_cards(paste)
    if not is_known or not (paste.facts or paste.tables):
        return None
    if paste.report == "vllm.collect_env" and "Environment Variables" in lines:
        paste.kind = paste.report
        for name in ALL_VARIABLES:
            if name.startswith(_REPORTED):
                paste.state(f"determinism.{name}", unavailable(NOT_SET, paste.source))
    return _built(paste)


def _report(lines: list[str]) -> str | None:
    """The most telling kind of labelled report in the text."""
    labels = (label_and_value[0].lower() for line in lines if (label_and_value := split_label(line)))
    found = {kind for label in labels if (kind := kind_of(label))}
    return next((kind for kind in MARKS if kind in found), None)


def _read(line: str, paste: Paste) -> None:
    """Let the first reader that can take a line do so."""
    if paste.place.get("tgi") is not None:  # its arguments go on over lines of any form
        paste.kind = "tgi.env"
        READERS[0].read(line, paste)
        return
    for reader in READERS:
        if not line.startswith(reader.begins):
            continue
        paste.kind = reader.kind or paste.report
        if reader.read(line, paste):
            if reader.is_mark:
                paste.kinds[reader.kind] = paste.kinds.get(reader.kind, 0) + 1
            return
    paste.not_understood += 1


def _built(paste: Paste) -> Fingerprint:
    paste.kind = paste.report if paste.report != "report" else next(iter(paste.kinds), "pip.freeze")
    packaged = paste.tables.pop(("engine", "of_packages"), ("", {}))[1]
    for (section, name), (source, table) in paste.tables.items():
        paste.facts.setdefault((section, name), fact(table, source))
    paste.state("libraries.cuda", paste.place.get("cuda"))
    if len(packaged) == 1:  # of several, nobody knows which one answered
        [(engine, version)] = packaged.items()
        if paste.facts.get(("engine", "name"), fact(engine, "")).value == engine:
            paste.state("engine.name", engine)
            paste.state("engine.version", version)
    for name in BATCH_INVARIANCE_VARIABLES:
        switch = paste.facts.get(("determinism", name))
        if switch is not None and switch.value is not None:
            paste.state("determinism.batch_invariance", f"{name}={switch.value}")
    _state_gpus(paste)
    hidden = unavailable(NOT_PASTED, PASTED + paste.kind)
    for section, name in FLAT_KEYS.values():
        paste.state(f"{section}.{name}", hidden)
    sections: dict[str, Section] = {}
    for (section, name), reading in paste.facts.items():
        known = sections.get(section, Section())
        sections[section] = Section(facts={**known.facts, name: reading})
    kinds = [paste.report] if paste.report != "report" else []
    kinds += [kind for kind in paste.kinds if kind not in kinds]
    volatile = {
        "lines_not_understood": fact(paste.not_understood, paste.source),
        "pasted_kinds": fact(kinds or ["pip.freeze"], paste.source),
    }
    sections["process"] = Section(facts=sections.get("process", Section()).facts, volatile=volatile)
    return Fingerprint.build(__version__, NO_TIME, sections)


def _state_gpus(paste: Paste) -> None:
    """How many GPUs were named, and what they are in one line where that is stated."""
    names = paste.facts.get(("gpus", "name"))
    if names is None or not isinstance(names.value, dict):
        if numbers := paste.place.get("gpus"):
            paste.state("gpus.installed_count", len(numbers))
        return
    if paste.place.get("gpus"):
        paste.state("gpus.installed_count", max(len(names.value), len(paste.place["gpus"])))
    capabilities = paste.facts.get(("gpus", "compute_capability"))
    if capabilities is None or not isinstance(capabilities.value, dict):
        return
    each = [f"{name} {capabilities.value.get(number, '?')}" for number, name in names.value.items()]
    same = each[0] if len(each) == 1 else f"{len(each)} x {each[0]}"
    paste.state("gpus.name_and_compute_capability", same if len(set(each)) == 1 else each)
