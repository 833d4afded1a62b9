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

from ...schemas.errors import BadInput, MissingPackage
from ..untrusted.files import read_small
from .hub_cache import cached_snapshot, repository_of, unfinished_downloads

if TYPE_CHECKING:
    from collections.abc import Iterator

GGUF_MAGIC = b"GGUF"
ADAPTER_CONFIG = "adapter_config.json"
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
MISTRAL_CONFIG = "params.json"
"""The configuration in Mistral's own layout, beside `consolidated*.safetensors`."""
_MISTRAL_VOCABULARY = ("tekken.json", "tokenizer.model.v*")
"""Counted where a folder has no other vocabulary."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)
_LFS_BYTES = 1024
"""A pointer is shorter than this, by its specification."""
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "vocab.*")
_CHECK = "check the path and its permissions"
_HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[A-Za-z0-9][\w.-]*))?")
_MAIN = "main"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<suffix>\.\w+)")


@dataclass(frozen=True)
class ModelRef:
    """A model that lies on disk, and its files."""

    kind: Literal["folder", "gguf", "adapter"]
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
    adapters: tuple[Path, ...] = ()
    """Folders of LoRA and other adapters inside a model folder, itself included where it is one too."""

    @property
    def folder(self) -> Path:
        """The folder that `from_pretrained` takes."""
        return self.path.parent if self.kind == "gguf" else self.path

    @property
    def gguf_file(self) -> str | None:
        """The file name that `from_pretrained(…, gguf_file=…)` takes; None for a folder."""
        return self.path.name if self.kind == "gguf" else None


def resolve(model: str, *, accept_adapter: bool = False) -> ModelRef:
    """Find a model by what the user calls it.

    Args:
        model: A local folder, a `.gguf` file, or a hub id, with `@` and a branch, tag or commit where it is
            not `main` (looked up in the local Hugging Face cache, then fetched with huggingface_hub).
        accept_adapter: Whether an adapter will do, which names its base model and does not hold it.

    Raises:
        BadInput: Nothing usable is there; the message says what is missing.
        MissingPackage: A hub id is not in the cache and huggingface_hub is not installed.
    """
    if not model.strip():
        raise BadInput("the model's name is empty", "give a folder, a .gguf file or a hub id")
    try:
        found = _on_this_disk(Path(model), model) or _from_hub(model)
    except OSError as error:
        raise BadInput(f"{model} could not be read: {error.strerror}", _CHECK) from None
    _refuse_pointers(found)
    if found.kind == "adapter" and not accept_adapter:
        raise BadInput(f"{model}: a LoRA adapter, not a model", "merge it into its base model and give that")
    return found


def _refuse_pointers(model: ModelRef) -> None:
    """Refuse a folder that was cloned without git-lfs: its large files only say what they would hold.

    Raises:
        BadInput: One of its files is such a pointer.
    """
    adapters = [path for folder in model.adapters for path in adapter_weights(folder)]
    for path in (*model.weight_files, *model.tokenizer_files, *adapters):
        refuse_pointer(path, model.name)


def refuse_pointer(path: Path, name: str) -> None:
    """Refuse a file that is a git-lfs pointer.

    Raises:
        BadInput: It is one.
    """
    with path.open("rb") as file:
        head = file.read(_LFS_BYTES)
    if head.startswith(_LFS_POINTER):
        size = _LFS_SIZE.search(head)
        held = f" of {int(size[1]):,} bytes" if size is not None else ""
        raise BadInput(
            f"{name}: {path.name} is a git-lfs pointer in place of the file{held}",
            "run git lfs pull in that folder",
        )


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
    match = _HUB_ID.fullmatch(model)
    if looks_like_a_path or match is None:
        raise BadInput(
            f"{model}: no such folder or file", "check the path, or give a hub id such as org/name"
        )
    hub_id, revision = match["id"], match["revision"] or _MAIN
    cached = cached_snapshot(hub_id, revision)
    if cached is not None:
        try:
            return _folder(cached, model)
        except BadInput:
            if _hub_is_offline():
                raise
            # A download that was not finished, or of the config alone: the hub client completes it.
    return _folder(_fetched_snapshot(hub_id, revision), model)


def _folder(folder: Path, name: str) -> ModelRef:
    revision = folder.absolute().name if repository_of(folder) else None
    adapters = _adapters(folder)
    has_vocabulary = any(_files(folder, VOCABULARY_PATTERNS))
    patterns = TOKENIZER_PATTERNS if has_vocabulary else _MISTRAL_VOCABULARY
    tokenizer = tuple(sorted(set(_files(folder, patterns))))
    if folder in adapters and not (folder / "config.json").is_file():
        weights = adapter_weights(folder)
        if not weights:
            raise BadInput(
                f"{name}: a LoRA adapter without weights, not a model", "finish the download, then try again"
            )
        return ModelRef("adapter", name, folder, weights, tokenizer, revision)
    _check_regular(folder / "config.json", name)
    if not (folder / "config.json").is_file() and (folder / MISTRAL_CONFIG).is_file():
        consolidated = _mistral_weights(folder, name)
        if consolidated:
            return ModelRef("folder", name, folder, consolidated, tokenizer, revision, adapters)
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if ggufs:
            raise BadInput(
                f"{name}: a folder of GGUF files, not a model folder", f"give the file: {ggufs[0]}"
            )
        raise BadInput(
            f"{name}: the folder has no config.json", "give the folder that holds config.json and weights"
        )
    return ModelRef("folder", name, folder, _weight_files(folder, name), tokenizer, revision, adapters)


def _adapters(folder: Path) -> tuple[Path, ...]:
    """The folder itself and those directly in it, as far as they hold an adapter."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    return tuple(path for path in (folder, *inside) if (path / ADAPTER_CONFIG).is_file())


