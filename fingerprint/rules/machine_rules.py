"""Rules for the machine: CPU, operating system, container, process, and the GPUs with their driver."""

from __future__ import annotations

from . import sources
from .advice import AGAIN, BATCH, DECODE, REPEAT, RESTART, THREADS
from .base import BY_CONSTRUCTION, Rule, bitwise, harmless
from .conditions import ONE_GPU, OTHER_COMPUTE_CAPABILITY, PROBE_FAILED, SAME_SMS, SAME_TP

_THREADS = "sums are split over a different number of threads"
_DEFAULT_THREADS = "the default number of threads follows it, and with it how sums are split"
_ISA = "kernels are chosen by instruction set and core"

HOST_RULES: tuple[Rule, ...] = (
    Rule(
        "*.probe_*",
        "a probe failed on one side, so what it reads is not known there",
        BY_CONSTRUCTION,
        AGAIN,
        PROBE_FAILED,
    ),
    # CPU.
    bitwise("cpu.*threads*", _THREADS, sources.MKL_THREADS, THREADS),
    bitwise("cpu.*cpus", _DEFAULT_THREADS, sources.MKL_THREADS, THREADS),
    harmless("cpu.cgroup_quota", "limits time, not the number of threads", sources.CGROUP),
    bitwise(
        "cpu.openmp",
        "a different OpenMP library, or a different number of its threads",
        sources.MKL_THREADS,
        THREADS,
    ),
    bitwise(
        "cpu.blas",
        "a different BLAS, core type or number of threads",
        (sources.OPENBLAS, sources.MKL_CNR),
        THREADS,
    ),
    bitwise("cpu.*", _ISA, (sources.MKL_CNR, sources.TORCH_ISA), DECODE),
    # The system.
    harmless("os.kernel", "it computes no tensors; drivers and devices are listed separately"),
    harmless("os.container*", "what it holds is listed field by field"),
    harmless("os.kubernetes", "what it starts is listed field by field"),
    bitwise(
        "os.image*",
        "a different image may bring different libraries than those listed",
        BY_CONSTRUCTION,
        DECODE,
    ),
    bitwise(
        "os.*", "a different C library or platform runs beneath the same packages", sources.TORCH, DECODE
    ),
    # Which process, and who works for it.
    harmless("process.observed", "a different kind of evidence: compare like with like"),
    Rule(
        "process.read_whole",
        "a process that ended while it was read may be half read",
        BY_CONSTRUCTION,
        AGAIN,
    ),
    bitwise(
        "process.accelerators",
        "a different number of devices is a different split of the work",
        sources.VLLM_TP,
        DECODE,
    ),
    bitwise(
        "process.workers",
        "a different number of workers is a different split of the work",
        sources.VLLM_TP,
        DECODE,
    ),
    bitwise("process.worker_cpus", _DEFAULT_THREADS, sources.MKL_THREADS, DECODE),
    bitwise(
        "process.variables_differ",
        "workers that were launched with other settings may compute differently",
        sources.NCCL_HOSTS,
        REPEAT,
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
            harmless(f"gpus.{field}", _ONE, when=ONE_GPU),
            bitwise(
                f"gpus.{field}",
                _PLACEMENT,
                (sources.NCCL_RANKS, sources.NCCL_TOPOLOGY, sources.NCCL_HOSTS),
                REPEAT,
            ),
        )
    )


GPU_RULES: tuple[Rule, ...] = (
    bitwise(
        "gpus.name_and_compute_capability",
        "a different architecture: different kernels, and no library promises anything across architectures",
        (sources.CUBLAS, sources.CUDNN),
        DECODE,
        OTHER_COMPUTE_CAPABILITY,
    ),
    bitwise(
        "gpus.name*",
        "cuBLAS's promise covers it (same architecture and SM count), but what is chosen by timing or by "
        "memory may differ",
        (sources.CUBLAS, sources.TRITON_AUTOTUNE),
        RESTART,
        SAME_SMS,
    ),
    bitwise(
        "gpus.compute_capability",
        "a different architecture: different kernels, and no library promises anything across architectures",
        (sources.CUBLAS, sources.CUDNN),
        DECODE,
    ),
    bitwise(
        "gpus.sm_count",
        "a different number of SMs: work is split over different tiles; promised only for the same number",
        sources.CUBLAS,
        DECODE,
    ),
    bitwise("gpus.cuda_cores", "it follows the number of SMs", sources.CUBLAS, DECODE),
    harmless("gpus.count", "the parallel layout is stated, and it is the same", when=SAME_TP),
    bitwise("gpus.count", "the parallel layout may follow it", sources.VLLM_TP, DECODE),
    harmless("gpus.installed_count", "only those that the process sees compute"),
    bitwise(
        "gpus.cuda_attributes",
        "libraries and autotuners choose their tiles by them",
        sources.TRITON_AUTOTUNE,
        RESTART,
    ),
    bitwise(
        "gpus.memory_total_bytes",
        "it sizes the KV cache, and with it batches and preemption",
        (sources.VLLM_PREEMPTION, sources.VLLM_FAQ),
        BATCH,
    ),
    harmless("gpus.mig_uuid", "a slice gets a new one each time it is made", sources.MIG),
    bitwise(
        "gpus.mig*",
        "a slice has fewer SMs and less cache than the whole GPU",
        (sources.MIG, sources.CUBLAS),
        DECODE,
    ),
    bitwise(
        "gpus.virtualization",
        "a vGPU has a share of the GPU and a driver branch of its own",
        BY_CONSTRUCTION,
        DECODE,
    ),
    *_placed("rank_order", "pci_bus_id", "pcie_max_link", "numa_node", "nvlink", "topology", "p2p", "fabric"),
    bitwise(
        "gpus.CUDA_*",
        "chooses which cards compute, and in which order they are ranks",
        (sources.CUDA_VARIABLES, sources.NCCL_RANKS),
        DECODE,
    ),
    Rule("gpus.uuid", _SAME_KIND, BY_CONSTRUCTION, REPEAT),
    Rule("gpus.serial", _SAME_KIND, BY_CONSTRUCTION, REPEAT),
    Rule("gpus.power_limit_w", _TIMING, sources.TRITON_AUTOTUNE, RESTART),
    Rule("gpus.*clocks_mhz", _TIMING, sources.TRITON_AUTOTUNE, RESTART),
    harmless("gpus.vbios", _NO_RESULT),
    harmless("gpus.gsp_firmware", "it comes with the driver, which has a rule of its own"),
    harmless("gpus.ecc_mode", "it changes no result; without it a flipped bit goes unseen", sources.NVML),
    harmless("gpus.persistence_mode", _NO_RESULT, sources.NVML),
    harmless("gpus.compute_mode", _NO_RESULT, sources.NVML),
    harmless("gpus.cpu_affinity", _NO_RESULT, sources.NVML),
    bitwise("gpus.*", _PROMISE, sources.CUBLAS, DECODE),
    harmless("driver.kernel_module", "it loads machine code and compiles none"),
    harmless("driver.nvml_version", "it reads and computes nothing", sources.NVML),
    bitwise(
        "driver.libraries",
        "a forward-compatibility package brings a different libcuda, and with it a different compiler of PTX",
        (sources.CUDA_COMPATIBILITY, sources.CUDA_JIT),
        DECODE,
    ),
    bitwise("driver.*", "the driver compiles PTX to machine code of its own", sources.CUDA_JIT, DECODE),
)
