"""How engines spell their options: short and second names, switches, and those that change no number."""

from __future__ import annotations

import re

ALIASES: dict[str, dict[str, str]] = {
    "vllm": {
        "-tp": "tensor_parallel_size",
        "-pp": "pipeline_parallel_size",
        "-dp": "data_parallel_size",
        "-dcp": "decode_context_parallel_size",
        "-ep": "enable_expert_parallel",
        "-q": "quantization",
        "-O": "optimization_level",
        "-cc": "compilation_config",
        "-sc": "speculative_config",
    },
    "sglang": {
        "--tp": "tp_size",
        "--tensor-parallel-size": "tp_size",
        "--pp": "pp_size",
        "--pipeline-parallel-size": "pp_size",
        "--dp": "dp_size",
        "--data-parallel-size": "dp_size",
        "--ep": "ep_size",
        "--expert-parallel-size": "ep_size",
        "--model": "model_path",
    },
    "llama.cpp": {
        "-m": "model",
        "-a": "alias",
        "-c": "ctx_size",
        "--n-ctx": "ctx_size",
        "-b": "batch_size",
        "--batch": "batch_size",
        "--n-batch": "batch_size",
        "-ub": "ubatch_size",
        "--ubatch": "ubatch_size",
        "-np": "parallel",
        "--n-parallel": "parallel",
        "-cb": "cont_batching",
        "-fa": "flash_attn",
        "-ctk": "cache_type_k",
        "-ctv": "cache_type_v",
        "-md": "model_draft",
        "--spec-draft-model": "model_draft",
        "-ngl": "gpu_layers",
        "--n-gpu-layers": "gpu_layers",
        "-t": "threads",
        "-tb": "threads_batch",
        "-s": "seed",
        "-sm": "split_mode",
        "-ts": "tensor_split",
        "-mg": "main_gpu",
        "-ot": "override_tensor",
        "-cmoe": "cpu_moe",
        "-hf": "hf_repo",
        "-hfr": "hf_repo",
        "-kvu": "kv_unified",
        "--temperature": "temp",
        "--lora-scaled": "lora",
    },
    "tensorrt-llm": {
        "--tensor-parallel-size": "tp_size",
        "--extra-llm-api-options": "config",
    },
}
"""Engine → short or second name of an option → argument."""

SWITCHES: dict[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            "enforce_eager",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "async_scheduling",
            "enable_lora",
        }
        | {"enable_expert_parallel", "disable_custom_all_reduce", "trust_remote_code", "skip_tokenizer_init"}
    ),
    "sglang": frozenset(
        {"disable_radix_cache", "disable_cuda_graph", "disable_overlap_schedule", "enable_torch_compile"}
        | {"enable_deterministic_inference", "disable_custom_all_reduce", "enable_mixed_chunk"}
        | {"enable_dp_attention", "trust_remote_code"}
    ),
    "llama.cpp": frozenset({"cont_batching", "mlock", "jinja", "swa_full", "kv_unified", "cpu_moe"}),
    "tgi": frozenset({"trust_remote_code"}),
}
"""Engine → arguments that take no value, so that what follows them is not theirs."""

CONFIG_FILES = ("config", "config_file", "extra_llm_api_options")
"""Arguments that name a file with more arguments."""

UNINTERESTING = tuple(
    re.compile(pattern)
    for pattern in (
        r"host|port|uds|grpc_.*|nccl_port|dist_init_addr|root_path|fastapi_.*|api_server_count|headless",
        r".*api_key.*|.*ssl.*|tls_.*|.*tls_cert.*|allowed_.*|cors_.*|allow_credentials|.*_token",
        r".*log_(?!probs).*|.*_log|log|logs|verbose|v|lv|verbosity|.*_logger.*|quiet|disable_.*_logging|crash_dump_folder",
        r"uvicorn_.*|.*metrics.*|.*otlp.*|.*trace.*|prometheus.*|.*profil.*|usage_.*|shutdown_timeout|timeout.*|to",
        r"data_parallel_(?:address|rpc_port|master_.*|start_rank|rank.*)|master_(?:addr|port)|node_rank|base_gpu_id",
        r".*watchdog.*|enable_request_id_headers|webui|ui|ui_.*|.*slot_save_path|download_dir|huggingface_hub_cache",
        r"master_shard_uds_path|shard_uds_path|hostname|instance_id|.*_port|.*_ports|enable_auto_tool_choice",
    )
)
"""Arguments that change no number: where to listen, what to log, whom to let in."""
