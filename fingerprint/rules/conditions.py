"""The conditions of the tables: what two values, and the rest of both fingerprints, must look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...schemas.base import canonical_json
from ...schemas.fingerprint import Absence
from ..fields.machine_fields import FileState
from . import sources
from .base import Compared, Condition, Source

if TYPE_CHECKING:
    from ...schemas.fingerprint import Fact, Fingerprint


_BY_SOURCE: dict[Source, dict[str, str]] = {
    sources.CUDA_VARIABLES: {"CUDA_FORCE_PTX_JIT": "0"},
    sources.TORCH_VARIABLES: {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "TORCH_CUDNN_V8_API_DISABLED": "0"},
    sources.INDUCTOR: {
        "TORCHINDUCTOR_DETERMINISTIC": "0",
        "TORCHINDUCTOR_BATCH_INVARIANT": "0",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "0",
        "TORCHINDUCTOR_USE_FAST_MATH": "0",
        "TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "0",
        "TORCHINDUCTOR_SPLIT_REDUCTIONS": "1",
    },
    sources.VLLM_VARIABLES: {
        "VLLM_BATCH_INVARIANT": "0",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "1",
        "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
        "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
        "VLLM_MARLIN_USE_ATOMIC_ADD": "0",
        "VLLM_TRITON_FORCE_FIRST_CONFIG": "0",
    },
    sources.TUNABLE_OP: {
        "PYTORCH_TUNABLEOP_ENABLED": "0",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": "tunableop_results.csv",
        "PYTORCH_TUNABLEOP_ROCBLAS_ENABLED": "1",
        "PYTORCH_TUNABLEOP_HIPBLASLT_ENABLED": "1",
    },
    sources.HCCL: {"HCCL_DETERMINISTIC": "false"},
    sources.LCCL: {"LCCL_DETERMINISTIC": "0"},
    sources.TENSORRT_LLM: {
        "FORCE_DETERMINISTIC": "0",
        "FORCE_ATTENTION_KERNEL_DETERMINISTIC": "0",
        "FORCE_MOE_KERNEL_DETERMINISTIC": "0",
        "FORCE_ALL_REDUCE_DETERMINISTIC": "0",
    },
    sources.LLAMA_BUILD: {"GGML_CUDA_CUBLAS_COMPUTE_TYPE": "auto", "GGML_CUDA_MMQ_PREC": "auto"},
    sources.PYTHON: {"PYTHONHASHSEED": "random"},
}

DEFAULTS: dict[str, tuple[str, Source]] = {
    name: (default, source) for source, defaults in _BY_SOURCE.items() for name, default in defaults.items()
}
"""Variable → its default, and who says so. A variable whose default depends on release or hardware is not
here: that it was set is then always a change with a risk."""


_VERSION = re.compile(r"(\d+)\.(\d+)")
_WIDTHS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)


def _value(reading: Fact | None) -> Any:
    return None if reading is None else reading.value


def _same(one: Any, other: Any) -> bool:
    return canonical_json([one]) == canonical_json([other])


def _agree(c: Compared, read: Callable[[Fact | None], Any]) -> bool:
    """Whether what is read of the field is known and the same on both sides."""
    before = read(c.before)
    return before is not None and _same(before, read(c.after))


def _fields_agree(c: Compared, section: str, *fields: str) -> bool:
    """Whether other fields of the two fingerprints are known and the same."""
    pairs = [(_value(c.base.get(section, name)), _value(c.now.get(section, name))) for name in fields]
    return all(before is not None and _same(before, after) for before, after in pairs)


def _version(reading: Fact | None) -> str | None:
    """The version that a reading states, as text or in a table with `version`."""
    value = _value(reading)
    if isinstance(value, dict):
        value = value.get("version")
    return value if isinstance(value, str) else None


def _release(reading: Fact | None) -> tuple[str, str] | None:
    """Major and minor number."""
    match = _VERSION.search(_version(reading) or "")
    return (match[1], match[2]) if match else None


def _without_origin(reading: Fact | None) -> dict[str, Any] | None:
    """A package in all but where it was installed from; None where its files are not known."""
    value = _value(reading)
    return {**value, "direct_url": ""} if isinstance(value, dict) and "record_sha256" in value else None


def _choices(reading: Fact | None) -> Any:
    """The digest of the winners that autotuning chose."""
    value = _value(reading)
    return value.get("choices_sha256") if isinstance(value, dict) else None


def width(fingerprint: Fingerprint) -> int | None:
    """How many GPUs work on one request; None where nothing says it."""
    stated = [_value(fingerprint.get("parallelism", field)) for field in _WIDTHS]
    known = [int(size) for size in stated if isinstance(size, int | float) and not isinstance(size, bool)]
    if known:
        return max(known)
    count = _value(fingerprint.get("gpus", "count"))
    # One GPU is one rank. Of several, it is unknown how many a request uses.
    return 1 if count in (0, 1) and not isinstance(count, bool) else None


def _as_switch(name: str, reading: Fact | None) -> str | None:
    """A variable's meaning, with absence read as its default; None where nobody states the default."""
    if reading is None:
        return None
    if reading.unavailable is not None:
        return DEFAULTS[name][0] if reading.absence is Absence.UNSET and name in DEFAULTS else None
    return (
        str(reading.value).strip().lower()
    )  # `true` is not `1`: several readers ask for exactly one of them


