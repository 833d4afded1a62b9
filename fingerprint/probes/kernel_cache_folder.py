"""One folder of compiled or tuned kernels as numbers and digests, and which ones autotuning has chosen.

It knows the file names that Triton, Inductor, FlashInfer, vLLM and SGLang write (as in the sources of Triton
3.7, torch 2.13 and the main branches of the others in 2026), not where the folders lie.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..fields.known_names import DIFFERING_CHOICES

MAX_FILES = 10_000
"""Per folder, in the order of their names; what lies behind is not read, and that is said."""
MAX_HASHED_BYTES = 1 << 20
"""Larger files count with their size only: texts and tables of choices are kilobytes."""
MAX_READ_BYTES = 64 << 20
MAX_DEPTH = 16
MAX_LISTED = 32
"""Choices that are listed by name; of more, the digest shows that they differ."""
_PASSING = re.compile(r"\.lock$|\.tmp$|\.log$|\.pyc$|^tmp\.|^__pycache__$|^\.")
"""Files that come and go while kernels are compiled."""
_TEXT = (".json", ".py", ".txt", ".best_config")
_COMPILED = (".cubin", ".hsaco", ".so", ".spv", ".metallib")
_WITH_PATHS = re.compile(r"^__grp__|^vllm_compile_cache\.py$")
"""Triton's and vLLM's tables of their own files have absolute paths: they count with their names."""
_PICKLED = re.compile(r"(?:^|/)(?:fxgraph|aotautograd)/(?=.+/)")
"""Inductor names these after their bytes, which hold paths and times: the folder names graph and settings."""
_RANK = re.compile(r"(^|.*/)(rank_?[\w]+?)(?:/|\.json$)(.*)$")
_MEASURED = frozenset({"time_taken_ms", "configs_hash", "triton_cache_hash"})
"""Of an Inductor choice: how long the winner took, and what only names the candidates."""


class TooSlow(Exception):
    """The folder could not be read in the time that there is."""


@dataclass
class _Tally:
    deadline: float
    files: int = 0
    bytes: int = 0
    read: int = 0
    compiled: int = 0
    unreadable: int = 0
    bounded: bool = False
    lines: list[str] = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)


def describe(folder: Path, deadline: float) -> dict[str, Any] | None:
    """What is in a folder of kernels; None where there is no such folder, or nothing in it.

    The value has `files`, `bytes` (not of tables of timings or paths, which differ by themselves), `sha256`
    (over relative names with the digest of small texts and the size of everything else) and, where there are
    any, `compiled` kernels, `choices` by autotuning with `choices_sha256`, and how many differ between ranks.

    Args:
        folder: As this process reaches it.
        deadline: Of `time.monotonic`.

    Raises:
        TooSlow: Nothing that depends on the machine's speed may enter a digest.
    """
    tally = _Tally(deadline)
    for relative, path in _walk(folder, "", tally, MAX_DEPTH):
        _take(relative, path, tally)
    if tally.files == 0 and tally.unreadable == 0:
        return None
    value: dict[str, Any] = {"files": tally.files, "bytes": tally.bytes, "sha256": _digest(tally.lines)}
    if tally.compiled:
        value["compiled"] = tally.compiled
    if tally.choices:
        value["chosen"] = len(tally.choices)
        value["choices_sha256"] = _digest([f"{name}\0{choice}" for name, choice in tally.choices.items()])
        if len(tally.choices) <= MAX_LISTED:
            value["choices"] = tally.choices
        if (differing := _differing_between_ranks(tally.choices)) is not None:
            value[DIFFERING_CHOICES] = differing
    if tally.unreadable:
        value["unreadable"] = tally.unreadable
    if tally.bounded:
        value["bounded"] = f"the first {MAX_FILES} files in the order of their names"
    return value


def _walk(folder: Path, relative: str, tally: _Tally, depth: int) -> Iterator[tuple[str, Path]]:
    """Regular files in the order of their names; links are not followed, so no loop is walked."""
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError:
        return
    except OSError as error:
        tally.unreadable += not isinstance(error, FileNotFoundError)
        return
    for name in names:
        if _PASSING.search(name):
            continue
        if time.monotonic() > tally.deadline:
            raise TooSlow
        if tally.files >= MAX_FILES:
            tally.bounded = True
            return
        path = folder / name
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue  # it disappeared meanwhile
        if stat.S_ISDIR(mode):
            if depth > 0:
                yield from _walk(path, f"{relative}{name}/", tally, depth - 1)
        elif stat.S_ISREG(mode):
            yield f"{relative}{name}", path


def _take(relative: str, path: Path, tally: _Tally) -> None:
    try:
        size = os.lstat(path).st_size
        content = _content(path, size, tally)
    except OSError:
        tally.unreadable += 1
        return
    tally.files += 1
    tally.compiled += path.name.endswith(_COMPILED)
    choices = _choices(path.name, content) if content is not None else {}
    if choices:
        # How long each candidate took differs in every run; what was chosen is what counts.
        for key, choice in choices.items():
            tally.choices[f"{relative}{':' + key if key else ''}"] = choice
        tally.lines.append(
            f"{relative}\0chosen\0{_digest([f'{key}={value}' for key, value in choices.items()])}"
        )
    elif content is not None:
        tally.bytes += size
        tally.lines.append(f"{relative}\0sha256\0{hashlib.sha256(content).hexdigest()}")
    elif _WITH_PATHS.match(path.name):
        tally.lines.append(f"{relative}\0named")
    elif _PICKLED.search(relative):
        tally.lines.append(f"{relative.rpartition('/')[0]}\0named")
    else:
        tally.bytes += size
        tally.lines.append(f"{relative}\0size\0{size}")


def _content(path: Path, size: int, tally: _Tally) -> bytes | None:
    """The content of a small text, else None."""
    if not path.name.endswith(_TEXT) or _WITH_PATHS.match(path.name) or size > MAX_HASHED_BYTES:
        return None
    if tally.read + size > MAX_READ_BYTES:
        return None
    tally.read += size
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        return file.read(MAX_HASHED_BYTES)


def _choices(name: str, content: bytes) -> dict[str, str]:
    """What autotuning chose, from the files that say it; empty for every other file, or a damaged one.

    Triton's `<kernel>.autotune.json` holds all candidates with their times, Inductor's `<key>.best_config`
    the winner, FlashInfer's tables a runner and a tactic for every operation and shape.
    """
    has_timings = name.endswith(".autotune.json")
    is_table = re.match(r"autotune\w*\.json$|rank_\w+\.json$", name) is not None
    if not (has_timings or is_table or name.endswith(".best_config")):
        return {}
    try:
        found = json.loads(content)
        if has_timings:
            return {"": _as_line(min(found["configs_timings"], key=lambda candidate: candidate[1])[0])}
        if is_table:
            return {str(key): _as_line(choice) for key, choice in found.items() if not key.startswith("_")}
        return {"": _as_line({key: value for key, value in found.items() if key not in _MEASURED})}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return {}


def _as_line(choice: Any) -> str:
    """`BLOCK_M=128 num_stages=3 num_warps=4`."""
    if not isinstance(choice, dict):
        return choice if isinstance(choice, str) else json.dumps(choice, sort_keys=True)
    flat = {
        **{key: value for key, value in choice.items() if key != "kwargs"},
        **(choice.get("kwargs") or {}),
    }
    return " ".join(f"{key}={value}" for key, value in sorted(flat.items()) if value is not None)


def _differing_between_ranks(choices: dict[str, str]) -> str | None:
    """`13 of 22`: of the choices that several ranks made, how many are not the same on all."""
    by_choice: dict[str, dict[str, str]] = {}
    for name, choice in choices.items():
        if match := _RANK.match(name):
            by_choice.setdefault(f"{match[1]}/{match[3]}", {})[match[2]] = choice
    shared = [made for made in by_choice.values() if len(made) > 1]
    if not shared:
        return None
    return f"{sum(len(set(made.values())) > 1 for made in shared)} of {len(shared)}"


def _digest(lines: list[str]) -> str:
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
