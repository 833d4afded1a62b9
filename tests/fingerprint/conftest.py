"""A small real model folder, and a cache folder of its own for every test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rip.fingerprint.remote import client as bounded_http


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Digest and hub caches under the test's own folder; no network."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return folder


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model folder as transformers saves it, with a few bytes for weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    files: dict[str, object] = {
        "config.json": {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": 49152},
        "generation_config.json": {"temperature": 0.6, "top_p": 0.9, "transformers_version": "5.24.0"},
        "tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0}}},
        "tokenizer_config.json": {"eos_token": "</s>", "model_max_length": 10**30},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 16)
    return folder


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF of no tensors with the reference package."""

    def write(
        template: str | None = "{{ messages }}", tokens: list[str] | None = None, name: str = "m.gguf"
    ) -> Path:
        import gguf

        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_uint32("general.file_type", 3)
        writer.add_float32("llama.rope.freq_base", 100000.0)
        writer.add_bool("tokenizer.ggml.add_bos_token", False)
        writer.add_array("tokenizer.ggml.tokens", tokens or ["a", "b"])
        writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
        writer.add_array("tokenizer.ggml.scores", [0.5, -1.25])
        writer.add_uint64("general.large", 2**63)
        if template is not None:
            writer.add_chat_template(template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return tmp_path / name

    return write


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long for a test."""
    monkeypatch.setattr(bounded_http, "REQUEST_S", 0.2)
    monkeypatch.setattr(bounded_http, "TOTAL_S", 1.0)
