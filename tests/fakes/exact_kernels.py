"""CPU kernels whose bits depend on no shape and no order: each result is the float64 one, rounded once.

With them a chunked prefill equals a whole one, a batch equals its rows run alone, and two threads equal one,
as they do on some machines: what a test says must differ has to be planted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Products, softmax and fused attention of torch in this process, while the block runs."""
    with warnings.catch_warnings(), torch.library._scoped_library("aten", "IMPL") as library:
        warnings.simplefilter("ignore")  # that kernels are replaced is the point
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU")
        yield


def exact(values: torch.Tensor) -> Any:
    """The values as a numpy array of float64, which no kernel of torch works on."""
    return values.detach().double().numpy()


def rounded(values: Any, like: torch.Tensor) -> torch.Tensor:
    """An array as a tensor of another's dtype."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.dtype)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return rounded(exact(a) @ exact(b), a)


def product_added(
    to: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return rounded(beta * exact(to) + alpha * (exact(a) @ exact(b)), a)


def products_by_group(
    rows_ND: torch.Tensor,
    weights_GDM: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """What `_grouped_mm` gives for the rows of each expert, which end at its offset."""
    assert offs is not None
    assert bias is None
    assert out_dtype in (None, rows_ND.dtype)
    groups = np.split(exact(rows_ND), offs.tolist())  # behind the last offset: rows of no expert
    weights = [*exact(weights_GDM), np.zeros(weights_GDM.shape[1:])]
    return rounded(np.concatenate([a @ b for a, b in zip(groups, weights, strict=True)]), rows_ND)


def softmax(values: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    assert not half_to_float
    return rounded(shares(exact(values), dim)[0], values)


def attention(
    q_BHTD: torch.Tensor,
    k_BHSD: torch.Tensor,
    v_BHSD: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_scaled_dot_product_flash_attention_for_cpu`: the output, and the log-sum-exp of the scores."""
    q, k, v = exact(q_BHTD), exact(k_BHSD), exact(v_BHSD)
    repeats = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part, repeats, axis=1) for part in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = scores + exact(attn_mask)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    found, sums = shares(scores, -1)
    found = np.where(np.isneginf(scores).all(axis=-1, keepdims=True), 0, found)  # a row of padding
    return rounded(found @ v, q_BHTD), torch.from_numpy(sums).float()


def shares(scores: Any, dim: int) -> tuple[Any, Any]:
    """Softmax along a dimension, and its log-sum-exp; a row without any score gives NaN, as torch's does."""
    with np.errstate(invalid="ignore", divide="ignore"):
        highest = scores.max(axis=dim, keepdims=True)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=dim, keepdims=True)
        return weights / total, (highest + np.log(total)).squeeze(dim)


KERNELS = {
    "mm": product,
    "bmm": product,
    "addmm": product_added,
    "baddbmm": product_added,
    "addmv": product_added,
    "mv": product,
    "dot": product,
    "_grouped_mm": products_by_group,
    "_softmax": softmax,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
}
