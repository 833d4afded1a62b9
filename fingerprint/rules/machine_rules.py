"""Rules for the machine: CPU, operating system, container, process, and the GPUs with their driver."""

from __future__ import annotations

from . import sources
from .advice import AGAIN, BATCH, DECODE, REPEAT, RESTART, THREADS
from .base import Rule, bitwise, harmless, in_section
from .conditions import ONE_GPU, OTHER_COMPUTE_CAPABILITY, OTHER_MAKER, SAME_SMS, SAME_TP

_THREADS = "sums are split over a different number of threads"
_DEFAULT_THREADS = "the default number of threads follows it, and with it how sums are split"
_ISA = "kernels are chosen by instruction set and core"

_CPU: tuple[Rule, ...] = in_section(
    "cpu",
    bitwise("*threads*", _THREADS, THREADS, sources.MKL_THREADS),
    bitwise("*cpus", _DEFAULT_THREADS, THREADS, sources.MKL_THREADS),
    harmless("cgroup_quota", "limits time, not the number of threads", sources.CGROUP),
    bitwise(
        "openmp",
        "a different OpenMP library, or a different number of its threads",
        THREADS,
        sources.MKL_THREADS,
    ),
    bitwise(
        "blas",
        "a different BLAS, core type or number of threads",
        THREADS,
        (sources.OPENBLAS, sources.MKL_CNR),
    ),
    bitwise("*", _ISA, DECODE, (sources.MKL_CNR, sources.TORCH_ISA)),
)

_OS: tuple[Rule, ...] = in_section(
    "os",
    harmless("kernel", "it computes no tensors; drivers and devices are listed separately"),
    harmless("container*", "what it holds is listed field by field"),
    harmless("kubernetes", "what it starts is listed field by field"),
    bitwise("image*", "a different image may bring different libraries than those listed", DECODE),
    bitwise("*", "a different C library or platform runs beneath the same packages", DECODE, sources.TORCH),
)

# Which process, and who works for it.
_PROCESS: tuple[Rule, ...] = in_section(
    "process",
    harmless("observed", "a different kind of evidence: compare like with like"),
    Rule("read_whole", "a process that ended while it was read may be half read", AGAIN),
    bitwise(
        "accelerators",
        "a different number of devices is a different split of the work",
        DECODE,
        sources.VLLM_TP,
    ),
    bitwise(
        "workers", "a different number of workers is a different split of the work", DECODE, sources.VLLM_TP
    ),
    bitwise("worker_cpus", _DEFAULT_THREADS, DECODE, sources.MKL_THREADS),
    bitwise(
        "variables_differ",
        "workers that were launched with other settings may compute differently",
        REPEAT,
        sources.NCCL_HOSTS,
    ),
)


_ONE = "no collective runs where one GPU works on a request"
_PLACEMENT = "rings and trees of the collectives follow the placement, and with them the order of sums"
_TIMING = "it changes how fast things run; only what is chosen by timing can follow it"
_SAME_KIND = "another card of the same kind computes the same; if only this one differs, suspect the card"
_NO_RESULT = "it changes no result by itself"
_PROMISE = "promised only for one architecture and SM count"


# What decides how collectives run: nothing with one GPU, the order of sums with several.
_PLACED = "rank_order|pci_bus_id|pcie_max_link|numa_node|nvlink|topology|p2p|fabric"


_GPUS: tuple[Rule, ...] = in_section(
    "gpus",
    bitwise(
        "name_and_compute_capability",
        "a different architecture: different kernels, and no library promises anything across architectures",
        DECODE,
        (sources.CUBLAS, sources.CUDNN),
        OTHER_COMPUTE_CAPABILITY,
    ),
    bitwise(
        "name*",
        "a different card, or a different number of them: other kernels, or other shares of the work",
        DECODE,
        when=OTHER_MAKER,
    ),
    bitwise(
        "name*",
        "cuBLAS's promise covers it (same architecture and SM count), but what is chosen by timing or by "
        "memory may differ",
        RESTART,
        (sources.CUBLAS, sources.TRITON_AUTOTUNE),
        SAME_SMS,
    ),
    bitwise(
        "compute_capability",
        "a different architecture: different kernels, and no library promises anything across architectures",
        DECODE,
        (sources.CUBLAS, sources.CUDNN),
    ),
    bitwise(
        "sm_count",
        "a different number of SMs: work is split over different tiles; promised only for the same number",
        DECODE,
        sources.CUBLAS,
    ),
    bitwise("cuda_cores", "it follows the number of SMs", DECODE, sources.CUBLAS),
    harmless("count", "the parallel layout is stated, and it is the same", when=SAME_TP),
    bitwise("count", "the parallel layout may follow it", DECODE, sources.VLLM_TP),
    bitwise(
        "amd|ascend|intel_xpu",
        "a different card, firmware, driver or partition of it: other kernels, or other shares of the work",
        DECODE,
    ),
    bitwise("torch_npu", "a different release of Ascend's kernels in torch", DECODE),
    harmless("installed_count", "only those that the process sees compute"),
    bitwise(
        "cuda_attributes",
        "libraries and autotuners choose their tiles by them",
        RESTART,
        sources.TRITON_AUTOTUNE,
    ),
    bitwise(
        "memory_total_bytes",
        "it sizes the KV cache, and with it batches and preemption",
        BATCH,
        (sources.VLLM_PREEMPTION, sources.VLLM_FAQ),
    ),
    harmless("mig_uuid", "a slice gets a new one each time it is made", sources.MIG),
    bitwise(
        "mig*",
        "a slice has fewer SMs and less cache than the whole GPU",
        DECODE,
        (sources.MIG, sources.CUBLAS),
    ),
    bitwise("virtualization", "a vGPU has a share of the GPU and a driver branch of its own", DECODE),
    harmless(_PLACED, _ONE, when=ONE_GPU),
    bitwise(_PLACED, _PLACEMENT, REPEAT, (sources.NCCL_RANKS, sources.NCCL_TOPOLOGY, sources.NCCL_HOSTS)),
    bitwise(
        "CUDA_*",
        "chooses which cards compute, and in which order they are ranks",
        DECODE,
        (sources.CUDA_VARIABLES, sources.NCCL_RANKS),
    ),
    Rule("uuid|serial", _SAME_KIND, REPEAT),
    Rule("power_limit_w|*clocks_mhz", _TIMING, RESTART, sources.TRITON_AUTOTUNE),
    harmless("vbios", _NO_RESULT),
    harmless("gsp_firmware", "it comes with the driver, which has a rule of its own"),
    harmless("ecc_mode", "it changes no result; without it a flipped bit goes unseen", sources.NVML),
    harmless("persistence_mode|compute_mode|cpu_affinity", _NO_RESULT, sources.NVML),
    bitwise("*", _PROMISE, DECODE, sources.CUBLAS),
)

_DRIVER: tuple[Rule, ...] = in_section(
    "driver",
    harmless("kernel_module", "it loads machine code and compiles none"),
    harmless("nvml_version", "it reads and computes nothing", sources.NVML),
    bitwise(
        "libraries",
        "a forward-compatibility package brings a different libcuda, and with it a different compiler of PTX",
        DECODE,
        (sources.CUDA_COMPATIBILITY, sources.CUDA_JIT),
    ),
    bitwise("*", "the driver compiles PTX to machine code of its own", DECODE, sources.CUDA_JIT),
)

RULES: tuple[Rule, ...] = (*_CPU, *_OS, *_PROCESS, *_GPUS, *_DRIVER)
