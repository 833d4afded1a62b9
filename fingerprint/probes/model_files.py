"""A model's identity from its files: weights, config, tokenizer, chat template, sampling defaults.

What each digest is computed over is specified in docs/fingerprint.md; anybody can recompute it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fact, Section, fact, fact_or, unavailable
from ..model.digest_cache import DigestCache
from ..model.folder_config import CONFIG_FIELDS, adapter_facts, folder_facts, folder_texts, sampling_defaults
from ..model.gguf_metadata import GgufHeader, read_header
from ..model.hub_cache import other_revisions, refs_to, unfinished_downloads
from ..model.read_and_hash import ReadOptions
from ..model.ref import ModelRef, adapter_weights, promised_tensors
from ..model.small_texts import keep_texts
from ..model.template_probe import reads_clock, rendered_facts
from ..model.tokenizer import (
    TOKENIZER_CONFIG,
    TOKENIZER_FIELDS,
    Tokenizer,
    folder_tokenizer,
    gguf_tokenizer,
    tokenizer_texts,
)
from ..model.weights import WEIGHT_FIELDS, Weights, index_facts, layouts_of, read_weights
from ..untrusted.files import read_object, read_small

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ...schemas.choices import Strength
    from ..model.read_and_hash import Progress
    from .context import Context

_TEMPLATE_FILE, _MORE_TEMPLATES, _OLD_TEMPLATE = (
    "chat_template.jinja",
    "additional_chat_templates",
    "chat_template.json",
)
_TEMPLATE_FIELDS = ("sha256", "named", "rendered_sha256", "rendered")
_GGUF_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
"""`general.file_type` → what most tensors are stored as (llama.cpp's llama_ftype)."""
_GGUF_UNQUANTIZED = frozenset({"F32", "F16", "BF16"})


def probe(context: Context) -> dict[str, Section]:
    """Sections `model`, `tokenizer`, `template` and part of `sampling`."""
    if context.model is None:
        return _no_model()
    return describe_model(
        context.model, context.progress, context.stop, strength=context.strength, fast=context.fast
    )


def describe_model(
    model: ModelRef,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    *,
    strength: Strength = "verified",
    fast: bool = False,
) -> dict[str, Section]:
    """The same sections for a given model.

    Args:
        model: From `model.ref.resolve`.
        progress: Called with (bytes done, bytes in all) while files are hashed.
        stop: When set, reading ends within one block.
        strength: How much of the weights is read. Tokenizer, template and configuration are always read.
        fast: Leave out the SHA-256 of the weights files; their tensors are read all the same.

    Raises:
        BadInput: A file cannot be read, changes meanwhile, or is a corrupt GGUF.
    """
    cache = DigestCache()
    options = ReadOptions(strength, fast, progress, stop)
    describe = _gguf if model.kind == "gguf" else _folder
    try:
        weights, sections = describe(model, options, cache)
    finally:
        cache.close()
    volatile = {
        "name": fact(model.name, "argument"),
        "path": fact(str(model.path.absolute()), "argument"),
        "cached": fact(weights.cached, "digest-cache"),
    }
    if model.revision is not None:
        volatile["revision"] = fact(model.revision, "hub-cache:claimed")
        volatile["refs"] = fact(refs_to(model.path), "hub-cache:claimed")
        volatile["other_revisions"] = fact(other_revisions(model.path), "hub-cache:claimed")
    if unfinished := unfinished_downloads(model.folder):
        volatile["unfinished_downloads"] = fact(unfinished, "hub-cache")
    if cache.note is not None:
        volatile["cache_note"] = fact(cache.note, "digest-cache")
    described = sections["model"]
    facts = {**weights.facts, **described.facts}
    return {**sections, "model": Section(facts=facts, volatile=volatile, texts=described.texts)}


def _no_model() -> dict[str, Section]:
    absent = unavailable("no model was given", "argument")
    return {
        "model": Section(facts=dict.fromkeys((*WEIGHT_FIELDS, *CONFIG_FIELDS), absent)),
        "tokenizer": Section(facts=dict.fromkeys(TOKENIZER_FIELDS, absent)),
        "template": Section(facts=dict.fromkeys(_TEMPLATE_FIELDS, absent)),
        "sampling": Section(facts={"model_defaults": absent}),
    }


# A model folder ------------------------------------------------------------------------------------------


def _folder(model: ModelRef, options: ReadOptions, cache: DigestCache) -> tuple[Weights, dict[str, Section]]:
    layouts = layouts_of(model.weight_files, {})
    adapters = [path for folder in model.adapters for path in adapter_weights(folder)]
    others = [*model.tokenizer_files, *(adapters if options.strength == "verified" else ())]
    templates, source = _folder_templates(model.path)
    weights = read_weights(layouts, options, cache, others)
    digests = {path: reading.sha256 or "" for path, reading in weights.readings.items()}
    tokenizer = folder_tokenizer(model, digests, cache)
    if model.kind == "adapter":
        facts = adapter_facts(model.path)
    else:
        facts = folder_facts(model.path, model.adapters, digests, options.strength)
        facts |= index_facts(promised_tensors(model.path), layouts)
    return weights, {
        "model": Section(facts=facts, texts=folder_texts(model.path, model.adapters) or None),
        "tokenizer": Section(facts=tokenizer.facts, texts=tokenizer_texts(model.path) or None),
        "template": _template_section(templates, source, tokenizer, cache),
        "sampling": Section(facts={"model_defaults": sampling_defaults(model.path)}),
    }


def _folder_templates(folder: Path) -> tuple[dict[str, str], str]:
    """Template name → text (`default` is the one used when none is named), and where they were found."""
    named = {path.stem: _text(path) for path in sorted((folder / _MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / _TEMPLATE_FILE).is_file():
        return {"default": _text(folder / _TEMPLATE_FILE), **named}, _TEMPLATE_FILE
    for name in (TOKENIZER_CONFIG, _OLD_TEMPLATE):
        config = read_object(folder / name)
        template = config.get("chat_template") if isinstance(config, dict) else None
        if isinstance(template, str):
            return {"default": template, **named}, name
        if isinstance(template, list):
            entries = [entry for entry in template if isinstance(entry, dict)]
            return {str(entry.get("name")): str(entry.get("template")) for entry in entries} | named, name
    return named, "files"


def _text(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{path} is not a readable UTF-8 file", "fetch that file again") from None


def _template_section(
    templates: Mapping[str, str], source: str, tokenizer: Tokenizer, cache: DigestCache
) -> Section:
    if not templates:
        absent = unavailable("the model has no chat template", source)
        return Section(facts=dict.fromkeys(_TEMPLATE_FIELDS, absent))
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in templates.items()}
    facts = {
        "sha256": fact_or(digests.get("default"), source, "no template is the default one"),
        "named": fact(digests, source),
        **rendered_facts(templates, tokenizer.special_tokens, cache),
    }
    clocks = [name for name, text in templates.items() if reads_clock(text)]
    volatile = {"reads_clock": fact(clocks, source)} if clocks else {}
    return Section(facts=facts, volatile=volatile, texts=keep_texts({"named": dict(templates)}) or None)


# A GGUF file ---------------------------------------------------------------------------------------------


def _gguf(model: ModelRef, options: ReadOptions, cache: DigestCache) -> tuple[Weights, dict[str, Section]]:
    headers = {path: read_header(path) for path in model.weight_files}
    metadata = headers[model.path].metadata
    tokenizer = gguf_tokenizer(metadata)
    weights = read_weights(layouts_of(model.weight_files, headers), options, cache)
    sampling = {name: value for name, value in metadata.items() if name.startswith("general.sampling.")}
    return weights, {
        "model": Section(
            facts=_gguf_facts(metadata, headers),
            texts=keep_texts({"config_sha256": _config(metadata)}) or None,
        ),
        "tokenizer": Section(facts=tokenizer.facts),
        "template": _template_section(_gguf_templates(metadata), "gguf-metadata", tokenizer, cache),
        "sampling": Section(
            facts={
                "model_defaults": fact_or(sampling, "gguf-metadata", "the file states no sampling defaults")
            }
        ),
    }


def _gguf_facts(metadata: Mapping[str, Any], headers: Mapping[Path, GgufHeader]) -> dict[str, Fact]:
    config = _config(metadata)
    file_type = metadata.get("general.file_type")
    stored_as = (
        _GGUF_FILE_TYPES.get(file_type, f"file type {file_type}") if isinstance(file_type, int) else None
    )
    architecture = metadata.get("general.architecture")
    tokens = metadata.get("tokenizer.ggml.tokens")

    def stated(value: Any) -> Fact:
        return fact_or(value, "gguf-metadata", "the file does not state it")

    def none(what: str) -> Fact:
        return unavailable(f"a GGUF file has no {what}", "gguf-metadata")

    return {
        "config_sha256": fact(sha256_of(config), "gguf-metadata"),
        "generation_config_sha256": none("generation_config"),
        "quantization_method": stated("none" if stored_as in _GGUF_UNQUANTIZED else stored_as),
        "quantization_config_sha256": none("quantization_config; tensor_dtypes says how tensors are stored"),
        "dtype": stated(stored_as),
        "architecture": stated(architecture),
        "vocab_size": stated(len(tokens) if isinstance(tokens, list) and tokens else None),
        "context_length": stated(metadata.get(f"{architecture}.context_length")),
        "code": none("code"),
        "adapters": none("adapters beside it that it would load by itself"),
        "weights_metadata_sha256": none("such metadata; config_sha256 and tokenizer.sha256 cover its own"),
    }


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if not name.startswith("tokenizer.")}


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {"default": metadata.get(key)} | {
        name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")
    }
    return {name: text for name, text in found.items() if isinstance(text, str)}