def _capabilities(reading: Fact | None) -> list[str] | None:
    """The compute capabilities at the end of `NVIDIA H200 9.0`, or of a list of such."""
    value = _value(reading)
    names = value if isinstance(value, list) else [value]
    found = [re.search(r"(\d+\.\d+)$", name) if isinstance(name, str) else None for name in names]
    return None if None in found or not found else sorted({match[1] for match in found if match})


def _other_compute_capability(c: Compared) -> bool:
    before, after = _capabilities(c.before), _capabilities(c.after)
    return before is not None and after is not None and before != after


def _quantizes(c: Compared) -> bool:
    """One side keeps keys and values in a type of less than 16 bits."""
    short = re.compile(r"(?:fp|f|int|i|q|nv)?[48](?:\D|$)|fp8|int8|q[2-8]_|nvfp4|mxfp4", re.IGNORECASE)
    return any(isinstance(value := _value(side), str) and short.match(value) for side in (c.before, c.after))


def _loaded(reading: Fact | None) -> Any:
    """The entries of a table of copies that are loaded."""
    value = _value(reading)
    if not isinstance(value, dict):
        return None
    return {name: copy for name, copy in value.items() if isinstance(copy, dict) and copy.get("loaded")}


def _builds(table: Any) -> list[str] | None:
    """The builds in a table of libraries, wherever they lie; None where one of them states no build."""
    if not isinstance(table, dict) or not table:
        return None
    found = [
        item.get("build_id") or item.get("sha256") if isinstance(item, dict) else None
        for item in table.values()
    ]
    # The same build may be loaded from two places: that computes as one.
    known = {build for build in found if isinstance(build, str)}
    return sorted(known) if None not in found else None


def _same_builds(c: Compared) -> bool:
    read = _loaded if c.field.endswith("_copies") else _value
    return _agree(c, lambda side: _builds(read(side)))


def _on_disk(reading: Fact | None) -> list[str]:
    """What became of the files that were loaded."""
    table = _value(reading)
    entries = table.values() if isinstance(table, dict) else ()
    states = {item.get("state") for item in entries if isinstance(item, dict)}
    return sorted(state for state in (FileState.DELETED, FileState.REPLACED) if state in states)


def means_the_same(default: str) -> Condition:
    """A variable is not set on one side, and has its default on the other."""
    return Condition(
        f"not set on one side, `{default}` on the other", lambda c: _agree(c, partial(_as_switch, c.field))
    )


