"""Loading a causal language model in-process: a local folder, or a GGUF file converted once.

It does not resolve hub ids; it is given a local path.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...schemas.errors import BadInput, EngineFailed

GGUF_CONVERSION = "1"
"""Raised when the conversion changes, so that older cached folders are not used."""


def cache_folder() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rip" / "models"


def folder_of(path: Path, model_sha256: str) -> Path:
    """The folder that transformers can load: `path` itself, or the converted form of a GGUF file.

    A GGUF takes transformers a long time to read, so it is converted to float32 safetensors once, in
    the cache, under the hash of its content. float32 holds the dequantised values exactly.

    Raises:
        EngineFailed: The GGUF cannot be converted, or the cache cannot be written.
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
            f"the model cache {target.parent} cannot be written: {error.strerror}", "set XDG_CACHE_HOME to a writable folder"
        ) from None
    try:
        _convert_gguf(path, unfinished)
        if not target.is_dir():  # another process may have been faster
            unfinished.rename(target)
    except OSError as error:
        raise EngineFailed(
            f"{path} could not be converted: {error.strerror or error}", "free disk space in the cache folder"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _convert_gguf(path: Path, target: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
            loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (ValueError, NotImplementedError, KeyError) as error:
        raise EngineFailed(f"transformers cannot read {path}: {error}", "give a safetensors folder of the model") from None
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


def load_model(folder: Path, dtype: Any, attention: str | None, device: str) -> Any:
    """The model in evaluation mode.

    Raises:
        EngineFailed: transformers cannot load it, or memory does not suffice.
        BadInput: An attention implementation that this model does not have.
    """
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    options = {} if attention is None else {"attn_implementation": attention}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **options)
        return model.to(device).eval()
    except ImportError as error:
        raise EngineFailed(f"{folder}: {_first_line(error)}", "install the package it names") from None
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError, AssertionError) as error:
        if attention is not None and "attn_implementation" in str(error) or "ttention" in str(error)[:80]:
            raise BadInput(f"attention={attention}: {_first_line(error)}", "try --set attention=sdpa or eager") from None
        raise EngineFailed(
            f"transformers cannot load {folder}: {_first_line(error)}",
            "check that the folder holds config.json and whole safetensors files of a causal language model",
        ) from None


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer, or None where the folder holds none."""
    from transformers import AutoTokenizer

    quiet_transformers()
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineFailed(f"{folder}: its tokenizer cannot be read: {_first_line(error)}", "restore the tokenizer files") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
