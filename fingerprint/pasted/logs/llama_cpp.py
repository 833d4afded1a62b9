"""Readers of llama.cpp's start-up log and of what `--version` prints."""

from __future__ import annotations

import re

from ..paste import Paste
from .lines import NUMBER, matched

_KEY_VALUE = re.compile(
    r"llama_model_loader: - kv\s{1,4}\d{1,5}:\s{1,80}([\w.]{1,100}) (\S{1,20})\s{0,20}= (.*)"
)
_TYPE = re.compile(r"llama_model_loader: - type\s{1,8}(\w{1,16}):\s{1,8}(\d{1,6}) tensors")
_SETTING = re.compile(r"\w{1,60}: ([\w ]{1,40}?)\s{1,20}= (.*)")
_LLAMA_DEVICE = re.compile(
    r"(?:ggml_\w{1,20}_init: )?Device (\d{1,3}): ([^,]{1,100}), compute capability (\d{1,3}\.\d{1,2})"
)
_FEATURE = re.compile(r"([A-Z][A-Z0-9_]{1,30}) = ([01])")
_CONTEXT = {
    "n_ctx": "engine.max_model_len",
    "n_batch": "engine.max_batched_tokens",
    "n_ubatch": "engine.micro_batch_size",
    "n_seq_max": "engine.max_sequences",
    "flash_attn": "engine.flash_attention",
    "kv_unified": "cache.unified",
    "freq_scale": "engine.rope_scale",
    "n_ctx_train": "model.context_length",
    "n_vocab": "model.vocab_size",
    "arch": "model.architecture",
    "file type": "model.quantization_method",
    "model ftype": "model.quantization_method",
    "ftype": "model.quantization_method",
    "seed": "determinism.engine_seed",
}
"""What llama.cpp calls a setting → the field."""


_LLAMA_VERSION = re.compile(
    r"(?:main: )?(?:build info: |version|build)\s{0,4}[:=]?\s{0,4}"
    r"b?(\d{3,6})[ -]\(?([0-9a-f]{7,40})\)?(.*)"
)


def read_version(line: str, paste: Paste) -> bool:
    """`version: 6271 (4c37636b)`, `main: build = 2477 (f9c7ba34)`, `build: 6271 (…) with …`."""
    match = _LLAMA_VERSION.match(line)
    if match is None:
        return False
    paste.state("engine.name", "llama.cpp")
    paste.state("engine.version", f"b{match[1]}-{match[2]}")
    paste.state("engine.commit", match[2])
    if compiler := match[3].strip().removeprefix("with "):
        paste.enter("engine.build", "compiler", compiler)
    return True


def read_compiler(line: str, paste: Paste) -> bool:
    """`built with cc (Ubuntu …) 13.3.0 for x86_64-linux-gnu`."""
    paste.enter("engine.build", "compiler", line.partition("built with ")[2])
    return True


def read_model(line: str, paste: Paste) -> bool:
    """Lines of llama.cpp's model loader: the file, its metadata, how many tensors are stored how."""
    if " from " in line and "loaded meta data" in line:
        paste.state("engine.name", paste.place.get("engine", "llama.cpp"))
        paste.state("model.served", line.partition(" from ")[2].partition(" (version")[0])
        return True
    if match := _TYPE.match(line):
        paste.enter("model.tensor_dtypes", match[1].upper(), int(match[2]))
        return True
    match = _KEY_VALUE.match(line)
    if match is None:
        return False
    name, value = match[1], match[3].strip()
    if name == "general.architecture":
        paste.state("model.architecture", value)
    elif name.endswith(".context_length") and value.isdigit():
        paste.state("model.context_length", int(value))
    elif name.startswith("tokenizer.") or match[2].startswith("arr"):
        return False
    else:
        paste.enter("model.metadata", name, value[:200])
    return True


def read_setting(line: str, paste: Paste) -> bool:
    """`llama_context: n_ctx = 512` and its like."""
    match = _SETTING.match(line[:2000])
    field = _CONTEXT.get(match[1].strip()) if match is not None else None
    if match is None or field is None:
        return False
    words = match[2].split()
    text = match[2].strip() if field.startswith("model.") else words[0] if words else ""
    if re.fullmatch(NUMBER, text):
        paste.state(field, int(text))
    else:
        paste.state(field, {"true": True, "false": False}.get(text, text))
    return True


def read_system(line: str, paste: Paste) -> bool:
    """`system_info: n_threads = 16 / 32 | AVX = 1 | …`."""
    if threads := re.search(r"n_threads = (\d{1,4})", line):
        paste.state("engine.threads", int(threads[1]))
    features = {name: value == "1" for name, value in _FEATURE.findall(line[:4000])}
    for name, value in features.items():
        paste.enter("engine.build", name, value)
    return True


def read_device(line: str, paste: Paste) -> bool:
    """`Device 0: NVIDIA …, compute capability 12.0, VMM: yes`."""
    match = _LLAMA_DEVICE.match(line)
    if match is None:
        return False
    paste.enter("gpus.name", match[1], match[2])
    paste.enter("gpus.compute_capability", match[1], match[3])
    paste.place.setdefault("gpus", set()).add(match[1])
    return True


def read_build(line: str, paste: Paste) -> bool:
    """`ggml_cuda_init: GGML_CUDA_FORCE_MMQ: no`."""
    name, sign, value = line.partition(": ")[2].partition(":")
    if sign and re.fullmatch(r"GGML_[A-Z0-9_]{1,40}", name):
        paste.enter("engine.build", name, value.strip())
        return True
    return "found " in line and "devices" in line


_SAMPLING = re.compile(r"([a-z_]{2,30}) = (-?\d{1,9}(?:\.\d{1,9})?)(?=,|\s|$)")


def read_sampling(line: str, paste: Paste) -> bool:
    """`top_k = 40, tfs_z = 1.000, top_p = 0.950, …, temp = 0.800`: what a silent request gets."""
    found = _SAMPLING.findall(line[:2000])
    if len(found) < 3:
        return False
    for name, value in found:
        paste.enter("sampling.server_defaults", name, float(value) if "." in value else int(value))
    return True


SLOTS = matched(r"n_slots = (\d{1,4})", "engine.max_sequences", engine="llama.cpp")
