"""Small random models of several families, saved as transformers saves real ones.

Their weights are larger than at a usual initialisation, so that greedy tokens vary and margins are not
tiny.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rip.replay.engines.model_files import quiet_transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB = 128
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>")
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)

_LINEAR: dict[str, Any] = {  # a state of linear attention beside full attention
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_SSM: dict[str, Any] = {  # Mamba 2 layers
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-bf16": ("llama", {"dtype": "bfloat16"}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-top1": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1}),
    "qwen2": ("qwen2", {}),  # biases in q, k, v
    "qwen3": ("qwen3", {"head_dim": 8}),  # norms of q and k, [B, T, H, D]
    "gemma3": (  # tied embeddings, window, norms of q and k behind the transpose, [B, H, T, D]
        "gemma3_text",
        {"head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    ),
    "window": ("mistral", {"sliding_window": 8}),
    "gpt2": (  # learned positions, Conv1D, biases, one fused projection
        "gpt2",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "activation_function": "gelu_new"},
    ),
    # With a state.
    "mamba": ("mamba", {"state_size": 8}),
    "mamba-biased": ("mamba", {"state_size": 8, "use_bias": True}),  # the bias turns padding into a value
    "mamba2": (
        "mamba2",
        {"state_size": 8, "head_dim": 16, "num_heads": 4, "n_groups": 1, "chunk_size": 8},
    ),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "jamba": (
        "jamba",
        {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    ),
    "bamba": ("bamba", {**_SSM, "attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", {**_SSM, "mamba_d_ssm": 64}),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **_SSM,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "M*M-",
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 8,
        },
    ),
    "zamba2": (
        "zamba2",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "mamba_d_state": 8,
            "mamba_headdim": 16,
            "n_mamba_heads": 4,
            "mamba_ngroups": 1,
            "num_mem_blocks": 1,
            "chunk_size": 8,
            "adapter_rank": 4,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {**_LINEAR, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "olmo_hybrid": ("olmo_hybrid", _LINEAR),
    "lfm2": (
        "lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
    ),
    "recurrent_gemma": (  # keeps its state in the modules, and reads padding
        "recurrent_gemma",
        {"lru_width": 32, "attention_window_size": 8, "head_dim": 8},
    ),
    "rwkv": ("rwkv", {"attention_hidden_size": 32, "context_length": 64}),
    "xlstm": ("xlstm", {"num_heads": 4, "embedding_dim": 32, "num_blocks": 3}),
}


def save_tiny_model(family: str, folder: Path) -> Path:
    """Make one of `FAMILIES` in an empty folder: weights, config, generation config, tokenizer, template."""
    quiet_transformers()
    kind, changes = FAMILIES[family]
    common = _SIZES
    if kind == "gpt2":  # has its own names for sizes
        common = {name: value for name, value in _SIZES.items() if name.endswith(("vocab_size", "token_id"))}
    dtype = changes.get("dtype", "float32")
    config = AutoConfig.for_model(kind, **{**common, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if kind == "gpt2" or name.endswith(".bias"):  # left at 0 or small otherwise
                torch.nn.init.normal_(parameter, std=0.3)
    model = model.to(getattr(torch, dtype))
    model.generation_config.update(temperature=0.9, top_p=0.95, do_sample=True)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of VOCAB whole words (`w6`, `w7`, …) behind the special tokens, with a chat template."""
    words = [*SPECIAL, *(f"w{index}" for index in range(len(SPECIAL), VOCAB))]
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
