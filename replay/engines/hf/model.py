"""A transformers model in this process: loaded, every weight from its files, and run for one forward pass.

Axes: B sequences in the batch, T columns of the pass, K chosen columns, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ....schemas.errors import BadInput, EngineFailed, RipError, first_line, stated_setting
from ..model_files import check_complete, generation_config, quiet_transformers


def load_model(folder: Path, dtype: Any, attention: str | None, device: str) -> Any:
    """The model in evaluation mode, every weight of it from its files.

    Raises:
        EngineFailed: transformers cannot load it, weights are missing, or memory does not suffice.
        BadInput: An attention implementation that this model does not have.
    """
    from transformers import AutoModelForCausalLM

    quiet_transformers()
    # transformers passes over a damaged one in silence, and with it over stop ids and sampling defaults.
    generation_config(folder)
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
        model: A folder, whose own code decides, or a GGUF file.
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
    except Exception as error:  # foreign files; what else is wrong with them is reported when they are loaded
        if "attn_implementation" in str(error):
            raise _no_such_attention(attention) from error


def _no_such_attention(attention: str | None) -> BadInput:
    return BadInput(
        "this model has no such attention implementation",
        "try attention=sdpa or attention=eager",
        stated_setting(f"attention={attention}"),
    )


class Forward:
    """The forward passes of one batch, from an empty KV cache on.

    Args:
        model: A causal language model.

    Raises:
        EngineFailed: Its forward takes no KV cache.
    """

    def __init__(self, model: Any) -> None:
        # An argument that a model does not know would vanish in its **kwargs.
        accepted = inspect.signature(model.forward).parameters
        self._model = model
        self._selects_columns = "logits_to_keep" in accepted
        # Renamed within transformers 5.
        name = next((name for name in ("cache", "past_key_values") if name in accepted), None)
        if name is None or not model._supports_default_dynamic_cache():
            raise EngineFailed(
                f"{type(model).__name__} does not take the cache of transformers",
                "use a causal language model that decodes with one",
            )
        cache = DynamicCache(config=model.config)
        self._cache = {name: cache}
        kinds = {type(layer) for layer in cache.layers}
        self._keeps_tokens = not kinds or any(issubclass(kind, DynamicLayer) for kind in kinds)
        self.allows_gaps = kinds <= {DynamicLayer}
        """Padding may stand between the tokens of a sequence: no layer counts columns, as a sliding window
        does, or folds them into a state."""
        self.attends_only = (
            kinds <= {DynamicLayer, DynamicSlidingWindowLayer}
            and not model._is_stateful
            and "attention_mask" in accepted
        )
        """Every layer keeps its tokens apart, so that a mask hides padding. Else they may be in a state."""

    def __call__(
        self,
        ids_BT: torch.Tensor,
        mask_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        columns: list[int] | None = None,
    ) -> torch.Tensor:
        """Run the model once and extend the cache.

        Args:
            ids_BT: int64, token ids.
            mask_BT: int64, 0 for padding; over the cached columns and these.
            positions_BT: int64, positions of these tokens in their sequences.
            columns: Columns whose logits are wanted; None for all.

        Returns:
            Logits [B, K or T, V] in the model's dtype.

        Raises:
            EngineFailed: The model fails.
        """
        extra: dict[str, Any] = {"use_cache": True, **self._cache}
        if columns is not None and self._selects_columns:
            extra["logits_to_keep"] = torch.tensor(columns, device=ids_BT.device)
        with model_errors(), torch.no_grad():
            logits: torch.Tensor = self._model(
                input_ids=ids_BT,
                attention_mask=self._mask_of_pass(mask_BT, ids_BT.shape[1]),
                position_ids=positions_BT,
                **extra,
            ).logits
        return logits if columns is None or logits.shape[1] == len(columns) else logits[:, columns]

    def _mask_of_pass(self, mask_BT: torch.Tensor, columns: int) -> torch.Tensor:
        """The mask as the model takes it.

        Where no layer attends to earlier columns, each multiplies the mask with the columns of this pass: it
        must have their number.
        """
        return mask_BT if self._keeps_tokens else mask_BT[:, -columns:]


@contextmanager
def model_errors() -> Iterator[None]:
    """Turns whatever a model raises into an error for people.

    Raises:
        EngineFailed: In place of the model's exception, which is its cause.
    """
    try:
        yield
    except RipError:
        raise
    except Exception as error:  # a model is somebody else's program: it may raise anything
        text = str(error).strip() or type(error).__name__
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
            raise EngineFailed(
                "the model ran out of memory",
                "lower batch_size, set prefill_chunk or a smaller dtype (--set), or shorten the prompt",
            ) from error
        raise EngineFailed(
            f"the model failed: {text.splitlines()[0]}",
            "see the cause with --debug; check the model and --set",
        ) from error
