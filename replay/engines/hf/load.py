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

from ....schemas.base import parse_json_object
from ....schemas.errors import BadInput, EngineFailed, MissingPackage, RipError, stated_setting

GGUF_CONVERSION = "1"
"""Raised when the conversion changes, so that older cached folders are not used."""

_VOCABULARY_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""One of these must be there: the other tokenizer files only refine a vocabulary."""


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
        if not target.is_dir():  # another process may have been faster
            unfinished.rename(target)
    except RipError:
        raise
    except Exception as error:  # safetensors reports a full disk with an error of its own
        raise EngineFailed(
            f"{path} could not be converted: {first_line(error)}", f"free disk space at {target.parent}"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


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
    _check_complete(path, found)
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
    """The model in evaluation mode, every weight of it from its files.

    Raises:
        EngineFailed: transformers cannot load it, weights are missing, or memory does not suffice.
        BadInput: An attention implementation that this model does not have.
    """
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    _check_generation_config(folder / "generation_config.json")
    options = {} if attention is None else {"attn_implementation": attention}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,  # unset, transformers asks on the terminal
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # its own error does not name the weight; ours does
            **options,
        )
    except ImportError as error:
        raise EngineFailed(f"{folder}: {first_line(error)}", "install the package it names") from error
    except Exception as error:  # foreign files: safetensors, huggingface_hub and models raise their own kinds
        if "attn_implementation" in str(error):
            raise _no_such_attention(attention) from error
        raise EngineFailed(
            f"transformers cannot load {folder}: {first_line(error)}",
            "check that it holds config.json and whole safetensors files of a causal language model",
        ) from error
    _check_complete(folder, found)
    try:
        return model.to(device).eval()
    except RuntimeError as error:
        raise EngineFailed(
            f"the model cannot be moved to {device}: {first_line(error)}",
            "choose another one: --set device=cpu",
        ) from error


def check_attention(model: Path, attention: str) -> None:
    """Refuse an attention implementation that cannot be had, without reading any weight.

    Args:
        model: A folder, of whose own code it is asked, or a GGUF file.
        attention: As `--set attention` names it.

    Raises:
        BadInput: Neither transformers nor the model has it, or a package for it is missing.
    """
    import torch
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    if not model.is_dir():
        if attention not in ("eager", *AttentionInterface().valid_keys()):
            raise _no_such_attention(attention)
        return
    quiet_transformers()
    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except ImportError as error:
        raise BadInput(
            first_line(error), "install the package it names", stated_setting(f"attention={attention}")
        ) from error
    except Exception as error:  # foreign files; what else is wrong with them is told when they are loaded
        if "attn_implementation" in str(error):
            raise _no_such_attention(attention) from error


def _no_such_attention(attention: str | None) -> BadInput:
    return BadInput(
        "this model has no such attention implementation",
        "try attention=sdpa or attention=eager",
        stated_setting(f"attention={attention}"),
    )


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


def first_line(error: BaseException) -> str:
    """What an error says, in one line that does not end like the head of a list."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":") if lines else type(error).__name__


def _check_generation_config(path: Path) -> None:
    """transformers passes over a damaged one in silence, and with it over stop ids and sampling defaults."""
    if path.is_file():
        try:
            parse_json_object(path.read_bytes(), str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}", "check its permissions") from None


def _check_complete(path: Path, found: dict[str, Any]) -> None:
    """transformers fills weights that it does not find with random numbers; rip refuses them."""
    missing = sorted(found["missing_keys"])
    misshapen = sorted(str(entry[0]) for entry in found["mismatched_keys"])
    if missing or misshapen:
        which = "are not in its files" if missing else "have another shape in its files"
        raise EngineFailed(
            f"{path}: weights that the model needs {which}: {len(missing or misshapen)}, "
            f"first {(missing or misshapen)[0]}",
            "fetch or convert the model again",
        )
