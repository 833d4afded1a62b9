"""Part of section `kernels`: which compiled and tuned kernels lie ready, as another one adds differently.

It knows where each tool keeps them. Nothing is compiled, and no file is changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...schemas.fingerprint import Fact, Section, fact, unavailable
from ..process import proc, root_files
from ..untrusted import redact
from . import locations
from .kernel_cache_folder import TooSlow, describe

if TYPE_CHECKING:
    from .context import Context

LIMIT_S = 2.0
"""For all folders together."""


@dataclass(frozen=True)
class CacheFolder:
    """A folder and how it is called for people: without what differs between users of one set-up."""

    path: str
    name: str


def _triton(context: Context) -> list[CacheFolder]:
    # Triton's knobs.py: TRITON_CACHE_DIR, else .triton/cache below TRITON_HOME or the home folder.
    return [
        _first(
            context,
            ("TRITON_CACHE_DIR", ""),
            ("TRITON_HOME", "/.triton/cache"),
            default=CacheFolder(f"{locations.home(context)}/.triton/cache", "~/.triton/cache"),
        )
    ]


def _inductor(context: Context) -> list[CacheFolder]:
    # torch/_inductor/runtime/cache_dir_utils.py
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", locations.user(context))
    temporary = next(
        (found for key in ("TMPDIR", "TEMP", "TMP") if (found := context.environ.get(key))), "/tmp"
    )
    default = CacheFolder(f"{temporary}/{name}", "/tmp/torchinductor_USER")
    return [_first(context, ("TORCHINDUCTOR_CACHE_DIR", ""), default=default)]


def _flashinfer(context: Context) -> list[CacheFolder]:
    # flashinfer/jit/env.py; the autotuner's tables lie below it unless a variable moves them.
    default = CacheFolder(f"{locations.home(context)}/.cache/flashinfer", "~/.cache/flashinfer")
    found = [_first(context, ("FLASHINFER_WORKSPACE_BASE", "/.cache/flashinfer"), default=default)]
    return found + _named(context, "FLASHINFER_AUTOTUNE_CACHE_DIR")


def _vllm(context: Context) -> list[CacheFolder]:
    # vllm/envs.py and vllm/compilation/backends.py
    return [_below(_vllm_root(context), "torch_compile_cache")]


def _vllm_autotune(context: Context) -> list[CacheFolder]:
    # vllm/model_executor/warmup/flashinfer_autotune_cache.py
    default = _below(_vllm_root(context), "flashinfer_autotune_cache")
    return _named(context, "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR") or [default]


def _vllm_root(context: Context) -> CacheFolder:
    default = CacheFolder(f"{locations.xdg_cache(context)}/vllm", "~/.cache/vllm")
    return _first(context, ("VLLM_CACHE_ROOT", ""), default=default)


def _sglang(context: Context) -> list[CacheFolder]:
    # sglang/srt/environ.py: Triton, Inductor, FlashInfer and DeepGEMM below one root.
    default = CacheFolder(f"{locations.xdg_cache(context)}/sglang", "~/.cache/sglang")
    return [_first(context, ("SGLANG_JIT_CACHE_ROOT", ""), ("SGLANG_CACHE_DIR", ""), default=default)]


def _deep_gemm(context: Context) -> list[CacheFolder]:
    default = CacheFolder(f"{locations.home(context)}/.deep_gemm", "~/.deep_gemm")
    return [_first(context, ("SGLANG_DG_CACHE_DIR", ""), ("DG_JIT_CACHE_DIR", ""), default=default)]


def _vllm_tuned(context: Context) -> list[CacheFolder]:
    layers = "vllm/model_executor/layers"
    packaged = [f"{layers}/fused_moe/configs", f"{layers}/quantization/utils/configs"]
    return _named(context, "VLLM_TUNED_CONFIG_FOLDER") + _in_packages(context, packaged)


def _sglang_tuned(context: Context) -> list[CacheFolder]:
    layers = "sglang/srt/layers"
    packaged = [
        f"{layers}/moe/moe_runner/triton_utils/configs",
        f"{layers}/moe/fused_moe_triton/configs",  # where older releases have them
        f"{layers}/quantization/configs",
    ]
    return _named(context, "SGLANG_MOE_CONFIG_DIR") + _in_packages(context, packaged)


CACHES: dict[str, Callable[[Context], list[CacheFolder]]] = {
    "triton_cache": _triton,
    "inductor_cache": _inductor,
    "flashinfer_cache": _flashinfer,
    "vllm_compile_cache": _vllm,
    "vllm_autotune_cache": _vllm_autotune,
    "vllm_tuned_configs": _vllm_tuned,
    "sglang_cache": _sglang,
    "sglang_tuned_configs": _sglang_tuned,
    "deep_gemm_cache": _deep_gemm,
}
"""Field → the folders that it is read from."""


def probe(context: Context) -> dict[str, Section]:
    """The fields of `CACHES`; where several folders have something, each under its name."""
    deadline = time.monotonic() + LIMIT_S
    facts, searched = {}, {}
    for name, find in CACHES.items():
        where = find(context)
        facts[name] = _read(context, where, deadline)
        searched[name] = [
            redact.text(cache.path.encode("utf-8", "backslashreplace").decode()) for cache in where
        ]
    # Where was looked is no fact about kernels: the same kernels moved elsewhere are the same kernels.
    return {"kernels": Section(facts=facts, volatile={"cache_paths": fact(searched, "environment")})}


def _read(context: Context, where: list[CacheFolder], deadline: float) -> Fact:
    if context.environ_unread is not None:
        return unavailable(f"where it lies is not known: {context.environ_unread}", "files")
    found: dict[str, Any] = {}
    forbidden: proc.Forbidden | None = None
    for cache in where:
        try:
            value = describe(
                root_files.locate(context.root, locations.absolute(context, cache.path)), deadline
            )
        except proc.Forbidden as reason:
            forbidden = reason
            continue
        except proc.Unread:
            continue
        except TooSlow:
            return unavailable(f"not read within {LIMIT_S:g} s: it is too large or too slow", "files")
        if value is not None:
            found[cache.name] = value
    if forbidden is not None:
        # Also where another folder has something: half of it would read as a change.
        return unavailable(redact.text(str(forbidden)), "files")
    if not found:
        return unavailable("there is none where it is looked for (see volatile.cache_paths)", "files")
    return fact(found if len(found) > 1 else next(iter(found.values())), "files")


def _first(context: Context, *candidates: tuple[str, str], default: CacheFolder) -> CacheFolder:
    """The folder of the first variable that is set, each with what the tool appends to it."""
    for variable, below in candidates:
        if value := context.environ.get(variable):
            return CacheFolder(value.rstrip("/") + below, f"${variable}{below}")
    return default


def _named(context: Context, variable: str) -> list[CacheFolder]:
    value = context.environ.get(variable)
    return [CacheFolder(value, f"${variable}")] if value else []


def _below(cache: CacheFolder, folder: str) -> CacheFolder:
    return CacheFolder(f"{cache.path}/{folder}", f"{cache.name}/{folder}")


def _in_packages(context: Context, relative: list[str]) -> list[CacheFolder]:
    top = relative[0].partition("/")[0]
    for folder in locations.package_folders(context):
        if root_files.is_folder(context.root, f"{folder}/{top}"):
            return [CacheFolder(f"{folder}/{name}", name) for name in relative]
    return []
