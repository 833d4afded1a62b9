"""Loading a causal language model into this process, every weight of it from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....schemas.base import parse_json_object
from ....schemas.errors import BadInput, EngineFailed, first_line, stated_setting
from ..model_files import check_complete, quiet_transformers


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
    check_complete(folder, found)
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


def _check_generation_config(path: Path) -> None:
    """transformers passes over a damaged one in silence, and with it over stop ids and sampling defaults."""
    if path.is_file():
        try:
            parse_json_object(path.read_bytes(), str(path))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}", "check its permissions") from None
