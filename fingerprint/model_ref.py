"""Finding a model on disk: a folder, a GGUF file, or a hub id; which files are its weights and tokenizer.

It does not read weights and loads neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..schemas.errors import BadInput, MissingPackage

if TYPE_CHECKING:
    from collections.abc import Iterator

GGUF_MAGIC = b"GGUF"
TOKENIZER_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
VOCABULARY_PATTERNS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
"""One of these must be there: the other tokenizer files only refine a vocabulary."""
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "vocab.*")
_CHECK = "check the path and its permissions"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_GGUF_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")


@dataclass(frozen=True)
class ModelRef:
    """A model that lies on disk, and its files."""

    kind: Literal["folder", "gguf"]
    name: str
    """As the user gave it."""
    path: Path
    """The folder, or the (first part of the) GGUF file."""
    weight_files: tuple[Path, ...]
    """Sorted by name, never empty. Symlinks are kept as they are: the link's name is the file's name."""
    tokenizer_files: tuple[Path, ...]
    """Empty for GGUF, whose tokenizer is inside, and for a folder without a vocabulary."""
    revision: str | None = None
    """The hub commit of a snapshot in the Hugging Face cache."""

    @property
    def folder(self) -> Path:
        """The folder that `from_pretrained` takes."""
        return self.path if self.kind == "folder" else self.path.parent

    @property
    def gguf_file(self) -> str | None:
        """The file name that `from_pretrained(…, gguf_file=…)` takes; None for a folder."""
        return self.path.name if self.kind == "gguf" else None


def resolve(model: str) -> ModelRef:
    """Find a model by what the user calls it.

    Args:
        model: A local folder, a `.gguf` file, or a hub id (looked up in the local Hugging Face cache,
            then fetched with huggingface_hub).

    Raises:
        BadInput: Nothing usable is there; the message says what is missing.
        MissingPackage: A hub id is not in the cache and huggingface_hub is not installed.
    """
    if not model.strip():
        raise BadInput("the model's name is empty", "give a folder, a .gguf file or a hub id")
    try:
        return _on_this_disk(Path(model), model) or _from_hub(model)
    except OSError as error:
        raise BadInput(f"{model} could not be read: {error.strerror}", _CHECK) from None


def _on_this_disk(path: Path, name: str) -> ModelRef | None:
    if path.is_dir():
        return _folder(path, name)
    if path.is_file():
        return _gguf(path, name)
    if path.exists():  # a device or a pipe, which could be read from forever
        raise BadInput(f"{name}: neither a folder nor a file", "give a folder, a .gguf file or a hub id")
    return None


def _from_hub(model: str) -> ModelRef:
    looks_like_a_path = (
        model.startswith((".", "/", "~")) or model.endswith((".gguf", "/")) or model.count("/") > 1
    )
    if looks_like_a_path or not _HUB_ID.fullmatch(model):
        raise BadInput(
            f"{model}: no such folder or file", "check the path, or give a hub id such as org/name"
        )
    cached = _cached_snapshot(model)
    if cached is not None:
        try:
            return _folder(cached, model, revision=cached.name)
        except BadInput:
            if _hub_is_offline():
                raise
            # A download that was not finished, or of the config alone: the hub client completes it.
    fetched = _fetched_snapshot(model)
    return _folder(fetched, model, revision=fetched.name)


def _folder(folder: Path, name: str, revision: str | None = None) -> ModelRef:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if ggufs:
            raise BadInput(
                f"{name}: a folder of GGUF files, not a model folder", f"give the file: {ggufs[0]}"
            )
        if (folder / "adapter_config.json").is_file():
            raise BadInput(
                f"{name}: a LoRA adapter, not a model", "merge it into its base model and give that"
            )
        raise BadInput(
            f"{name}: the folder has no config.json", "give the folder that holds config.json and weights"
        )
    has_vocabulary = any(_files(folder, VOCABULARY_PATTERNS))
    return ModelRef(
        kind="folder",
        name=name,
        path=folder,
        weight_files=_weight_files(folder, name),
        tokenizer_files=tuple(sorted(set(_files(folder, TOKENIZER_PATTERNS)))) if has_vocabulary else (),
        revision=revision,
    )


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _weight_files(folder: Path, name: str) -> tuple[Path, ...]:
    """The files transformers would load, in its order of preference."""
    for single, index, pattern in (
        ("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"),
    ):
        if (folder / single).is_file():
            return (folder / single,)
        if (folder / index).is_file():
            return _indexed_files(folder, index, name)
        found = sorted(_files(folder, (pattern,)))
        if found:
            return tuple(found)
    raise BadInput(
        f"{name}: the folder has no weights (*.safetensors or pytorch_model*.bin)",
        "finish the download or conversion, then try again",
    )


def _indexed_files(folder: Path, index: str, name: str) -> tuple[Path, ...]:
    try:
        shards = {str(shard) for shard in json.loads((folder / index).read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{name}: {index} is not a readable weights index", "fetch that file again") from None
    outside = sorted(shard for shard in shards if Path(shard).name != shard)
    if outside or not shards:
        raise BadInput(f"{name}: {index} names no file of its own folder", "fetch that file again")
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise BadInput(
            f"{name}: {len(missing)} of {len(shards)} weights files are missing, first {missing[0]}",
            "finish the download, then try again",
        )
    return tuple(folder / shard for shard in sorted(shards))


def _gguf(path: Path, name: str) -> ModelRef:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise BadInput(f"{name}: not a GGUF file", "give a .gguf file, or the folder that holds config.json")
    parts: tuple[Path, ...] = (path,)
    if match := _GGUF_PART.fullmatch(path.name):
        count = int(match["parts"])
        parts = tuple(
            path.with_name(f"{match['stem']}-{part:05d}-of-{match['parts']}.gguf")
            for part in range(1, count + 1)
        )
        missing = [part.name for part in parts if not part.is_file()]
        if missing or not parts:
            raise BadInput(
                f"{name}: {len(missing)} of {count} parts are missing", "put all parts into one folder"
            )
    return ModelRef(kind="gguf", name=name, path=parts[0], weight_files=parts, tokenizer_files=())


def _cached_snapshot(hub_id: str) -> Path | None:
    """The snapshot folder of `main` in the local Hugging Face cache, if its config is there."""
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and (snapshot / "config.json").is_file() else None


def _hub_is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "on", "yes", "true"}


def _fetched_snapshot(hub_id: str) -> Path:
    fix = "give a local folder or .gguf file, or check the id and the network"
    if _hub_is_offline():
        raise BadInput(
            f"{hub_id}: not a path, and not in the local Hugging Face cache (HF_HUB_OFFLINE is set)", fix
        )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise MissingPackage(
            f"{hub_id}: not a path, not in the Hugging Face cache, and huggingface_hub is not installed",
            "give a local folder or .gguf file, or pip install 'rip-forensics[local]'",
        ) from None
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_HUB_PATTERNS)))
    except Exception as error:  # the hub client raises many kinds; each means that there is no model here
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{hub_id}: not a path, and could not be fetched from the hub: {reason}", fix
        ) from None
