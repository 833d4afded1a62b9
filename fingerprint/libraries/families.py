"""Numeric shared libraries by family: how their files are called, and why a copy of one is worth knowing."""

from __future__ import annotations

import re

FAMILIES: tuple[tuple[str, str, str], ...] = (
    # Family, the file's name (or, with a slash, its path), and why a copy of it is worth knowing.
    ("cuda_driver", r"libcuda\.so", "compiles PTX to machine code"),
    ("cudart", r"libcudart[-.]", "chooses the code that fits the device"),
    ("cublas", r"libcublas[-.]", "matrix products"),
    ("cublaslt", r"libcublasLt[-.]", "matrix products and their heuristics"),
    ("cudnn", r"libcudnn(_\w+)?[-.]", "convolution and attention"),
    ("nccl_net", r"libnccl-(net|tuner|profiler|env)", "can choose NCCL's algorithm"),
    ("nccl", r"libnccl[-.]", "order of sums over GPUs"),
    ("nvrtc", r"libnvrtc(-builtins)?[-.]", "compiles kernels while running"),
    ("nvjitlink", r"libnvJitLink[-.]", "links kernels while running"),
    ("nvshmem", r"libnvshmem_host[-.]", "order of sums over GPUs"),
    ("cusparse", r"libcusparse(Lt)?[-.]", "sparse products"),
    ("cufft", r"libcufftw?[-.]", "Fourier transforms"),
    ("curand", r"libcurand[-.]", "random numbers"),
    ("cusolver", r"libcusolver(Mg)?[-.]", "decompositions"),
    ("cutlass", r"lib(cutlass|cute)\w*[-.]", "matrix products"),
    ("tensorrt", r"lib(nvinfer|tensorrt_llm|th_common)\w*[-.]", "kernels of TensorRT"),
    ("rccl", r"librccl[-.]", "order of sums over GPUs"),
    ("hipblas", r"libhipblas(lt)?[-.]", "matrix products on AMD"),
    ("rocblas", r"librocblas[-.]", "matrix products on AMD"),
    ("miopen", r"libMIOpen[-.]", "convolution on AMD"),
    ("hip", r"lib(amdhip64|hiprtc)[-.]", "compiles and chooses code on AMD"),
    ("ascend", r"lib(ascendcl|hccl|opapi|aclnn_?\w*)[-.]", "kernels on Ascend"),
    ("level_zero", r"lib(ze_loader|sycl)[-.]", "kernels on Intel GPUs"),
    ("torch", r"lib(torch|c10)(_\w+)?[-.]", "operators and dispatch"),
    ("mkl", r"libmkl_\w+[-.]", "matrix products and vector functions on the CPU"),
    ("openblas", r"lib(scipy_)?openblas\w*[-.]", "matrix products on the CPU"),
    ("blas", r"lib(blis(-mt)?|cblas|blas|lapack|nvpl_\w+|arm_compute\w*)[-.]", "products on the CPU"),
    ("onednn", r"lib(dnnl|mkldnn)[-.]", "matrix products on the CPU"),
    ("openmp", r"lib(gomp|iomp5|omp|omp5)[-.]", "how sums are split over threads"),
    ("ggml", r"lib(ggml(-\w+)*|llama|mtmd)[-.]", "kernels of llama.cpp"),
    # Extension modules: beside or one folder below the package's own, whatever the folders above are called.
    ("flash_attn", r"/(flash_attn(_\w+)?|hopper)/([^/]+/)?[^/]+$|/flash_attn_[^/]+$", "attention kernels"),
    (
        "flashinfer",
        r"/flashinfer\w*/([^/]+/)?[^/]+$|/cached_ops/[^/]+/[^/]+$",
        "attention and sampling kernels",
    ),
    ("vllm", r"/vllm/([^/]+/)?[^/]+$", "kernels of vLLM"),
    ("sgl_kernel", r"/sgl_kernel/([^/]+/)?[^/]+$", "kernels of SGLang"),
    ("deep_gemm", r"/deep_(gemm|ep)(_cpp)?[^/]*(/[^/]+)?$", "matrix products"),
    ("triton", r"/triton/_C/[^/]+$", "compiles kernels while running"),
    (
        "kernels",
        r"/(bitsandbytes|xformers|causal_conv1d|selective_scan|transformer_engine)\w*[^/]*(/[^/]+)?$",
        "kernels",
    ),
    ("llama_cpp", r"/(xllamacpp|llama_cpp)/([^/]+/)?[^/]+$", "llama.cpp inside Python"),
    ("libc", r"libc\.so\.6|ld-musl-", "functions that compilers call"),
    ("libm", r"libm(vec)?\.so", "exp, tanh and the like on the CPU"),
    ("libstdcxx", r"lib(stdc\+\+|c\+\+)\.so", "functions that compilers call"),
)


def _any_of(patterns: list[tuple[str, str]]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{family}>{pattern})" for family, pattern in patterns))


_FAMILY_OF_NAME = _any_of([(family, pattern) for family, pattern, _ in FAMILIES if "/" not in pattern])
_FAMILY_OF_PATH = _any_of([(family, pattern) for family, pattern, _ in FAMILIES if "/" in pattern])
_SHARED = re.compile(r"\.so(\.\d+)*$")


def family_of(path: str) -> str | None:
    """The family of a shared library by its name and path; None for what computes nothing."""
    name = path.rpartition("/")[2].removeprefix("memfd:")
    if _SHARED.search(name) is None:
        return None
    match = _FAMILY_OF_NAME.match(name) or _FAMILY_OF_PATH.search(path)
    return match.lastgroup if match else None
