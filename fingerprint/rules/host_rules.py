"""Rules for the machine around the GPUs: CPU, operating system, container, process."""

from __future__ import annotations

from . import advice, sources
from .base import Rule
from .conditions import PROBE_FAILED
from .sources import BY_CONSTRUCTION

_THREADS = "sums are split over a different number of threads"
_DEFAULT_THREADS = "the default number of threads follows it, and with it how sums are split"
_ISA = "kernels are chosen by instruction set and core"

RULES: tuple[Rule, ...] = (
    Rule(
        "*.probe_*",
        None,
        "a probe failed on one side, so what it reads is not known there",
        BY_CONSTRUCTION,
        advice.AGAIN,
        PROBE_FAILED,
    ),
    # CPU.
    Rule("cpu.*threads*", "bitwise", _THREADS, sources.MKL_THREADS, advice.THREADS),
    Rule("cpu.*cpus", "bitwise", _DEFAULT_THREADS, sources.MKL_THREADS, advice.THREADS),
    Rule(
        "cpu.cgroup_quota",
        None,
        "limits time, not the number of threads",
        sources.CGROUP,
        advice.NOTHING,
    ),
    Rule(
        "cpu.openmp",
        "bitwise",
        "a different OpenMP library, or a different number of its threads",
        sources.MKL_THREADS,
        advice.THREADS,
    ),
    Rule(
        "cpu.blas",
        "bitwise",
        "a different BLAS, core type or number of threads",
        (sources.OPENBLAS, sources.MKL_CNR),
        advice.THREADS,
    ),
    Rule("cpu.*", "bitwise", _ISA, (sources.MKL_CNR, sources.TORCH_ISA), advice.DECODE),
    # The system.
    Rule(
        "os.kernel",
        None,
        "it computes no tensors; drivers and devices are listed separately",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "os.container*",
        None,
        "what it holds is listed field by field",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule("os.kubernetes", None, "what it starts is listed field by field", BY_CONSTRUCTION, advice.NOTHING),
    Rule(
        "os.image*",
        "bitwise",
        "a different image may bring different libraries than those listed",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    Rule(
        "os.*",
        "bitwise",
        "a different C library or platform runs beneath the same packages",
        sources.TORCH,
        advice.DECODE,
    ),
    # Which process, and who works for it.
    Rule(
        "process.observed",
        None,
        "a different kind of evidence: compare like with like",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "process.read_whole",
        None,
        "a process that ended while it was read may be half read",
        BY_CONSTRUCTION,
        advice.AGAIN,
    ),
    Rule(
        "process.accelerators",
        "bitwise",
        "a different number of devices is a different split of the work",
        sources.VLLM_TP,
        advice.DECODE,
    ),
    Rule(
        "process.workers",
        "bitwise",
        "a different number of workers is a different split of the work",
        sources.VLLM_TP,
        advice.DECODE,
    ),
    Rule(
        "process.worker_cpus",
        "bitwise",
        _DEFAULT_THREADS,
        sources.MKL_THREADS,
        advice.DECODE,
    ),
    Rule(
        "process.variables_differ",
        "bitwise",
        "workers that were launched with other settings may compute differently",
        sources.NCCL_HOSTS,
        advice.REPEAT,
    ),
)
