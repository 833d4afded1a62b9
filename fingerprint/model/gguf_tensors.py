"""The tensors of a GGUF file beside those of a model folder: matched by name, compared by content.

A GGUF has names of its own, and its dimensions in the opposite order. What its converter wrote in another
type (quantized, or a norm in float32) has other bytes, and the rows of q and k of Llama-like models are
permuted: of both nothing is known from digests. The names come from the `gguf` package, if it is installed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...schemas.change import TensorMatch

_BLOCK = re.compile(r"blk\.(\d+)\.")
_PERMUTED = re.compile(r"blk\.\d+\.attn_[qk]\.")
_SUFFIXES = (".weight", ".bias")


def match_tensors(
    base: Mapping[str, Any], now: Mapping[str, Any], architectures: tuple[object, object]
) -> TensorMatch | None:
    """How the tensors of a GGUF and of a folder fit together; None where not one of each is at hand.

    Args:
        base: Tensor → digest, dtype and shape, as a fingerprint lists them.
        now: Likewise.
        architectures: Of both, as the fingerprints state them; a GGUF's has its name in the `gguf` package.
    """
    is_gguf = [any(_BLOCK.match(name) for name in side) for side in (base, now)]
    if is_gguf[0] == is_gguf[1] or not all(_are_tensors(side) for side in (base, now)):
        return None
    gguf, folder = (base, now) if is_gguf[0] else (now, base)
    names = _gguf_names(folder, gguf, str(architectures[0 if is_gguf[0] else 1]))
    if names is None:
        return None
    equal, retyped = 0, Counter[str]()
    differing: list[str] = []
    permuted: list[str] = []
    for name, its in sorted(names.items()):
        mine, theirs = folder[name], gguf[its]
        if mine["dtype"] != theirs["dtype"]:
            retyped[f"{theirs['dtype']} of {mine['dtype']}"] += 1
        elif mine["blake3"] == theirs["blake3"] and mine["shape"] == theirs["shape"][::-1]:
            equal += 1
        elif mine["shape"] == theirs["shape"][::-1] and _PERMUTED.match(its):
            permuted.append(name)
        else:
            differing.append(name)
    return TensorMatch(
        gguf="base" if is_gguf[0] else "now",
        matched=len(names),
        of_gguf=len(gguf),
        of_folder=len(folder),
        equal=equal,
        retyped=dict(retyped),
        permuted=permuted,
        differing=differing,
        only_gguf=sorted({*gguf} - {*names.values()}),
        only_folder=sorted({*folder} - {*names}),
    )


def _are_tensors(side: Mapping[str, Any]) -> bool:
    """False where layers stand in place of very many tensors."""
    return all(isinstance(entry, dict) and "blake3" in entry for entry in side.values())


def _gguf_names(
    folder: Mapping[str, Any], gguf: Mapping[str, Any], architecture: str
) -> dict[str, str] | None:
    """A folder's tensor → the GGUF's tensor that it became; None: the names are not known."""
    try:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    except ImportError:
        return None
    arch = next((key for key, name in MODEL_ARCH_NAMES.items() if name == architecture), None)
    if arch is None:
        return None
    blocks = 1 + max(int(found[1]) for name in gguf if (found := _BLOCK.match(name)))
    known = get_tensor_name_map(arch, blocks)
    names = {name: known.get_name(name, try_suffixes=_SUFFIXES) for name in folder}
    return {name: its for name, its in names.items() if its is not None and its in gguf}
