"""Part of section `kernels`: which compiled and tuned kernels lie ready, as another one adds differently.

It knows where each tool keeps them. Nothing is compiled, and no file is changed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...schemas import redact
from ...schemas.fingerprint import NO_ANSWER, Fact, Section, fact, unavailable
from ..process import proc, root_files
from ..untrusted.patience import patience
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


@dataclass(frozen=True)
class KernelCache:
    """Where a tool keeps its kernels."""

    default: str | None = None
    """The folder where no variable names one; None: there is none then. In braces the home folder, the user's
    `cache` folder, the `temporary` folder and the name of the `user`."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables that name the folder, with what the tool appends to each; the first that is set counts."""
    also: str | None = None
    """A variable that names a further folder."""
    packaged: tuple[str, ...] = ()
    """Folders in the tool's package, below `site-packages`."""

    def folders(self, context: Context) -> list[CacheFolder]:
        """Where the process would look."""
        named = [
            CacheFolder(value.rstrip("/") + below, f"${variable}{below}")
            for variable, below in self.variables
            if (value := context.environ.get(variable))
        ][:1]
        found = named or ([_default(context, self.default)] if self.default else [])
        if self.also and (value := context.environ.get(self.also)):
            found.append(CacheFolder(value, f"${self.also}"))
        return found + _in_packages(context, self.packaged)


def _default(context: Context, pattern: str) -> CacheFolder:
    temporary = (context.environ.get(key) for key in ("TMPDIR", "TEMP", "TMP"))
    path = pattern.format(
        home=locations.home(context),
        cache=locations.xdg_cache(context),
        temporary=next(filter(None, temporary), "/tmp"),
        user=re.sub(r'[\\/:*?"<>|]', "_", locations.user(context)),
    )
    return CacheFolder(path, pattern.format(home="~", cache="~/.cache", temporary="/tmp", user="USER"))


_VLLM = "vllm/model_executor/layers"
_SGLANG = "sglang/srt/layers"
CACHES: dict[str, KernelCache] = {
    # Triton's knobs.py
    "triton_cache": KernelCache(
        "{home}/.triton/cache", (("TRITON_CACHE_DIR", ""), ("TRITON_HOME", "/.triton/cache"))
    ),
    # torch/_inductor/runtime/cache_dir_utils.py
    "inductor_cache": KernelCache("{temporary}/torchinductor_{user}", (("TORCHINDUCTOR_CACHE_DIR", ""),)),
    # flashinfer/jit/env.py; the autotuner's tables lie below it unless a variable moves them.
    "flashinfer_cache": KernelCache(
        "{home}/.cache/flashinfer",
        (("FLASHINFER_WORKSPACE_BASE", "/.cache/flashinfer"),),
        also="FLASHINFER_AUTOTUNE_CACHE_DIR",
    ),
    # vllm/envs.py and vllm/compilation/backends.py
    "vllm_compile_cache": KernelCache(
        "{cache}/vllm/torch_compile_cache", (("VLLM_CACHE_ROOT", "/torch_compile_cache"),)
    ),
    # vllm/model_executor/warmup/flashinfer_autotune_cache.py
    "vllm_autotune_cache": KernelCache(
        "{cache}/vllm/flashinfer_autotune_cache",
        (("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", ""), ("VLLM_CACHE_ROOT", "/flashinfer_autotune_cache")),
    ),
    "vllm_tuned_configs": KernelCache(
        also="VLLM_TUNED_CONFIG_FOLDER",
        packaged=(f"{_VLLM}/fused_moe/configs", f"{_VLLM}/quantization/utils/configs"),
    ),
    # sglang/srt/environ.py: Triton, Inductor, FlashInfer and DeepGEMM below one root.
    "sglang_cache": KernelCache("{cache}/sglang", (("SGLANG_JIT_CACHE_ROOT", ""), ("SGLANG_CACHE_DIR", ""))),
    "sglang_tuned_configs": KernelCache(
        also="SGLANG_MOE_CONFIG_DIR",
        packaged=(
            f"{_SGLANG}/moe/moe_runner/triton_utils/configs",
            f"{_SGLANG}/moe/fused_moe_triton/configs",  # where older releases have them
            f"{_SGLANG}/quantization/configs",
        ),
    ),
    "deep_gemm_cache": KernelCache(
        "{home}/.deep_gemm", (("SGLANG_DG_CACHE_DIR", ""), ("DG_JIT_CACHE_DIR", ""))
    ),
}
"""Field → the folders that it is read from."""


def probe(context: Context) -> dict[str, Section]:
    """The fields of `CACHES`; where several folders have something, each under its name."""
    deadline = time.monotonic() + patience(LIMIT_S)
    facts, searched = {}, {}
    for name, kept in CACHES.items():
        where = kept.folders(context)
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
            return unavailable(f"{NO_ANSWER}: it is too large or too slow", "files")
        if value is not None:
            found[cache.name] = value
    if forbidden is not None:
        # Also where another folder has something: half of it would read as a change.
        return unavailable(redact.text(str(forbidden)), "files")
    if not found:
        return unavailable("there is none where it is looked for (see volatile.cache_paths)", "files")
    return fact(found if len(found) > 1 else next(iter(found.values())), "files")


def _in_packages(context: Context, relative: tuple[str, ...]) -> list[CacheFolder]:
    if not relative:
        return []
    top = relative[0].partition("/")[0]
    for folder in locations.package_folders(context):
        if root_files.is_folder(context.root, f"{folder}/{top}"):
            return [CacheFolder(f"{folder}/{name}", name) for name in relative]
    return []
