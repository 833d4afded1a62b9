"""Rules for the machine: CPU, operating system, container, process, and the GPUs with their driver."""

from __future__ import annotations

from . import advice, sources
from .base import Rule
from .conditions import ONE_GPU, OTHER_COMPUTE_CAPABILITY, PROBE_FAILED, SAME_SMS, SAME_TP
from .sources import BY_CONSTRUCTION

_THREADS = "sums are split over a different number of threads"
_DEFAULT_THREADS = "the default number of threads follows it, and with it how sums are split"
_ISA = "kernels are chosen by instruction set and core"

HOST_RULES: tuple[Rule, ...] = (
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


_ONE = "no collective runs where one GPU works on a request"
_PLACEMENT = "rings and trees of the collectives follow the placement, and with them the order of sums"
_TIMING = "it changes how fast things run; only what is chosen by timing can follow it"
_SAME_KIND = "another card of the same kind computes the same; if only this one differs, suspect the card"
_NO_RESULT = "it changes no result by itself"
_PROMISE = "promised only for one architecture and SM count"


def _placed(*fields: str) -> tuple[Rule, ...]:
    """What decides how collectives run: nothing with one GPU, the order of sums with several."""
    return tuple(
        rule
        for field in fields
        for rule in (
            Rule(f"gpus.{field}", None, _ONE, BY_CONSTRUCTION, advice.NOTHING, ONE_GPU),
            Rule(
                f"gpus.{field}",
                "bitwise",
                _PLACEMENT,
                (sources.NCCL_RANKS, sources.NCCL_TOPOLOGY, sources.NCCL_HOSTS),
                advice.REPEAT,
            ),
        )
    )


GPU_RULES: tuple[Rule, ...] = (
    Rule(
        "gpus.name_and_compute_capability",
        "bitwise",
        "a different architecture: different kernels, and no library promises anything across architectures",
        (sources.CUBLAS, sources.CUDNN),
        advice.DECODE,
        OTHER_COMPUTE_CAPABILITY,
    ),
    Rule(
        "gpus.name*",
        "bitwise",
        "cuBLAS's promise covers it (same architecture and SM count), but what is chosen by timing or by "
        "memory may differ",
        (sources.CUBLAS, sources.TRITON_AUTOTUNE),
        advice.RESTART,
        SAME_SMS,
    ),
    Rule(
        "gpus.compute_capability",
        "bitwise",
        "a different architecture: different kernels, and no library promises anything across architectures",
        (sources.CUBLAS, sources.CUDNN),
        advice.DECODE,
    ),
    Rule(
        "gpus.sm_count",
        "bitwise",
        "a different number of SMs: work is split over different tiles; promised only for the same number",
        sources.CUBLAS,
        advice.DECODE,
    ),
    Rule(
        "gpus.cuda_cores",
        "bitwise",
        "it follows the number of SMs",
        sources.CUBLAS,
        advice.DECODE,
    ),
    Rule(
        "gpus.count",
        None,
        "the parallel layout is stated, and it is the same",
        BY_CONSTRUCTION,
        advice.NOTHING,
        SAME_TP,
    ),
    Rule(
        "gpus.count",
        "bitwise",
        "the parallel layout may follow it",
        sources.VLLM_TP,
        advice.DECODE,
    ),
    Rule(
        "gpus.installed_count",
        None,
        "only those that the process sees compute",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "gpus.cuda_attributes",
        "bitwise",
        "libraries and autotuners choose their tiles by them",
        sources.TRITON_AUTOTUNE,
        advice.RESTART,
    ),
    Rule(
        "gpus.memory_total_bytes",
        "bitwise",
        "it sizes the KV cache, and with it batches and preemption",
        (sources.VLLM_PREEMPTION, sources.VLLM_FAQ),
        advice.BATCH,
    ),
    Rule(
        "gpus.mig_uuid",
        None,
        "a slice gets a new one each time it is made",
        sources.MIG,
        advice.NOTHING,
    ),
    Rule(
        "gpus.mig*",
        "bitwise",
        "a slice has fewer SMs and less cache than the whole GPU",
        (sources.MIG, sources.CUBLAS),
        advice.DECODE,
    ),
    Rule(
        "gpus.virtualization",
        "bitwise",
        "a vGPU has a share of the GPU and a driver branch of its own",
        BY_CONSTRUCTION,
        advice.DECODE,
    ),
    *_placed("rank_order", "pci_bus_id", "pcie_max_link", "numa_node", "nvlink", "topology", "p2p", "fabric"),
    Rule(
        "gpus.CUDA_*",
        "bitwise",
        "chooses which cards compute, and in which order they are ranks",
        (sources.CUDA_VARIABLES, sources.NCCL_RANKS),
        advice.DECODE,
    ),
    Rule("gpus.uuid", None, _SAME_KIND, BY_CONSTRUCTION, advice.REPEAT),
    Rule("gpus.serial", None, _SAME_KIND, BY_CONSTRUCTION, advice.REPEAT),
    Rule("gpus.power_limit_w", None, _TIMING, sources.TRITON_AUTOTUNE, advice.RESTART),
    Rule("gpus.*clocks_mhz", None, _TIMING, sources.TRITON_AUTOTUNE, advice.RESTART),
    Rule("gpus.vbios", None, _NO_RESULT, BY_CONSTRUCTION, advice.NOTHING),
    Rule(
        "gpus.gsp_firmware",
        None,
        "it comes with the driver, which has a rule of its own",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule(
        "gpus.ecc_mode",
        None,
        "it changes no result; without it a flipped bit goes unseen",
        sources.NVML,
        advice.NOTHING,
    ),
    Rule("gpus.persistence_mode", None, _NO_RESULT, sources.NVML, advice.NOTHING),
    Rule("gpus.compute_mode", None, _NO_RESULT, sources.NVML, advice.NOTHING),
    Rule("gpus.cpu_affinity", None, _NO_RESULT, sources.NVML, advice.NOTHING),
    Rule("gpus.*", "bitwise", _PROMISE, sources.CUBLAS, advice.DECODE),
    Rule(
        "driver.kernel_module",
        None,
        "it loads machine code and compiles none",
        BY_CONSTRUCTION,
        advice.NOTHING,
    ),
    Rule("driver.nvml_version", None, "it reads and computes nothing", sources.NVML, advice.NOTHING),
    Rule(
        "driver.libraries",
        "bitwise",
        "a forward-compatibility package brings a different libcuda, and with it a different compiler of PTX",
        (sources.CUDA_COMPATIBILITY, sources.CUDA_JIT),
        advice.DECODE,
    ),
    Rule(
        "driver.*",
        "bitwise",
        "the driver compiles PTX to machine code of its own",
        sources.CUDA_JIT,
        advice.DECODE,
    ),
)
