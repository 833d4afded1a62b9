"""What a model folder says beside its weights: config, quantization, code, adapters, sampling defaults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.fingerprint import Fact, fact, fact_or, unavailable
from ..untrusted.files import digest_of, read_object, read_small
from .read_and_hash import report_unreadable
from .ref import ADAPTER_CONFIG, MISTRAL_CONFIG, adapter_weights
from .small_texts import keep_texts
from .weights import not_read

if TYPE_CHECKING:
    from ...schemas.choices import Strength

CONFIG, GENERATION = "config.json", "generation_config.json"
CONFIG_FIELDS = (
    "config_sha256",
    "generation_config_sha256",
    "quantization_method",
    "quantization_config_sha256",
    "dtype",
    "architecture",
    "vocab_size",
    "context_length",
    "code",
    "adapters",
)
_QUANTIZATION_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""File that a quantization tool leaves beside the weights → method where the file does not name one."""
_QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
"""Entries of a config that state it; the last is of Mistral's params.json."""


def folder_facts(
    folder: Path, adapters: Sequence[Path], digests: Mapping[Path, str], strength: Strength
) -> dict[str, Fact]:
    """The `CONFIG_FIELDS` of a model folder.

    Args:
        folder: The model.
        adapters: Folders of adapters in it.
        digests: Hex SHA-256 of the adapters' weights files; they are read at strength `verified`.
        strength: How the weights were read.
    """
    name = config_name(folder)
    config = read_object(folder / name)
    method, quantization = _quantization(folder, config)

    def stated(read: Callable[[dict[str, Any]], str | int | None]) -> Fact:
        if isinstance(config, str):
            return unavailable(config, name)
        return fact_or(read(config), name, f"{name} does not state it")

    return {
        "config_sha256": digest_of(config, name),
        "generation_config_sha256": digest_of(read_object(folder / GENERATION), GENERATION),
        "quantization_method": method,
        "quantization_config_sha256": quantization,
        "dtype": stated(_dtype),
        "architecture": stated(_architecture),
        "vocab_size": stated(partial(_size, names=("vocab_size",))),
        "context_length": stated(partial(_size, names=("max_position_embeddings", "max_seq_len"))),
        "code": _code(folder),
        "adapters": not_read(strength)
        if adapters and strength != "verified"
        else fact(
            {"." if path == folder else path.name: _adapter(path, digests) for path in adapters},
            ADAPTER_CONFIG,
        ),
    }


def folder_texts(folder: Path, adapters: Sequence[Path]) -> dict[str, Any]:
    """Field → the JSON behind its digest, as far as the files can be read and are small.

    Args:
        folder: A model or an adapter.
        adapters: Folders of adapters in it.
    """
    name = config_name(folder)
    is_adapter = folder in adapters and not (folder / name).is_file()
    config = read_object(folder / (ADAPTER_CONFIG if is_adapter else name))
    quantization = _stated(config, *_QUANTIZATION_KEYS) if isinstance(config, dict) else None
    beside = [name for name in _QUANTIZATION_FILES if (folder / name).is_file()]
    if quantization is None and beside:
        quantization = read_object(folder / beside[0])
    configs = {
        "." if path == folder else path.name: content
        for path in adapters
        if isinstance(content := read_object(path / ADAPTER_CONFIG), dict)
    }
    return keep_texts(
        {
            "config_sha256": config,
            "generation_config_sha256": read_object(folder / GENERATION),
            "quantization_config_sha256": quantization,
            "adapters": configs,
        }
    )


def adapter_facts(folder: Path) -> dict[str, Fact]:
    """The `CONFIG_FIELDS` of an adapter: most are those of its base model, which is named."""
    config = read_object(folder / ADAPTER_CONFIG)
    of_base = unavailable(
        f"an adapter; its base model has it: {_base(config) or 'not named'}", ADAPTER_CONFIG
    )
    return {
        **dict.fromkeys(CONFIG_FIELDS, of_base),
        "config_sha256": digest_of(config, ADAPTER_CONFIG),
        "code": _code(folder),
        "adapters": fact({".": _adapter(folder, {})}, ADAPTER_CONFIG),
    }


