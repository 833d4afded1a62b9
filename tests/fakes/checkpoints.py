"""Checkpoints of given bytes, written by the format's description alone, and lies about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Tensors = Mapping[str, tuple[str, Sequence[int], bytes]]
"""Name → dtype, shape, bytes."""

SMALL: dict[str, tuple[str, Sequence[int], bytes]] = {
    "model.embed.weight": ("F32", [2, 8], bytes(range(64))),
    "model.layers.0.weight": ("BF16", [3, 5], bytes(range(30))),
    "model.layers.1.weight": ("F16", [4], b"\x00\x3c" * 4),
    "empty": ("F32", [0, 8], b""),
}


def write_safetensors(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> Path:
    """A safetensors file with the tensors in the given order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    return write_raw(
        path, json.dumps(header).encode(), b"".join(content for _, _, content in tensors.values())
    )


def write_raw(path: Path, header: bytes, content: bytes, length: int | None = None) -> Path:
    """A safetensors file with any header, true or not."""
    stated = len(header) if length is None else length
    path.write_bytes(stated.to_bytes(8, "little") + header + content)
    return path


def reshard(tensors: Tensors, folder: Path, shards: int) -> list[Path]:
    """The same tensors dealt out to several files and an index, in a different order."""
    folder.mkdir(exist_ok=True)
    dealt = [dict(sorted(tensors.items(), reverse=True)[first::shards]) for first in range(shards)]
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    paths = [write_safetensors(folder / name, part) for name, part in zip(names, dealt, strict=True)]
    index = {name: file for file, part in zip(names, dealt, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return paths
