"""Weights of a GGUF beside those of the folder that it was converted from: by mapped name and by content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rip.fingerprint import drift
from rip.fingerprint.collect import PROBES, collect
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.present.drift_sentences import before_and_after
from rip.schemas.change import Change
from rip.schemas.fingerprint import Fingerprint

gguf = pytest.importorskip("gguf")
safetensors = pytest.importorskip("safetensors.numpy")

WIDTH, HEADS = 32, 4
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def weights() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {name: (WIDTH,) if "norm" in name else (WIDTH, WIDTH) for name in NAMES}
    return {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def permuted(rows: Any) -> Any:
    """As conversions of Llama write q and k: the halves of each head interleaved."""
    return rows.reshape(HEADS, 2, WIDTH // HEADS // 2, WIDTH).swapaxes(1, 2).reshape(rows.shape)


def read(path: Path) -> Fingerprint:
    return collect(
        resolve(str(path)), probes=[probe for probe in PROBES if probe.name == "model"], environ={}
    )


def as_folder(folder: Path, tensors: dict[str, Any]) -> Fingerprint:
    folder.mkdir()
    safetensors.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    return read(folder)


def as_gguf(path: Path, tensors: dict[str, Any], quantized: tuple[str, ...] = ()) -> Fingerprint:
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            values = permuted(values)
        if name in quantized:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(NAMES[name], gguf.quantize(values.astype(np.float32), kind), raw_dtype=kind)
        else:  # converters keep vectors in float32
            writer.add_tensor(NAMES[name], values.astype(np.float32) if values.ndim == 1 else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read(path)


def tensors_of(base: Fingerprint, now: Fingerprint) -> Change:
    [found] = [change for change in drift.drift(base, now) if change.name == "model.tensors"]
    return found


def test_a_conversion_matches_by_name_and_content(tmp_path: Path) -> None:
    change = tensors_of(as_gguf(tmp_path / "m.gguf", weights()), as_folder(tmp_path / "m", weights()))
    match = change.tensors
    assert match is not None
    assert (match.gguf, match.matched, match.of_gguf, match.of_folder) == ("base", 7, 7, 7)
    assert (match.equal, match.differing, match.retyped) == (3, [], {"F32 of F16": 2})
    assert [name.rpartition("attn.")[2] for name in match.permuted] == ["k_proj.weight", "q_proj.weight"]
    before, after = before_and_after(change)
    assert before == "7 tensors (GGUF)"
    assert after == (
        "7 tensors (folder): names match 7 of 7; equal content: 3; other type, content not comparable: "
        "F32 of F16 2; q and k, whose rows a conversion permutes, not comparable: 2"
    )


def test_a_changed_weight_is_the_only_one_that_is_named(tmp_path: Path) -> None:
    changed = weights()
    changed["model.layers.0.mlp.down_proj.weight"][3, 5] += 1
    match = tensors_of(as_folder(tmp_path / "m", changed), as_gguf(tmp_path / "m.gguf", weights())).tensors
    assert match is not None
    assert match.gguf == "now"
    assert (match.differing, match.equal) == (["model.layers.0.mlp.down_proj.weight"], 2)


def test_quantized_and_missing_tensors_are_said_in_one_line(tmp_path: Path) -> None:
    matrices = tuple(name for name in NAMES if "norm" not in name)
    more = {**weights(), "lm_head.weight": np.ones((WIDTH, WIDTH), np.float16)}
    change = tensors_of(as_gguf(tmp_path / "q.gguf", weights(), matrices), as_folder(tmp_path / "m", more))
    assert before_and_after(change)[1] == (
        "8 tensors (folder): names match 7 of 8; missing in the GGUF: lm_head.weight; "
        "other type, content not comparable: F32 of F16 2, Q8_0 of F16 5"
    )


def test_two_folders_compare_as_before(tmp_path: Path) -> None:
    changed = {**weights(), "model.norm.weight": np.ones(WIDTH, np.float16)}
    change = tensors_of(as_folder(tmp_path / "a", weights()), as_folder(tmp_path / "b", changed))
    assert change.tensors is None
    assert "model.norm.weight" in before_and_after(change)[0]