def adapter_weights(folder: Path) -> tuple[Path, ...]:
    """The file that PEFT would load, if it is there."""
    names = ("adapter_model.safetensors", "adapter_model.bin")
    return next(((folder / name,) for name in names if (folder / name).is_file()), ())


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    return (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


def _weight_files(folder: Path, name: str) -> tuple[Path, ...]:
    """The files transformers would load, in its order of preference."""
    for single, index, pattern in (
        ("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"),
    ):
        _check_regular(folder / single, name)
        if (folder / single).is_file():
            return (folder / single,)
        if (folder / index).is_file():
            return _indexed_files(folder, index, name)
        found = sorted(
            path for path in _files(folder, (pattern,)) if not path.name.startswith("adapter_model.")
        )
        if found:
            _check_numbered(found, name)
            return tuple(found)
    unfinished = len(unfinished_downloads(folder))
    raise BadInput(
        f"{name}: the folder has no weights (*.safetensors or pytorch_model*.bin)"
        + (f"; unfinished downloads: {unfinished}" if unfinished else ""),
        "finish the download or conversion, then try again",
    )


def _mistral_weights(folder: Path, name: str) -> tuple[Path, ...]:
    index = "consolidated.safetensors.index.json"
    if (folder / index).is_file():
        return _indexed_files(folder, index, name)
    found = sorted(_files(folder, ("consolidated*.safetensors",)))
    _check_numbered(found, name)
    return tuple(found)


def promised_tensors(folder: Path) -> dict[str, str]:
    """Tensor → file, as the weights index of a folder promises; empty where there is no index."""
    for index in ("model.safetensors.index.json", "consolidated.safetensors.index.json"):
        whole = folder / index.removesuffix(".index.json")
        if (folder / index).is_file() and not whole.is_file():  # one file of all is taken before an index
            return _weight_map(folder / index)
    return {}


def _weight_map(index: Path) -> dict[str, str]:
    return {str(tensor): str(file) for tensor, file in json.loads(read_small(index))["weight_map"].items()}


def _check_regular(path: Path, name: str) -> None:
    """Refuse a file that stands there and cannot be one: a broken or circular link, a pipe."""
    if path.is_file() or not (path.is_symlink() or path.exists()):
        return
    what = "a link that leads nowhere" if path.is_symlink() else "no regular file"
    raise BadInput(f"{name}: {path.name} is {what}", "finish the download, or fix the link")


def _check_numbered(found: list[Path], name: str) -> None:
    """Shards that lie there without an index say by their names how many belong together."""
    present = {path.name for path in found}
    series = {
        (match["stem"], match["parts"], match["suffix"]) for match in map(_SHARD.fullmatch, present) if match
    }
    for stem, parts, suffix in sorted(series):
        names = _series(stem, parts, suffix)
        missing = [shard for shard in names if shard not in present]
        if missing:
            raise _missing(name, len(missing), len(names), missing[0])


def _series(stem: str, parts: str, suffix: str) -> list[str]:
    """The names of files that belong together; `parts` is their number as it stands in each."""
    return [f"{stem}-{part:05d}-of-{parts}{suffix}" for part in range(1, int(parts) + 1)]


def _indexed_files(folder: Path, index: str, name: str) -> tuple[Path, ...]:
    try:
        shards = set(_weight_map(folder / index).values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{name}: {index} is not a readable weights index", "fetch that file again") from None
    outside = sorted(shard for shard in shards if Path(shard).name != shard)
    if outside or not shards:
        raise BadInput(f"{name}: {index} names no file of its own folder", "fetch that file again")
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise _missing(name, len(missing), len(shards), missing[0])
    return tuple(folder / shard for shard in sorted(shards))


def _missing(name: str, missing: int, count: int, first: str) -> BadInput:
    return BadInput(
        f"{name}: {missing} of {count} weights files are missing, first {first}",
        "finish the download, then try again",
    )


def _gguf(path: Path, name: str) -> ModelRef:
    refuse_pointer(path, name)
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise BadInput(f"{name}: not a GGUF file", "give a .gguf file, or the folder that holds config.json")
    parts: tuple[Path, ...] = (path,)
    if (match := _SHARD.fullmatch(path.name)) and match["suffix"] == ".gguf":
        parts = tuple(path.with_name(name) for name in _series(match["stem"], match["parts"], ".gguf"))
        missing = [part.name for part in parts if not part.is_file()]
        if missing or not parts:
            raise BadInput(
                f"{name}: {len(missing)} of {len(parts)} parts are missing", "put all parts into one folder"
            )
    return ModelRef(kind="gguf", name=name, path=parts[0], weight_files=parts, tokenizer_files=())


def _hub_is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "on", "yes", "true"}


def _fetched_snapshot(hub_id: str, revision: str) -> Path:
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
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(_HUB_PATTERNS)))
    except Exception as error:  # the hub client raises many kinds; each means that there is no model here
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{hub_id}: not a path, and could not be fetched from the hub: {reason}", fix
        ) from None
