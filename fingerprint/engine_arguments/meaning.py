"""What the arguments of each engine mean: which field of the fingerprint each one sets.

The same tables read command lines and what servers say about themselves. Names were taken from vLLM 0.32,
SGLang 0.5, llama.cpp b11549, Text Generation Inference 3, TensorRT-LLM 1; Ollama has no arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

EXPECTED: tuple[tuple[str, str], ...] = (
    ("engine", "attention_backend"),
    ("engine", "dtype"),
    ("engine", "kv_cache_dtype"),
    ("engine", "quantization"),
    ("engine", "max_model_len"),
    ("engine", "max_batched_tokens"),
    ("engine", "max_sequences"),
    ("engine", "chunked_prefill"),
    ("engine", "async_scheduling"),
    ("engine", "cuda_graphs"),
    ("engine", "speculative_decoding"),
    ("parallelism", "tensor_parallel_size"),
    ("parallelism", "pipeline_parallel_size"),
    ("parallelism", "data_parallel_size"),
    ("parallelism", "expert_parallel"),
    ("cache", "prefix_cache"),
    ("determinism", "engine_seed"),
)
"""(section, field) of the settings that change numbers in every engine: each is a fact, known or not."""

_VLLM = {
    "model": "model.served",
    "revision": "model.revision",
    "served_model_name": "model.served_name",
    "lora_modules": "model.adapters",
    "load_format": "model.load_format",
    "hf_overrides": "model.config_overrides",
    "tokenizer": "tokenizer.served",
    "tokenizer_revision": "tokenizer.revision",
    "tokenizer_mode": "tokenizer.mode",
    "chat_template": "template.given",
    "generation_config": "sampling.generation_config",
    "override_generation_config": "sampling.server_overrides",
    "logits_processors": "sampling.logits_processors",
    "logprobs_mode": "sampling.logprobs_mode",
    "max_logprobs": "sampling.max_logprobs",
    "dtype": "engine.dtype",
    "device": "engine.device",
    "quantization": "engine.quantization",
    "kv_cache_dtype": "engine.kv_cache_dtype",
    "cache_dtype": "engine.kv_cache_dtype",
    "calculate_kv_scales": "engine.calculated_kv_scales",
    "attention_backend": "engine.attention_backend",
    "attention_config.backend": "engine.attention_backend",
    "attention_config.flash_attn_version": "engine.flash_attention_version",
    "attention_config.flash_attn_max_num_splits_for_cuda_graph": "engine.attention_splits",
    "disable_cascade_attn": "!engine.cascade_attention",
    "mm_encoder_attn_backend": "engine.encoder_attention_backend",
    "max_model_len": "engine.max_model_len",
    "max_num_batched_tokens": "engine.max_batched_tokens",
    "max_num_seqs": "engine.max_sequences",
    "enable_chunked_prefill": "engine.chunked_prefill",
    "long_prefill_token_threshold": "engine.long_prefill_threshold",
    "async_scheduling": "engine.async_scheduling",
    "scheduling_policy": "engine.scheduling_policy",
    "policy": "engine.scheduling_policy",
    "enforce_eager": "!engine.cuda_graphs",
    "compilation_config": "engine.compilation",
    "cuda_graph_sizes": "engine.cuda_graph_sizes",
    "compilation_config.cudagraph_capture_sizes": "engine.cuda_graph_sizes",
    "max_cudagraph_capture_size": "engine.cuda_graph_max_batch",
    "compilation_config.max_cudagraph_capture_size": "engine.cuda_graph_max_batch",
    "optimization_level": "engine.optimization_level",
    "moe_backend": "engine.moe_backend",
    "kernel_config.moe_backend": "engine.moe_backend",
    "linear_backend": "engine.linear_backend",
    "kernel_config.linear_backend": "engine.linear_backend",
    "sparse_indexer_topk_backend": "engine.sparse_top_k_backend",
    "kernel_config.sparse_indexer_topk_backend": "engine.sparse_top_k_backend",
    "speculative_config": "engine.speculative_decoding",
    "model_impl": "engine.model_implementation",
    "seed": "determinism.engine_seed",
    "enable_prefix_caching": "cache.prefix_cache",
    "block_size": "cache.block_size",
    "num_gpu_blocks_override": "cache.blocks_override",
    "num_gpu_blocks": "cache.blocks",
    "gpu_memory_utilization": "cache.memory_fraction",
    "cpu_offload_gb": "cache.cpu_offload_gb",
    "kv_transfer_config": "cache.transfer",
    "prefix_caching_hash_algo": "cache.prefix_hash",
    "mamba_ssm_cache_dtype": "cache.mamba_ssm_dtype",
    "tensor_parallel_size": "parallelism.tensor_parallel_size",
    "pipeline_parallel_size": "parallelism.pipeline_parallel_size",
    "data_parallel_size": "parallelism.data_parallel_size",
    "enable_expert_parallel": "parallelism.expert_parallel",
    "decode_context_parallel_size": "parallelism.decode_context_parallel_size",
    "prefill_context_parallel_size": "parallelism.prefill_context_parallel_size",
    "disable_custom_all_reduce": "!parallelism.custom_all_reduce",
    "distributed_executor_backend": "parallelism.executor",
    "all2all_backend": "parallelism.all_to_all_backend",
    "enable_eplb": "parallelism.expert_load_balancing",
    "eplb_config.step_interval": "parallelism.expert_rebalance_interval",
    "eplb_config.num_redundant_experts": "parallelism.redundant_experts",
    "expert_placement_strategy": "parallelism.expert_placement",
    "compilation_config.pass_config.fuse_allreduce_rms": "parallelism.fused_all_reduce",
    "compilation_config.pass_config.enable_fi_allreduce_fusion": "parallelism.fused_all_reduce",
    "compilation_config.pass_config.enable_sp": "parallelism.sequence_parallel",
    "compilation_config.pass_config.enable_sequence_parallelism": "parallelism.sequence_parallel",
    "compilation_config.pass_config.fuse_gemm_comms": "parallelism.async_tensor_parallel",
    "compilation_config.pass_config.enable_async_tp": "parallelism.async_tensor_parallel",
    "enable_dbo": "parallelism.dual_batch_overlap",
}
_SGLANG = {
    "model_path": "model.served",
    "model": "model.served",
    "revision": "model.revision",
    "served_model_name": "model.served_name",
    "lora_paths": "model.adapters",
    "load_format": "model.load_format",
    "json_model_override_args": "model.config_overrides",
    "weight_version": "replica.weight_version",
    "tokenizer_path": "tokenizer.served",
    "tokenizer_mode": "tokenizer.mode",
    "chat_template": "template.given",
    "sampling_defaults": "sampling.generation_config",
    "preferred_sampling_params": "sampling.server_overrides",
    "sampling_backend": "sampling.backend",
    "dtype": "engine.dtype",
    "device": "engine.device",
    "quantization": "engine.quantization",
    "kv_cache_dtype": "engine.kv_cache_dtype",
    "attention_backend": "engine.attention_backend",
    "prefill_attention_backend": "engine.prefill_attention_backend",
    "decode_attention_backend": "engine.decode_attention_backend",
    "mm_attention_backend": "engine.encoder_attention_backend",
    "context_length": "engine.max_model_len",
    "max_prefill_tokens": "engine.max_batched_tokens",
    "chunked_prefill_size": "engine.chunked_prefill",
    "enable_mixed_chunk": "engine.mixed_chunks",
    "max_running_requests": "engine.max_sequences",
    "disable_overlap_schedule": "!engine.async_scheduling",
    "schedule_policy": "engine.scheduling_policy",
    "disable_cuda_graph": "!engine.cuda_graphs",
    "cuda_graph_max_bs": "engine.cuda_graph_max_batch",
    "cuda_graph_bs": "engine.cuda_graph_sizes",
    "triton_attention_num_kv_splits": "engine.attention_splits",
    "flashinfer_mxfp4_moe_precision": "engine.moe_precision",
    "enable_torch_compile": "engine.compilation",
    "moe_runner_backend": "engine.moe_backend",
    "fp8_gemm_runner_backend": "engine.linear_backend",
    "speculative_algorithm": "engine.speculative_decoding",
    "speculative_draft_model_path": "engine.draft_model",
    "speculative_num_steps": "engine.draft_steps",
    "speculative_num_draft_tokens": "engine.draft_tokens",
    "model_impl": "engine.model_implementation",
    "random_seed": "determinism.engine_seed",
    "enable_deterministic_inference": "determinism.batch_invariance",
    "rl_on_policy_target": "determinism.on_policy_target",
    "disable_radix_cache": "!cache.prefix_cache",
    "page_size": "cache.block_size",
    "max_total_tokens": "cache.tokens",
    "max_total_num_tokens": "cache.tokens",
    "mem_fraction_static": "cache.memory_fraction",
    "enable_hierarchical_cache": "cache.hierarchical",
    "tp_size": "parallelism.tensor_parallel_size",
    "pp_size": "parallelism.pipeline_parallel_size",
    "dp_size": "parallelism.data_parallel_size",
    "ep_size": "parallelism.expert_parallel",
    "dcp_size": "parallelism.decode_context_parallel_size",
    "enable_dp_attention": "parallelism.data_parallel_attention",
    "disable_custom_all_reduce": "!parallelism.custom_all_reduce",
    "moe_a2a_backend": "parallelism.all_to_all_backend",
    "enable_two_batch_overlap": "parallelism.dual_batch_overlap",
    "enable_eplb": "parallelism.expert_load_balancing",
    "eplb_rebalance_num_iterations": "parallelism.expert_rebalance_interval",
    "ep_num_redundant_experts": "parallelism.redundant_experts",
    "init_expert_location": "parallelism.expert_placement",
    "enable_flashinfer_allreduce_fusion": "parallelism.fused_all_reduce",
    "disaggregation_mode": "parallelism.disaggregation",
}
_LLAMA = {
    "model": "model.served",
    "alias": "model.served_name",
    "hf_repo": "model.served",
    "lora": "model.adapters",
    "override_kv": "model.config_overrides",
    "chat_template": "template.given",
    "chat_template_file": "template.given",
    "ctx_size": "engine.max_model_len",
    "batch_size": "engine.max_batched_tokens",
    "ubatch_size": "engine.micro_batch_size",
    "parallel": "engine.max_sequences",
    "cont_batching": "engine.continuous_batching",
    "flash_attn": "engine.flash_attention",
    "cache_type_k": "engine.kv_cache_dtype",
    "cache_type_v": "engine.kv_cache_dtype_v",
    "model_draft": "engine.speculative_decoding",
    "gpu_layers": "engine.gpu_layers",
    "threads": "engine.threads",
    "threads_batch": "engine.threads_batch",
    "rope_freq_scale": "engine.rope_scale",
    "override_tensor": "engine.tensor_placement",
    "cpu_moe": "engine.cpu_moe",
    "seed": "determinism.engine_seed",
    "cache_prompt": "cache.prefix_cache",
    "cache_reuse": "cache.reuse",
    "cache_ram": "cache.ram_mib",
    "kv_unified": "cache.unified",
    "swa_full": "cache.full_sliding_window",
    "split_mode": "parallelism.split_mode",
    "tensor_split": "parallelism.tensor_split",
    "main_gpu": "parallelism.main_gpu",
    "rpc": "parallelism.rpc",
    "temp": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "samplers": "sampling.samplers",
}
_TGI = {
    "model_id": "model.served",
    "revision": "model.revision",
    "lora_adapters": "model.adapters",
    "dtype": "engine.dtype",
    "quantize": "engine.quantization",
    "kv_cache_dtype": "engine.kv_cache_dtype",
    "attention": "engine.attention_backend",
    "max_total_tokens": "engine.max_model_len",
    "max_batch_prefill_tokens": "engine.max_batched_tokens",
    "max_batch_size": "engine.max_sequences",
    "cuda_graphs": "engine.cuda_graphs",
    "speculate": "engine.speculative_decoding",
    "prefix_caching": "cache.prefix_cache",
    "use_prefix_caching": "cache.prefix_cache",
    "cuda_memory_fraction": "cache.memory_fraction",
    "max_batch_total_tokens": "cache.tokens",
    "num_shard": "parallelism.tensor_parallel_size",
}
_TRTLLM = {
    "model": "model.served",
    "revision": "model.revision",
    "served_model_name": "model.served_name",
    "tokenizer": "tokenizer.served",
    "chat_template": "template.given",
    "backend": "engine.backend",
    "dtype": "engine.dtype",
    "kv_cache_dtype": "engine.kv_cache_dtype",
    "attn_backend": "engine.attention_backend",
    "max_seq_len": "engine.max_model_len",
    "max_num_tokens": "engine.max_batched_tokens",
    "max_batch_size": "engine.max_sequences",
    "enable_chunked_prefill": "engine.chunked_prefill",
    "disable_overlap_scheduler": "!engine.async_scheduling",
    "cuda_graph_config.batch_sizes": "engine.cuda_graph_sizes",
    "cuda_graph_config.max_batch_size": "engine.cuda_graph_max_batch",
    "moe_config.backend": "engine.moe_backend",
    "speculative_config": "engine.speculative_decoding",
    "kv_cache_config.dtype": "engine.kv_cache_dtype",
    "kv_cache_config.enable_block_reuse": "cache.prefix_cache",
    "kv_cache_config.tokens_per_block": "cache.block_size",
    "kv_cache_free_gpu_memory_fraction": "cache.memory_fraction",
    "free_gpu_memory_fraction": "cache.memory_fraction",
    "allreduce_strategy": "parallelism.all_reduce_strategy",
    "tp_size": "parallelism.tensor_parallel_size",
    "pp_size": "parallelism.pipeline_parallel_size",
    "ep_size": "parallelism.expert_parallel",
    "cp_size": "parallelism.decode_context_parallel_size",
}
SETTINGS: dict[str, dict[str, str]] = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA,
    "tgi": _TGI,
    "tensorrt-llm": _TRTLLM,
}
"""Engine → argument → `section.field`; with `!` before it, the field says the opposite of the argument.
A dotted name is an entry of an argument that is a table."""
_DEEPEST = 3
"""Tables within tables that are looked into."""

NULL_IS_NONE = {"sglang": frozenset({"quantization", "speculative_algorithm"})}
"""Engine → arguments whose null is an answer."""


def fields_of(engine: str, arguments: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The fields that arguments set: (section, field) → value. What is not stated is left out."""
    table = SETTINGS.get(engine, {})
    found: dict[tuple[str, str], Any] = {}
    for argument, value in _with_entries(arguments):
        target = table.get(argument)
        if value is None and argument in NULL_IS_NONE.get(engine, ()):
            value = "none"
        if target is None or value is None:
            continue
        section, _, field = target.removeprefix("!").partition(".")
        if target.startswith("!"):
            if not isinstance(value, bool):
                continue  # the opposite of what is neither true nor false would be a guess
            value = not value
        found[section, field] = value
    if engine == "sglang":
        _add_common_forms(found)
    return found


def _with_entries(arguments: Mapping[str, Any], depth: int = _DEEPEST) -> Iterator[tuple[str, Any]]:
    """Every argument, and the entries of those that are tables under dotted names."""
    for name, value in arguments.items():
        yield name, value
        if isinstance(value, dict) and depth > 1:
            yield from ((f"{name}.{inner}", entry) for inner, entry in _with_entries(value, depth - 1))


def _add_common_forms(found: dict[tuple[str, str], Any]) -> None:
    """SGLang's chunk size is a switch too, and its deterministic mode is its batch invariance."""
    size = found.get(("engine", "chunked_prefill"))
    if isinstance(size, int) and not isinstance(size, bool):
        found["engine", "prefill_chunk_size"] = size
        found["engine", "chunked_prefill"] = size > 0
    invariant = found.get(("determinism", "batch_invariance"))
    if isinstance(invariant, bool):
        found["determinism", "batch_invariance"] = f"enable_deterministic_inference={invariant}".lower()
