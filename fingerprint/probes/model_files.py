"""A model's identity from its files: weights, config, tokenizer, chat template, sampling defaults.

What each digest is computed over is specified in docs/fingerprint.md; anybody can recompute it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...schemas.base import sha256_of
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..cache import DigestCache
from ..gguf_metadata import read_metadata
from ..hashing import FileDigest, hash_files
from ..model_ref import VOCABULARY_PATTERNS, ModelRef

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ..context import Context, Progress

VERIFIED = "file-sha256:verified"
_CONFIG, _GENERATION, _TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
_TEMPLATE_FILE, _MORE_TEMPLATES, _OLD_TEMPLATE = (
    "chat_template.jinja",
    "additional_chat_templates",
    "chat_template.json",
)
_MODEL_FIELDS = (
    "sha256",
    "files",
    "config_sha256",
    "generation_config_sha256",
    "quantization_method",
    "dtype",
    "architecture",
    "vocab_size",
    "context_length",
)
_GGUF_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip
"""`general.file_type` → what most tensors are stored as (llama.cpp's llama_ftype)."""
_GGUF_UNQUANTIZED = frozenset({"F32", "F16", "BF16"})


def probe(context: Context) -> dict[str, Section]:
    """Sections `model`, `tokenizer`, `template` and part of `sampling`."""
    if context.model is None:
        return _no_model()
    return describe_model(context.model, context.progress, context.stop)


def describe_model(
    model: ModelRef, progress: Progress | None = None, stop: threading.Event | None = None
) -> dict[str, Section]:
    """The same sections for a given model, all bytes read (or their digests known from an earlier run).

    Raises:
        BadInput: A file cannot be read, changes meanwhile, or is a corrupt GGUF.
    """
    cache = DigestCache()
    files = hash_files([*model.weight_files, *model.tokenizer_files], progress, cache, stop)
    cache.save()
    weights = {path.name: files[path] for path in model.weight_files}
    sections = _folder(model, files) if model.kind == "folder" else _gguf(model)
    volatile = {
        "name": fact(model.name, "argument"),
        "path": fact(str(model.path.absolute()), "argument"),
        "cached": fact(all(file.cached for file in weights.values()), "digest-cache"),
    }
    if model.revision is not None:
        volatile["revision"] = fact(model.revision, "hub-cache:claimed")
    if cache.note is not None:
        volatile["cache_note"] = fact(cache.note, "digest-cache")
    identity = {"sha256": _weights_digest(weights), "files": _file_list(weights)}
    sections["model"] = Section(facts={**identity, **sections["model"].facts}, volatile=volatile)
    return sections


def _no_model() -> dict[str, Section]:
    absent = unavailable("no model was given", "argument")
    return {
        "model": Section(facts=dict.fromkeys(_MODEL_FIELDS, absent)),
        "tokenizer": Section(facts={"sha256": absent, "files": absent}),
        "template": Section(facts={"sha256": absent, "named": absent}),
        "sampling": Section(facts={"model_defaults": absent}),
    }


def _weights_digest(weights: dict[str, FileDigest]) -> Fact:
    if len(weights) == 1:
        return fact(next(iter(weights.values())).sha256, VERIFIED)  # what `sha256sum` prints
    return fact(sha256_of({name: file.sha256 for name, file in weights.items()}), VERIFIED)


def _file_list(weights: dict[str, FileDigest]) -> Fact:
    return fact(
        {name: {"sha256": file.sha256, "size": file.size} for name, file in weights.items()}, VERIFIED
    )


# A model folder ------------------------------------------------------------------------------------------


def _folder(model: ModelRef, files: dict[Path, FileDigest]) -> dict[str, Section]:
    config = _json(model.path / _CONFIG)
    generation = _json(model.path / _GENERATION)
    return {
        "model": Section(
            facts={
                "config_sha256": _digest_of(config, _CONFIG),
                "generation_config_sha256": _digest_of(generation, _GENERATION),
                "quantization_method": _from_config(config, _quantization_method),
                "dtype": _from_config(config, _dtype),
                "architecture": _from_config(config, _architecture),
                "vocab_size": _from_config(config, _size("vocab_size")),
                "context_length": _from_config(config, _size("max_position_embeddings")),
            }
        ),
        "tokenizer": Section(facts=_folder_tokenizer(model, files)),
        "template": Section(facts=_template_facts(*_folder_templates(model.path))),
        "sampling": Section(facts={"model_defaults": _sampling_defaults(generation)}),
    }


def _json(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file as transformers reads it (NaN and Infinity allowed, a later key wins),
    or, as text, why there is none."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return f"the folder has no {path.name}"
    except OSError as error:
        return f"{path.name} could not be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{path.name} is not JSON"
    return content if isinstance(content, dict) else f"{path.name} is not a JSON object"


def _digest_of(content: dict[str, Any] | str, name: str) -> Fact:
    if isinstance(content, str):
        return unavailable(content, name)
    try:
        return fact(sha256_of(content), "json-sha256:verified")
    except ValueError:
        return unavailable(f"{name} has no canonical form (half a character in its text)", name)


def _from_config(config: dict[str, Any] | str, read: Any) -> Fact:
    if isinstance(config, str):
        return unavailable(config, _CONFIG)
    value: str | int | None = read(config)
    return fact(value, _CONFIG) if value else unavailable(f"{_CONFIG} does not state it", _CONFIG)


def _quantization_method(config: dict[str, Any]) -> str | None:
    quantization = config.get("quantization_config") or config.get("compression_config")
    if not quantization:
        return "none"
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return str(method) if method else None


def _dtype(config: dict[str, Any]) -> str | None:
    text_config = config.get("text_config")
    for holder in (config, text_config if isinstance(text_config, dict) else {}):
        if dtype := holder.get("dtype") or holder.get("torch_dtype"):
            return str(dtype)
    return None


def _size(name: str) -> Callable[[dict[str, Any]], int | None]:
    """A reader of a size, which models with several parts state for their text."""

    def read(config: dict[str, Any]) -> int | None:
        text = config.get("text_config")
        value = config.get(name) or (text.get(name) if isinstance(text, dict) else None)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    return read


def _architecture(config: dict[str, Any]) -> str | None:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else config.get("model_type")


def _folder_tokenizer(model: ModelRef, files: dict[Path, FileDigest]) -> dict[str, Fact]:
    if not model.tokenizer_files:
        absent = unavailable(f"the folder has no tokenizer ({', '.join(VOCABULARY_PATTERNS)})", "files")
        return {"sha256": absent, "files": absent}
    digests: dict[str, str] = {}
    for path in model.tokenizer_files:
        if path.name != _TOKENIZER_CONFIG:
            digests[path.name] = files[path].sha256
            continue
        config = _json(path)
        # Its template has a digest of its own; without it, the two kinds of change stay apart.
        if isinstance(config, dict):
            config = {name: value for name, value in config.items() if name != "chat_template"}
        digest = _digest_of(config, _TOKENIZER_CONFIG)
        if digest.unavailable is not None:
            return {"sha256": digest, "files": digest}
        digests[path.name] = digest.value
    return {"sha256": fact(sha256_of(digests), VERIFIED), "files": fact(digests, VERIFIED)}


def _folder_templates(folder: Path) -> tuple[dict[str, str], str]:
    """Template name → text (`default` is the one used when none is named), and where they were found."""
    named = {path.stem: _text(path) for path in sorted((folder / _MORE_TEMPLATES).glob("*.jinja"))}
    if (folder / _TEMPLATE_FILE).is_file():
        return {"default": _text(folder / _TEMPLATE_FILE), **named}, _TEMPLATE_FILE
    for name in (_TOKENIZER_CONFIG, _OLD_TEMPLATE):
        config = _json(folder / name)
        template = config.get("chat_template") if isinstance(config, dict) else None
        if isinstance(template, str):
            return {"default": template, **named}, name
        if isinstance(template, list):
            entries = [entry for entry in template if isinstance(entry, dict)]
            return {str(entry.get("name")): str(entry.get("template")) for entry in entries} | named, name
    return named, "files"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{path} is not a readable UTF-8 file", "fetch that file again") from None


def _template_facts(templates: dict[str, str], source: str) -> dict[str, Fact]:
    digests = {
        name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for name, text in templates.items()
    }
    if not digests:
        absent = unavailable("the model has no chat template", source)
        return {"sha256": absent, "named": absent}
    default = digests.get("default")
    return {
        "sha256": fact(default, source) if default else unavailable("no template is the default one", source),
        "named": fact(digests, source),
    }


def _sampling_defaults(generation: dict[str, Any] | str) -> Fact:
    if isinstance(generation, str):
        return unavailable(generation, _GENERATION)
    own_notes = {"transformers_version", "_from_model_config"}
    return fact({name: value for name, value in generation.items() if name not in own_notes}, _GENERATION)


# A GGUF file ---------------------------------------------------------------------------------------------


def _gguf(model: ModelRef) -> dict[str, Section]:
    metadata = read_metadata(model.path)
    tokenizer = {name: value for name, value in metadata.items() if name.startswith("tokenizer.ggml.")}
    config = {name: value for name, value in metadata.items() if not name.startswith("tokenizer.")}
    sampling = {name: value for name, value in metadata.items() if name.startswith("general.sampling.")}
    file_type = metadata.get("general.file_type")
    stored_as = (
        _GGUF_FILE_TYPES.get(file_type, f"file type {file_type}") if isinstance(file_type, int) else None
    )
    unstated = unavailable("the file does not state it", "gguf-metadata")
    architecture = metadata.get("general.architecture")
    tokens = tokenizer.get("tokenizer.ggml.tokens")
    context = metadata.get(f"{architecture}.context_length")
    return {
        "model": Section(
            facts={
                "config_sha256": fact(sha256_of(config), "gguf-metadata"),
                "generation_config_sha256": unavailable(
                    "a GGUF file has no generation_config", "gguf-metadata"
                ),
                "quantization_method": fact(
                    "none" if stored_as in _GGUF_UNQUANTIZED else stored_as, "gguf-metadata"
                )
                if stored_as
                else unstated,
                "dtype": fact(stored_as, "gguf-metadata") if stored_as else unstated,
                "architecture": fact(architecture, "gguf-metadata") if architecture else unstated,
                "vocab_size": fact(len(tokens), "gguf-metadata") if tokens else unstated,
                "context_length": fact(context, "gguf-metadata") if context else unstated,
            }
        ),
        "tokenizer": Section(facts=_gguf_tokenizer(tokenizer)),
        "template": Section(facts=_template_facts(_gguf_templates(metadata), "gguf-metadata")),
        "sampling": Section(
            facts={
                "model_defaults": fact(sampling, "gguf-metadata")
                if sampling
                else unavailable("the file states no sampling defaults", "gguf-metadata")
            }
        ),
    }


def _gguf_tokenizer(tokenizer: dict[str, Any]) -> dict[str, Fact]:
    if "tokenizer.ggml.tokens" not in tokenizer:
        absent = unavailable("the file has no tokenizer (tokenizer.ggml.tokens)", "gguf-metadata")
        return {"sha256": absent, "files": absent}
    return {
        "sha256": fact(sha256_of(tokenizer), "gguf-metadata"),
        "files": unavailable("the tokenizer is inside the GGUF file", "gguf-metadata"),
    }


def _gguf_templates(metadata: dict[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {"default": metadata.get(key)} | {
        name.removeprefix(f"{key}."): text for name, text in metadata.items() if name.startswith(f"{key}.")
    }
    return {name: text for name, text in found.items() if isinstance(text, str)}
