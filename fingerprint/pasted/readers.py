"""The one table: forms of lines, in the order in which they are tried, and of which kind of text each is."""

from __future__ import annotations

from . import accelerators, reports, tables
from .logs import llama_cpp, ollama, sglang, tgi, vllm
from .paste import Reader

_TORCH_ENV, _SMI, _FREEZE, _PIP = "", "nvidia-smi", "pip.freeze", "pip.list"
_NPU, _CANN, _ROCMINFO, _ROCM_SMI, _AMD_SMI = "npu-smi", "cann.info", "rocminfo", "rocm-smi", "amd-smi"
_VLLM, _SGLANG, _LLAMA, _OLLAMA, _TGI = "vllm.log", "sglang.log", "llama.cpp.log", "ollama.log", "tgi.env"

READERS: tuple[Reader, ...] = (
    Reader(_TGI, ("Args {",), tgi.read_arguments),
    Reader(_OLLAMA, ("time=",), ollama.read_line),
    Reader(_NPU, ("| npu-smi ",), accelerators.read_npu_header),
    Reader(_NPU, ("|",), accelerators.read_npu_row, is_mark=False),
    Reader(_CANN, ("package_name=", "version="), accelerators.read_cann),
    Reader(_ROCMINFO, ("HSA System Attributes", "HSA Agents"), accelerators.read_rocminfo_head),
    Reader(_ROCMINFO, ("Agent ",), accelerators.read_rocminfo_head, is_mark=False),
    Reader(_ROCMINFO, tuple(accelerators.AGENT_LABELS), accelerators.read_rocminfo, is_mark=False),
    Reader(_ROCM_SMI, ("=",), accelerators.read_rocm_frame),
    Reader(_ROCM_SMI, ("GPU[",), accelerators.read_rocm_label),
    Reader(_ROCM_SMI, tuple("0123456789"), accelerators.read_rocm_row, is_mark=False),
    Reader(
        _ROCM_SMI, ("Driver version:", "ROCM Driver Version:"), accelerators.read_amd_driver, is_mark=False
    ),
    Reader(_AMD_SMI, ("GPU: ",), accelerators.read_amd_gpu),
    Reader(_AMD_SMI, ("AMDSMI Tool", "AMD-SMI Tool", "| AMD-SMI "), accelerators.read_amd_version),
    Reader(_AMD_SMI, ("",), accelerators.read_amd_entry, is_mark=False),
    Reader(_TORCH_ENV, ("GPU models and configuration",), accelerators.read_amd_model, is_mark=False),
    Reader(_SMI, ("| NVIDIA-SMI ",), tables.read_smi_header),
    Reader(_SMI, ("|",), tables.read_smi_row, is_mark=False),
    Reader(_VLLM, ("vLLM API server version", "vLLM server version"), vllm.read_version),
    Reader(_VLLM, ("args: Namespace(", "non-default args: {"), vllm.read_arguments),
    Reader(_VLLM, ("Initializing a", "Initializing an LLM"), vllm.read_config),
    Reader(_VLLM, ("Using default chat sampling", "Using default completion sampling"), vllm.read_defaults),
    Reader(_VLLM, ("Default sampling parameters have", "Default vLLM sampling"), vllm.read_defaults),
    Reader(_VLLM, ("Using ",), vllm.read_backend, is_mark=False),
    Reader(_VLLM, ("Automatically detected platform",), vllm.PLATFORM),
    Reader(_VLLM, ("GPU KV cache size:",), vllm.KV_TOKENS),
    Reader(_VLLM, ("Chunked prefill is enabled",), vllm.CHUNKED),
    Reader(_VLLM, ("Resolved architecture:",), vllm.ARCHITECTURE),
    Reader(_SGLANG, ("server_args=", "ServerArgs("), sglang.read_arguments),
    Reader(_SGLANG, ("Attention backend not", "Use "), sglang.BACKEND),
    Reader(_SGLANG, ("max_total_num_tokens=",), sglang.read_sizes),
    Reader(_SGLANG, ("Load weight end",), sglang.LOADED),
    Reader(_LLAMA, ("main: build", "build", "version"), llama_cpp.read_version),
    Reader(_LLAMA, ("built with ", "main: built with "), llama_cpp.read_compiler, is_mark=False),
    Reader(_LLAMA, ("llama_model_loader:",), llama_cpp.read_model),
    Reader(_LLAMA, ("system_info:",), llama_cpp.read_system),
    Reader(_LLAMA, ("Device ", "ggml_"), llama_cpp.read_device),
    Reader(_LLAMA, ("ggml_",), llama_cpp.read_build),
    Reader(_LLAMA, ("llm_load_", "llama_", "print_info:", "main:"), llama_cpp.read_setting, is_mark=False),
    Reader(_LLAMA, ("repeat_last_n", "top_k = ", "mirostat", "dry_"), llama_cpp.read_sampling, is_mark=False),
    Reader(_LLAMA, ("srv ", "init:"), llama_cpp.SLOTS, is_mark=False),
    Reader(_TORCH_ENV, ("[pip3] ", "[pip] ", "[conda] "), tables.read_collected_package, is_mark=False),
    Reader(_PIP, ("Package",), tables.read_pip_header),
    Reader(_PIP, ("",), tables.read_pip_row, is_mark=False),
    Reader("", ("",), reports.read_variable, is_mark=False),
    Reader("", ("",), reports.read_labelled, is_mark=False),
    Reader("", ("- ", "* "), reports.read_word_pair, is_mark=False),
    Reader(_FREEZE, ("",), tables.read_freeze, is_mark=False),
    Reader("", ("+", "|", "=", "-"), tables.read_frame, is_mark=False),
)
