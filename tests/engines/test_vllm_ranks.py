"""vLLM under tensor parallelism: one rank and two, compared where the rows are whole on every rank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .conftest import VLLM_SETTINGS, diverged, replayed, rip

PROMPT = [(7 * index) % 4000 + 10 for index in range(90)]


@pytest.fixture(scope="module")
def model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose heads divide by two."""
    folder = tmp_path_factory.mktemp("eight-heads")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2 / name, folder / name)
    return folder


def lane(model: Path, ranks: int, python: Path) -> tuple[object, ...]:
    """Options of a server with so many ranks on two cores."""
    settings = {
        **VLLM_SETTINGS,
        "max-model-len": "256",
        "tensor-parallel-size": str(ranks),
        "env.VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "env.OMP_NUM_THREADS": "1",
    }
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ("--engine", "vllm", "--model", model, "--python", python, *chosen)


def test_one_rank_and_two_are_compared_on_replicated_sites(
    model: Path, vllm_python: Path, tmp_path: Path
) -> None:
    request = {
        "request_id": "r",
        "prompt_token_ids": PROMPT,
        "sampling": {"temperature": 0, "max_tokens": 12, "ignore_eos": True},
    }
    (tmp_path / "r.json").write_text(json.dumps(request), encoding="utf-8")
    for ranks in (1, 2):
        replayed(tmp_path / "r.json", *lane(model, ranks, vllm_python), "-o", tmp_path / f"tp{ranks}.parquet")
    _, verdict = diverged(tmp_path / "tp1.parquet", tmp_path / "tp2.parquet")
    first = verdict["first_site"]
    assert first is not None
    # The first sum over ranks: what stands before it is equal, or in pieces.
    assert (first["site"], first["position"]) == ("layers.0.self_attn.o_proj", 0)
    unseen = " ".join(one["text"] for one in verdict["not_seen"])
    assert "sharded sites are compared only under equal tensor parallelism (here 1 and 2)" in unseen
    found = rip(
        "query", tmp_path / "tp2.parquet", "SELECT DISTINCT label FROM sites WHERE label LIKE '%tp1of2'"
    ).out
    assert "layers.0.mlp.gate_proj:tp1of2" in found
    assert "o_proj:tp" not in found
    # The control: under equal tensor parallelism shards are compared, and are equal.
    replayed(tmp_path / "r.json", *lane(model, 2, vllm_python), "-o", tmp_path / "again.parquet")
    code, verdict = diverged(tmp_path / "tp2.parquet", tmp_path / "again.parquet", "--require", "bitwise")
    assert (code, verdict["level"]) == (0, "bitwise")
    assert verdict["compared"]["rows_differing"] == 0