def _equal(section: str, *fields: str) -> Condition:
    """Other fields are known on both sides and equal, though the one at hand changed."""
    return Condition(
        f"`{section}.{' and '.join(fields)}` known and equal on both sides",
        lambda c: _fields_agree(c, section, *fields),
    )


ONLY_PATCH = Condition(
    "only what follows major and minor number changed",
    lambda c: _agree(c, _release) and not _agree(c, _version),
)


def crosses(release: tuple[int, int], engine: str | None = None) -> Condition:
    """One side is older than a release, the other is not.

    Args:
        release: Major and minor number.
        engine: Only where `engine.name` of both sides is this.
    """

    def holds(c: Compared) -> bool:
        if engine is not None and {_value(one.get("engine", "name")) for one in (c.base, c.now)} != {engine}:
            return False
        sides = [_release(side) for side in (c.before, c.after)]
        older = [(int(side[0]), int(side[1])) < release for side in sides if side is not None]
        return sorted(older) == [False, True]

    number = ".".join(map(str, release))
    return Condition(f"from before {number} to {number} or later, or back", holds)


def of_engine(name: str) -> Condition:
    """Both sides are of one engine."""
    return Condition(
        f"`engine.name` is {name} on both sides",
        lambda c: all(_value(one.get("engine", "name")) == name for one in (c.base, c.now)),
    )


def _is_eager(fingerprint: Fingerprint) -> bool:
    """Whether rip's own eager engine, or one that compiles nothing, is what the fingerprint is of."""
    name = _value(fingerprint.get("engine", "name"))
    compiles = _value(fingerprint.get("engine", "compilation"))
    graphs = _value(fingerprint.get("engine", "cuda_graphs"))
    on_gpu = _value(fingerprint.get("gpus", "count"))
    return name == "hf" and not compiles and not graphs and not on_gpu


NOT_COMPILED = Condition(
    "both sides are of the engine `hf` without a GPU, which compiles nothing",
    lambda c: _is_eager(c.base) and _is_eager(c.now),
)
SAME_VERSION = Condition(
    "the version is the same: a different build of it",
    lambda c: _agree(c, _version) and isinstance(_value(c.before), dict),
)
SAME_VERSION_BESIDE = Condition(
    "the version beside it is the same",
    lambda c: _fields_agree(c, c.section, c.field.removesuffix("_build_id")),
)
SAME_LOADED_COPY = Condition("the loaded copy is the same on both sides", lambda c: _agree(c, _loaded))
SAME_BUILDS = Condition("the loaded builds are the same on both sides", _same_builds)
SAME_BUILDS_NOW_GONE = Condition(
    "the loaded builds are the same, files were replaced or deleted since",
    lambda c: _same_builds(c) and _on_disk(c.before) != _on_disk(c.after),
)
SAME_CHOICES = Condition("the autotune winners are the same on both sides", lambda c: _agree(c, _choices))
ONLY_ORIGIN = Condition(
    "the installed files are the same, only their origin differs", lambda c: _agree(c, _without_origin)
)
ONE_GPU = Condition(
    "one GPU works on a request, on both sides", lambda c: width(c.base) == 1 and width(c.now) == 1
)
OTHER_MAKER = Condition(
    "AMD's, Ascend's or Intel's cards on a side",
    lambda c: any(
        _value(one.get("gpus", maker)) is not None
        for one in (c.base, c.now)
        for maker in ("amd", "ascend", "intel_xpu")
    ),
)
OTHER_COMPUTE_CAPABILITY = Condition("a different compute capability", _other_compute_capability)
QUANTIZES = Condition("one side uses fewer than 16 bits", _quantizes)
ONE_SIDE_UNREAD = Condition(
    "known on one side only", lambda c: (_value(c.before) is None) != (_value(c.after) is None)
)
SAME_TENSORS = _equal("model", "tensors_root")
SAME_RENDERING = _equal("template", "rendered_sha256")
SAME_TP = _equal("parallelism", "tensor_parallel_size")
SAME_SMS = _equal("gpus", "compute_capability", "sm_count")
