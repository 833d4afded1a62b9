"""The model's files at hand: a folder that transformers can load, a GGUF file converted once, the tokenizer.

It does not resolve hub ids; it takes a local path.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...schemas.base import parse_json_object
from ...schemas.errors import BadInput, EngineFailed, MissingPackage, RipError, first_line
from .bounded_call import OutOfBounds, call_bounded

GGUF_CONVERSION = "1"
"""Raised when the conversion changes, so that older cached folders are not used."""

_VOCABULARY_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""One of these must be there: the other tokenizer files only refine a vocabulary."""


def cache_folder() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rip" / "models"


def loadable_folder(path: Path, model_sha256: str) -> Path:
    """The folder that transformers can load: `path` itself, or the converted form of a GGUF file.

    A GGUF takes transformers a long time to read, so it is converted to float32 safetensors once, in
    the cache, under the hash of its content. float32 holds the dequantised values exactly.

    Raises:
        EngineFailed: The GGUF cannot be converted, or the cache cannot be written.
        MissingPackage: A package that reads GGUF files is not installed.
    """
    if path.is_dir():
        return path
    target = cache_folder() / f"gguf-{model_sha256[:32]}-v{GGUF_CONVERSION}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    except OSError as error:
        raise EngineFailed(
            f"the model cache {target.parent} cannot be written: {error.strerror}",
            "set XDG_CACHE_HOME to a writable folder",
        ) from None
    try:
        _convert_gguf(path, unfinished)
        _publish(unfinished, target)
    except RipError:
        raise
    except Exception as error:  # safetensors reports a full disk with an error of its own
        raise EngineFailed(
            f"{path} could not be converted: {first_line(error)}", f"free disk space at {target.parent}"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _publish(unfinished: Path, target: Path) -> None:
    """Make a finished conversion the cached one, unless another process was faster: both hold the same."""
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _convert_gguf(path: Path, target: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
            loaded, found = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except ImportError as error:
        raise MissingPackage(
            f"{path}: {first_line(error)}", "pip install 'rip-forensics[local]' into this environment"
        ) from error
    except Exception as error:  # a foreign file: its reader raises whatever its bytes lead to
        raise EngineFailed(
            f"transformers cannot read {path}: {first_line(error)}", "give a safetensors folder of the model"
        ) from error
    check_complete(path, found)
    # The loaded config carries a gguf quantization entry with which save_pretrained refuses.
    values = loaded.config.to_dict()
    values.pop("quantization_config", None)
    clean = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict())
    if loaded.generation_config is not None:
        clean.generation_config = loaded.generation_config
    clean.save_pretrained(target)
    tokenizer.save_pretrained(target)


def quiet_transformers() -> None:
    """Keep transformers' progress bars and advice out of rip's stderr."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer, or None where the folder holds no vocabulary.

    Raises:
        EngineFailed: Its files cannot be read.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    if not any(any(folder.glob(pattern)) for pattern in _VOCABULARY_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise EngineFailed(
            f"{folder}: its tokenizer cannot be read: {first_line(error)}",
            "restore the tokenizer files and config.json",
        ) from error


def generation_config(model: Path | None) -> dict[str, Any] | None:
    """The generation_config.json of a model folder, empty where it has none; None without a folder.

    Raises:
        BadInput: It is damaged, or cannot be read.
    """
    if model is None or not model.is_dir():
        return None
    path = model / "generation_config.json"
    return read_config(path, "check its permissions") if path.is_file() else {}


def read_config(path: Path, fix: str) -> dict[str, Any]:
    """A JSON file of a model folder.

    Args:
        fix: How to fix that it cannot be read.

    Raises:
        BadInput: It cannot be read, or is damaged.
    """
    try:
        return parse_json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", fix) from None


def load_local_tokenizer(path: Path, model_sha256: str) -> Any | None:
    """The tokenizer of a model folder or GGUF file; None where the folder holds none.

    Raises:
        EngineFailed: It cannot be read.
    """
    return load_tokenizer(loadable_folder(path, model_sha256))


def check_complete(path: Path, found: dict[str, Any]) -> None:
    """Refuse a model whose files lack weights: transformers fills them with random numbers.

    Args:
        path: The model's files.
        found: The loading info of `from_pretrained`.

    Raises:
        EngineFailed: A weight is missing or has a different shape.
    """
    missing = sorted(found["missing_keys"])
    misshapen = sorted(str(entry[0]) for entry in found["mismatched_keys"])
    if missing or misshapen:
        which = "are not in its files" if missing else "have a different shape in its files"
        raise EngineFailed(
            f"{path}: weights that the model needs {which}: {len(missing or misshapen)}, "
            f"first {(missing or misshapen)[0]}",
            "fetch or convert the model again",
        )


def tokenize(
    tokenizer: Any | None,
    text: str | None,
    messages: list[dict[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> list[int]:
    """Token ids of a prompt.

    Args:
        tokenizer: A transformers tokenizer, or None where the model has none.
        text: A prompt text; special tokens are added as the tokenizer does by default.
        messages: Chat messages, rendered with the model's template and a generation prompt. They win over
            the text.
        arguments: What the template gets beside messages, by the names of chat APIs: tools, documents,
            chat_template_kwargs, …

    Raises:
        BadInput: No tokenizer, no template, messages that the template refuses, or half a character.
    """
    if tokenizer is None:
        raise BadInput(
            "the model folder holds no tokenizer",
            "give prompt_token_ids, or add tokenizer.json to the folder",
        )
    if messages and not getattr(tokenizer, "chat_template", None):
        raise BadInput(
            "the model has no chat template", "give prompt_text or prompt_token_ids instead of messages"
        )
    rendered = _render(tokenizer, messages, arguments) if messages else text or ""
    try:
        rendered.encode("utf-8")
    except UnicodeEncodeError:
        raise BadInput(
            "the prompt holds half a character (a lone surrogate), which no tokenizer takes",
            "correct the text",
        ) from None
    # A template writes its own special tokens.
    return list(tokenizer.encode(rendered, add_special_tokens=not messages))


def _render(tokenizer: Any, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> str:
    stated = {"add_generation_prompt": True, **arguments}
    own = stated.pop("chat_template_kwargs", None) or {}

    def render() -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **{**stated, **own}))

    try:
        return call_bounded(render)
    except OutOfBounds as error:
        raise BadInput(
            f"the chat template does not end within bounds: {error}", "use the model's published template"
        ) from None
    except ValueError as error:  # a template is a program; whatever it raises is about the messages
        raise BadInput(
            f"the chat template refuses the messages: {first_line(error)}", "check roles and contents"
        ) from error
