"""The one table: forms of lines, in the order in which they are tried, and of which kind of text each is."""

from __future__ import annotations

from . import logs, reports, tables
from .paste import Reader

_TORCH_ENV, _SMI, _FREEZE, _PIP = "", "nvidia-smi", "pip.freeze", "pip.list"
_VLLM, _SGLANG, _LLAMA, _OLLAMA, _TGI = "vllm.log", "sglang.log", "llama.cpp.log", "ollama.log", "tgi.env"

READERS: tuple[Reader, ...] = (
    Reader(_TGI, ("Args {",), logs.read_tgi_arguments),
    Reader(_OLLAMA, ("time=",), logs.read_ollama),
    Reader(_SMI, ("| NVIDIA-SMI ",), tables.read_smi_header),
    Reader(_SMI, ("|",), tables.read_smi_row, is_mark=False),
    Reader(_VLLM, ("vLLM API server version", "vLLM server version"), logs.read_vllm_version),
    Reader(_VLLM, ("args: Namespace(", "non-default args: {"), logs.read_vllm_arguments),
    Reader(_VLLM, ("Initializing a", "Initializing an LLM"), logs.read_vllm_config),
    Reader(
        _VLLM, ("Using default chat sampling", "Using default completion sampling"), logs.read_vllm_defaults
    ),
    Reader(_VLLM, ("Default sampling parameters have", "Default vLLM sampling"), logs.read_vllm_defaults),
    Reader(_VLLM, ("Using ",), logs.read_vllm_backend, is_mark=False),
    Reader(_VLLM, ("Automatically detected platform",), logs.PLATFORM),
    Reader(_VLLM, ("GPU KV cache size:",), logs.KV_TOKENS),
    Reader(_VLLM, ("Chunked prefill is enabled",), logs.CHUNKED),
    Reader(_VLLM, ("Resolved architecture:",), logs.ARCHITECTURE),
    Reader(_SGLANG, ("server_args=ServerArgs(", "ServerArgs("), logs.read_sglang_arguments),
    Reader(_SGLANG, ("Attention backend not", "Use "), logs.BACKEND_SGLANG),
    Reader(_SGLANG, ("max_total_num_tokens=",), logs.read_sglang_sizes),
    Reader(_SGLANG, ("Load weight end",), logs.LOADED),
    Reader(_LLAMA, ("main: build", "build", "version"), logs.read_llama_version),
    Reader(_LLAMA, ("built with ", "main: built with "), logs.read_llama_compiler, is_mark=False),
    Reader(_LLAMA, ("llama_model_loader:",), logs.read_llama_model),
    Reader(_LLAMA, ("system_info:",), logs.read_llama_system),
    Reader(_LLAMA, ("Device ", "ggml_"), logs.read_llama_device),
    Reader(_LLAMA, ("ggml_",), logs.read_llama_build),
    Reader(_LLAMA, ("llm_load_", "llama_", "print_info:", "main:"), logs.read_llama_setting, is_mark=False),
    Reader(
        _LLAMA, ("repeat_last_n", "top_k = ", "mirostat", "dry_"), logs.read_llama_sampling, is_mark=False
    ),
    Reader(_LLAMA, ("srv ", "init:"), logs.SLOTS, is_mark=False),
    Reader(_TORCH_ENV, ("[pip3] ", "[pip] ", "[conda] "), tables.read_collected_package, is_mark=False),
    Reader(_PIP, ("Package",), tables.read_pip_header),
    Reader(_PIP, ("",), tables.read_pip_row, is_mark=False),
    Reader("", ("",), reports.read_variable, is_mark=False),
    Reader("", ("",), reports.read_labelled, is_mark=False),
    Reader("", ("- ", "* "), reports.read_word_pair, is_mark=False),
    Reader(_FREEZE, ("",), tables.read_freeze, is_mark=False),
    Reader("", ("+", "|", "=", "-"), tables.read_frame, is_mark=False),
)
