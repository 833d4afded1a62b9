"""One forward pass of a transformers model on a batch's KV cache: its arguments, its logits, its errors.

Axes: B sequences in the batch, T columns of the pass, K chosen columns, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ....schemas.errors import EngineFailed, RipError


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
        if name is None:
            raise EngineFailed(
                f"{type(model).__name__} takes no KV cache",
                "use a causal language model that decodes with one",
            )
        cache = DynamicCache(config=model.config)
        self._cache = {name: cache}
        self.allows_gaps = all(type(layer) is DynamicLayer for layer in cache.layers)
        """Padding may stand between the tokens of a sequence: no layer counts columns, as a sliding window
        does, or folds them into a state."""

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
                input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, **extra
            ).logits
        return logits if columns is None or logits.shape[1] == len(columns) else logits[:, columns]


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