def sampling_defaults(folder: Path) -> Fact:
    """What an engine samples with where a request says nothing."""
    generation = read_object(folder / GENERATION)
    if isinstance(generation, str):
        return unavailable(generation, GENERATION)
    own_notes = {"transformers_version", "_from_model_config"}
    return fact({name: value for name, value in generation.items() if name not in own_notes}, GENERATION)


def config_name(folder: Path) -> str:
    """The file with the model's configuration: Mistral's own layout has another one."""
    is_mistral = not (folder / CONFIG).is_file() and (folder / MISTRAL_CONFIG).is_file()
    return MISTRAL_CONFIG if is_mistral else CONFIG


def _dtype(config: dict[str, Any]) -> str | None:
    dtype = _stated(config, "dtype", "torch_dtype")
    return str(dtype) if dtype else None


def _size(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    value = _stated(config, *names)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _stated(config: dict[str, Any], *names: str) -> Any:
    """The first of some entries that is stated; models with several parts state them for their text."""
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, dict) else {}):
        for name in names:
            if value := holder.get(name):
                return value
    return None


def _architecture(config: dict[str, Any]) -> str | None:
    names = config.get("architectures")
    named = names[0] if isinstance(names, list) and names else config.get("model_type")
    return str(named) if named else None


# Quantization --------------------------------------------------------------------------------------------


def _quantization(folder: Path, config: dict[str, Any] | str) -> tuple[Fact, Fact]:
    """The method, and the digest of the whole configuration."""
    stated = _stated(config, *_QUANTIZATION_KEYS) if isinstance(config, dict) else None
    if stated is not None:
        return _stated_quantization(stated, config_name(folder), None)
    for name, method in _QUANTIZATION_FILES.items():
        if (folder / name).is_file():
            return _stated_quantization(read_object(folder / name), name, method)
    source = config_name(folder)
    if isinstance(config, str):
        return unavailable(config, source), unavailable(config, source)
    return fact("none", source), unavailable(f"{source} states no quantization", source)


def _stated_quantization(stated: Any, source: str, otherwise: str | None) -> tuple[Fact, Fact]:
    if not isinstance(stated, dict):
        absent = unavailable(stated if otherwise else f"{source} does not state it", source)
        return absent, absent
    inner = stated.get("quantization")
    algorithm = inner.get("quant_algo") if isinstance(inner, dict) else None
    method = (
        stated.get("quant_method")
        or stated.get("qformat_weight")
        or (otherwise and " ".join(filter(None, (otherwise, algorithm))))
    )
    return (
        fact_or(method and str(method), source, f"{source} does not state it"),
        fact(sha256_of(stated), source),
    )


# Code and adapters ---------------------------------------------------------------------------------------


def _code(folder: Path) -> Fact:
    """Python files that `trust_remote_code` would run: they compute what the model computes."""
    digests: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        if path.is_file():
            with report_unreadable(path):
                digests[path.name] = hashlib.sha256(read_small(path)).hexdigest()
    return fact(digests, "file-sha256:verified")


def _adapter(folder: Path, digests: Mapping[Path, str]) -> dict[str, Any]:
    """An adapter's identity. An entry that its config does not state is left out."""
    config = read_object(folder / ADAPTER_CONFIG)
    found: dict[str, Any] = {
        "config_sha256": digest_of(config, ADAPTER_CONFIG).text(),
        "base": _base(config) or "not named",
    }
    if isinstance(config, dict):
        for name in ("peft_type", "r", "lora_alpha"):
            if isinstance(config.get(name), str | int | float):
                found[name] = config[name]
    return found | {path.name: digests[path] for path in adapter_weights(folder) if path in digests}


def _base(config: dict[str, Any] | str) -> str | None:
    if isinstance(config, str):
        return None
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    return (f"{name}@{revision}" if revision else str(name)) if name else None
