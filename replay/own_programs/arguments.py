"""What a program gives to `rip.tap`, checked: the model, the output's name, token ids and positions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...schemas.errors import BadInput, OutputFailed
from ...schemas.trace import parts_folder
from ..capture.modules import is_compiled
from .fed_sequences import PADDING

_MOST = 2**31 - 1


def check_model(model: object) -> nn.Module:
    """The model, if its modules can be observed.

    Raises:
        BadInput: It is no module, or compiled.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"{type(model).__name__} is no torch.nn.Module", "tap the module that is called")
    if is_compiled(model):
        raise BadInput(
            f"{type(model).__name__} is compiled: what its modules compute cannot be seen from outside",
            "tap and run the model as it was before torch.compile or torch.jit (compiled._orig_mod)",
        )
    return model


def check_output(path: Path, force: bool) -> None:
    """Refuse, before any work, a trace that could not be written at its end.

    Raises:
        OutputFailed: The trace or the parts of an unfinished one are there and `force` is off, or there is no
            such folder.
    """
    if not path.parent.is_dir():
        raise OutputFailed(f"{path}: its folder does not exist", "make the folder, or choose another")
    if path.is_dir():
        raise OutputFailed(f"{path} is a folder", "name the file that is to be written")
    parts = parts_folder(path)
    for taken, why in ((path, "exists already"), (parts, "holds what an unfinished run recorded")):
        if taken.exists() and not force:
            raise OutputFailed(f"{taken} {why}", "choose another name, or overwrite it with force=True")


def site_pattern(sites: str | None) -> re.Pattern[str] | None:
    """The pattern that sites have to match.

    Raises:
        BadInput: It is no regular expression.
    """
    try:
        return None if sites is None else re.compile(sites)
    except re.error as error:
        raise BadInput(f"sites={sites!r} is no pattern: {error}", "give a regular expression") from None


def are_ids(value: object) -> bool:
    """True for a two-dimensional tensor of integers."""
    return isinstance(value, torch.Tensor) and value.dim() == 2 and _holds_integers(value)


def matrix(values: Any, what: str, least: int = 0) -> list[list[int]]:
    """Integers [B, T] as lists; [T] counts as one sequence.

    Args:
        values: A tensor or nested lists.
        what: What they are called.
        least: The smallest number allowed.

    Raises:
        BadInput: Their shape or dtype is not supported, or they are out of range.
    """
    fix = f"give {what} as integers [B, T], or [T] for a single sequence"
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{what} is not a table of integers", fix) from None
    if not _holds_integers(tensor) or tensor.dim() not in (1, 2) or not tensor.numel():
        raise BadInput(f"{what} is {list(tensor.shape)} of {tensor.dtype}", fix)
    found: list[list[int]] = tensor.reshape(-1, tensor.shape[-1]).tolist()
    if min(map(min, found)) < least or max(map(max, found)) > _MOST:
        raise BadInput(f"{what} holds numbers below {least} or above {_MOST}", fix)
    return found


def positions_like(positions: Any, ids_BT: list[list[int]]) -> list[list[int] | None]:
    """Positions [B, T], or None for each sequence where the program states none.

    Raises:
        BadInput: They are not of the shape of the token ids.
    """
    if positions is None:
        return [None] * len(ids_BT)
    at_BT = matrix(positions, "positions", least=PADDING)
    if [len(at) for at in at_BT] != [len(ids) for ids in ids_BT]:
        raise BadInput(
            "positions are not of the shape of the token ids", "give one position for each token of the pass"
        )
    return [*at_BT]


def _holds_integers(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)
