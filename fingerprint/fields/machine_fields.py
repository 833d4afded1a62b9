"""The fields of the machine and of the software on it: name, what it is, where it is read."""

from __future__ import annotations

from enum import StrEnum

_META = "package metadata"
_TORCH = "the loaded torch"
_LIBRARY = (
    "the loaded copy, else the one torch would load, read in a child process; of a named process its file"
)
_NVML = "NVML"
_CUDA = "the CUDA driver"
_INFO = "`/proc/cpuinfo`"

ROWS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "frameworks": (
        ("torch", "version of torch", f"{_META}, or {_TORCH}"),
        ("torch.git_version", "the commit it was built from", "`torch/version.py`, or the loaded torch"),
        ("torch.hip", "ROCm version it was built for", "`torch/version.py`, or the loaded torch"),
        ("torch.build", "version, digest of the installed files, origin", _META),
        ("torch.cuda.matmul.allow_tf32", "TF32 in products on CUDA", _TORCH),
        ("torch.cudnn.allow_tf32", "TF32 in cuDNN", _TORCH),
        ("torch.float32_matmul_precision", "precision of fp32 products", _TORCH),
        ("torch.mkldnn.matmul_precision", "precision of fp32 products in oneDNN", _TORCH),
        (
            "torch.cuda.matmul.*_reduced_precision_reduction",
            "sums below fp32 in fp16 and bf16 products",
            _TORCH,
        ),
        ("torch.default_dtype", "dtype of tensors that are made without one", _TORCH),
        ("torch.deterministic_algorithms", "`torch.use_deterministic_algorithms`", _TORCH),
        ("torch.deterministic_warn_only", "whether it only warns", _TORCH),
        ("torch.fill_uninitialized_memory", "whether new memory is filled in deterministic mode", _TORCH),
        ("torch.cuda.sdp_kernels", "attention kernels that are allowed", _TORCH),
        ("torch.cudnn.benchmark", "whether cuDNN chooses by timing", _TORCH),
        ("torch.cudnn.deterministic", "whether cuDNN takes deterministic algorithms only", _TORCH),
        ("torch.mkldnn.*", "oneDNN in torch: there, enabled, deterministic, version", _TORCH),
        ("torch.mkl.*", "MKL in torch: there, version", _TORCH),
        ("torch.blas", "BLAS that torch was built with", _TORCH),
        ("torch.compiler", "compiler that built torch", _TORCH),
        ("transformers", "version, digest of the installed files, origin", _META),
        ("tokenizers", "the same", _META),
        ("safetensors", "the same", _META),
        ("accelerate", "the same", _META),
        ("numpy", "the same", _META),
        ("python", "version of Python", "`sys.version`"),
        ("python_*", "its implementation and compiler", "`sys`"),
    ),
    "libraries": (
        (
            "cuda",
            "CUDA that torch was built for",
            "`torch/version.py`, the loaded torch, or the CUDA runtime",
        ),
        ("cublas", "version of cuBLAS", f"`cublasGetProperty` of {_LIBRARY}"),
        ("cublaslt", "version of cuBLASLt", "`cublasLtGetVersion`, likewise"),
        ("cudnn", "version of cuDNN", "`cudnnGetVersion`, likewise"),
        ("nccl", "version of NCCL", "`ncclGetVersion`, likewise"),
        ("cudart", "version of the CUDA runtime", "`cudaRuntimeGetVersion`, likewise"),
        ("nvrtc", "version of the run-time compiler", "`nvrtcVersion`, likewise"),
        ("nvcc", "version of the CUDA compiler that is installed", "pasted reports"),
        ("tensorrt", "version of TensorRT", "pasted reports"),
        ("rocm", "version of AMD's ROCm", "`/opt/rocm/.info/version`, pasted `amd-smi`"),
        ("hip_runtime", "version of AMD's HIP runtime", "pasted reports"),
        ("hipcc", "version of AMD's HIP compiler that is installed", "pasted reports"),
        ("miopen", "version of AMD's MIOpen", "pasted reports"),
        (
            "cann",
            "version of Ascend's CANN",
            "`ascend_toolkit_install.info` in `/usr/local/Ascend`, pasted reports",
        ),
        ("cuda_driver", "newest CUDA that the driver supports", "`cuDriverGetVersion` of `libcuda`"),
        (
            "*_build_id",
            "ELF build id of the copy that answered: distinguishes builds, not a file that was patched later",
            "ELF note",
        ),
        (
            "*_copies",
            "every copy that was found, which is loaded, its build id and package",
            "memory maps, site-packages, loader cache and path",
        ),
        ("loaded", "every numeric library that the process has mapped", "`/proc/PID/maps`, ELF notes"),
        (
            "warnings",
            "sentences: loaded is not installed, replaced or deleted since, two copies at once, ranks differ",
            "the fields above",
        ),
        ("installed_packages", "`nvidia-*` packages and their versions", _META),
        (
            "nccl_conf",
            "files and settings that NCCL reads",
            "`NCCL_CONF_FILE`, `~/.nccl.conf`, `/etc/nccl.conf`",
        ),
    ),
    "gpus": (
        ("name_and_compute_capability", "for example `8 x NVIDIA H200 9.0`", f"{_CUDA}, else {_NVML}"),
        ("count", "GPUs that the process sees", f"{_CUDA}, else {_NVML}"),
        ("compute_capability", "of each", f"{_CUDA}, else {_NVML}"),
        ("sm_count", "streaming multiprocessors of each; of a MIG slice its own", _CUDA),
        ("cuda_attributes", "L2, shared memory, registers and threads of an SM, bus width", _CUDA),
        ("rank_order", "device number → PCI bus and NVML number", f"{_CUDA}, {_NVML}"),
        ("CUDA_VISIBLE_DEVICES", "which cards, in which order", "the environment"),
        ("CUDA_DEVICE_ORDER", "how they are numbered", "the environment"),
        ("installed_count", "GPUs in the machine or container", _NVML),
        ("name", "of each", _NVML),
        ("uuid", "of each; `--hash-ids` hashes it", _NVML),
        ("serial", "of each; `--hash-ids` hashes it", _NVML),
        ("pci_bus_id", "of each", _NVML),
        ("memory_total_bytes", "of each", _NVML),
        ("cuda_cores", "of each", _NVML),
        ("vbios", "firmware of each", _NVML),
        ("gsp_firmware", "firmware of its system processor", _NVML),
        ("virtualization", "none, passthrough, vGPU", _NVML),
        ("mig_mode", "whether it is cut into slices", _NVML),
        ("mig_slices", "name, SM count, memory and instances of each slice", _NVML),
        ("mig_uuid", "of each slice; `--hash-ids` hashes it", _NVML),
        ("ecc_mode", "whether memory corrects errors", _NVML),
        ("persistence_mode", "whether the driver stays loaded", _NVML),
        ("compute_mode", "who may use it", _NVML),
        ("power_limit_w", "the power limit that was set, in watts", _NVML),
        ("application_clocks_mhz", "the clocks that were set", _NVML),
        ("max_clocks_mhz", "the highest clocks", _NVML),
        ("pcie_max_link", "PCIe generation and width that GPU and slot allow", _NVML),
        ("numa_node", "memory node of each", _NVML),
        ("cpu_affinity", "nearest CPUs of each", _NVML),
        ("nvlink", "links up and down, versions, remote ends", _NVML),
        ("topology", "common ancestor of each pair, as `nvidia-smi topo -m`", _NVML),
        ("p2p", "whether peer reads and NVLink work in each pair", _NVML),
        ("fabric", "state and clique of the NVSwitch fabric", _NVML),
        ("used_by_process", "GPUs on which the named process computes", _NVML),
        (
            "amd",
            "AMD GPUs: architecture, compute units, partitions, firmware, driver",
            "amdsmi, `amd-smi`; pasted `amd-smi`, `rocm-smi`, `rocminfo`",
        ),
        ("ascend", "Ascend NPUs: name, memory, driver", "`npu-smi info`, also pasted"),
        ("torch_npu", "version of torch_npu", _META),
        ("intel_xpu", "Intel GPUs: name, PCI ids, driver", "`xpu-smi discovery`"),
    ),
    "driver": (
        ("version", "the NVIDIA driver", f"{_NVML}, else `/proc/driver/nvidia/version`"),
        ("cuda_version", "newest CUDA that it supports", f"{_CUDA}, else {_NVML}"),
        ("kernel_module", "version and flavour (open, proprietary)", "`/proc/driver/nvidia/version`"),
        ("nvml_version", "version of the NVML library", _NVML),
        ("libraries", "the files behind `libcuda.so.1` and `libnvidia-ml.so.1`", "memory maps"),
    ),
    "kernels": (
        (
            "triton_cache",
            "compiled kernels and autotune winners: counts and digests",
            "Triton's cache folder",
        ),
        ("inductor_cache", "the same of torch.compile", "Inductor's cache folder"),
        ("flashinfer_cache", "compiled modules and tuned tactics", "FlashInfer's cache folders"),
        ("vllm_compile_cache", "vLLM's compiled graphs with their winners, all ranks", "vLLM's cache folder"),
        ("vllm_autotune_cache", "FlashInfer tactics that vLLM keeps", "vLLM's cache folder"),
        ("sglang_cache", "compiled and tuned kernels of SGLang", "SGLang's cache folder"),
        ("deep_gemm_cache", "compiled kernels of DeepGEMM", "its cache folder"),
        ("*_tuned_configs", "tables of block sizes", "the folder that is named, and the engine's package"),
        ("*", "one package that brings or chooses kernels: version, digest of its files, origin", _META),
    ),
    "cpu": (
        ("model", "its name", _INFO),
        ("signature", "vendor, family, model, stepping", _INFO),
        ("isa_available", "instruction sets by which numeric libraries choose", _INFO),
        ("isa_in_use", "the instruction set that torch chose", _TORCH),
        ("logical_cpus", "processors of the machine", "`os.cpu_count`"),
        ("usable_cpus", "processors that the process may use", "`sched_getaffinity`"),
        ("cgroup_quota", "CPU time in cores that the control group allows", "`cpu.max`"),
        ("blas", "loaded BLAS libraries: version, core type, threads", "threadpoolctl"),
        ("openmp", "loaded OpenMP libraries and their threads", "threadpoolctl"),
        ("torch_threads", "threads of one operation", _TORCH),
        ("torch_interop_threads", "operations at once", _TORCH),
    ),
    "os": (
        ("system", "for example Linux", "uname"),
        ("kernel", "its release", "uname"),
        ("machine", "the architecture", "uname"),
        ("distribution", "its name", "`os-release`"),
        ("libc", "the GNU C library", "confstr"),
        ("container", "the container runtime", "its marks, control groups, mounts"),
        ("kubernetes", "whether it runs in Kubernetes", "control groups, service account"),
        (
            "image_digest",
            "digest of the container image, where it is stated",
            "environment, runtime files",
        ),
    ),
}

NUMERIC_ISA = frozenset(
    {"avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"}
    | {"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}
    | {"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm", "sme"}
)
"""The CPU flags by which numeric libraries choose kernels; the rest of the list is noise here."""


class FileState(StrEnum):
    """What is at the path of a loaded library now: `state` of an entry of `libraries.loaded`."""

    UNSEEN = "its path could not be looked at from here"
    AS_LOADED = "the loaded file is at its path"
    REPLACED = "replaced on disk since it was loaded"
    DELETED = "deleted since it was loaded"
