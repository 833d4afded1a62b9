"""What is said at once about damage and contradictions, and what is refused outright."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.checkpoints import SMALL, write_safetensors
from rip.fingerprint.collect import collect
from rip.fingerprint.drift import drift
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.present.warnings import list_warnings
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact


def test_a_whole_model_raises_no_doubt_and_one_that_is_cut_off_does(model_folder: Path) -> None:
    weights = write_safetensors(model_folder / "model.safetensors", SMALL)
    whole = collect(resolve(str(model_folder)))
    assert list_warnings(whole) == []
    weights.write_bytes(weights.read_bytes()[:-4])
    cut = collect(resolve(str(model_folder)))
    assert any("model.safetensors" in line and "cut off" in line for line in list_warnings(cut))
    change = next(change for change in drift(whole, cut) if change.name == "model.tensor_dtypes")
    assert "precision" not in change.rule
    command = [sys.executable, "-m", "rip", "fingerprint", "--model", str(model_folder), "--flat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "warning: weights: model.safetensors" in done.stderr


def test_library_warnings_and_an_ended_process_are_said() -> None:
    sections = {"libraries": Section(facts={"warnings": fact(["libnccl was replaced"], "proc-maps")})}
    assert list_warnings(Fingerprint.build("0", "now", sections)) == ["libnccl was replaced"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_link_that_leads_nowhere_and_a_pipe_are_named(model_folder: Path, name: str) -> None:
    path = model_folder / name
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(BadInput, match=f"{name} is a link that leads nowhere"):
        resolve(str(model_folder))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput, match=f"{name} is no regular file"):
        resolve(str(model_folder))


def served(invariant: str, **facts: object) -> Fingerprint:
    """A server that promises batch invariance, with settings (`section__field`)."""
    sections: dict[str, dict[str, Fact]] = {"determinism": {"batch_invariance": fact(invariant, "s")}}
    for name, value in facts.items():
        section, _, field = name.partition("__")
        sections.setdefault(section, {})[field] = fact(value, "s")
    return Fingerprint.build("0", "now", {name: Section(facts=one) for name, one in sections.items()})


VLLM, SGLANG = "VLLM_BATCH_INVARIANT=1", "enable_deterministic_inference=true"


@pytest.mark.parametrize(
    ("invariant", "facts"),
    [
        (VLLM, {"parallelism__fused_all_reduce": True, "parallelism__tensor_parallel_size": 2}),
        (VLLM, {"parallelism__sequence_parallel": True}),
        (VLLM, {"engine__cascade_attention": True}),
        (VLLM, {"engine__speculative_decoding": {"method": "ngram"}}),
        (VLLM, {"engine__moe_backend": "FLASHINFER_CUTLASS"}),
        (VLLM, {"engine__quantization": "moe_wna16"}),
        (VLLM, {"gpus__compute_capability": {"0": "9.0", "1": "7.5"}}),
        (SGLANG, {"engine__attention_backend": "torch_native"}),
    ],
)
def test_a_setting_that_breaks_a_promise_of_the_same_fingerprint_is_said(
    invariant: str, facts: dict[str, object]
) -> None:
    [warning] = list_warnings(served(invariant, **facts))
    assert warning.startswith(f"{invariant} is contradicted ")
    assert next(iter(facts)).replace("__", ".") in warning
    assert list_warnings(served(invariant.replace("1", "0").replace("true", "false"), **facts)) == []


@pytest.mark.parametrize(
    ("invariant", "facts"),
    [
        (VLLM, {"parallelism__fused_all_reduce": True, "parallelism__tensor_parallel_size": 1}),
        (VLLM, {"engine__cascade_attention": False, "engine__speculative_decoding": "none"}),
        (VLLM, {"engine__moe_backend": "triton", "gpus__compute_capability": {"0": "8.0"}}),
        (VLLM, {"engine__attention_backend": "torch_native"}),
        (SGLANG, {"engine__attention_backend": "fa3", "engine__cascade_attention": True}),
    ],
)
def test_a_setting_that_keeps_the_promise_is_not(invariant: str, facts: dict[str, object]) -> None:
    assert list_warnings(served(invariant, **facts)) == []


def test_a_pasted_log_that_contradicts_itself_is_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO 03-04 10:00:00 [api_server.py:1] vLLM API server version 0.29.0\n"
        "INFO 03-04 10:00:00 [nvfp4.py:2] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend\n"
        "VLLM_BATCH_INVARIANT=1\n"
    )
    command = [sys.executable, "-m", "rip", "fingerprint", "--read", str(log), "--flat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "VLLM_BATCH_INVARIANT=1 is contradicted by engine.moe_backend = FLASHINFER_CUTLASS" in done.stderr


@pytest.mark.parametrize(("share", "is_said"), [("13 of 22", True), ("0 of 22", False)])
def test_kernels_that_were_chosen_differently_from_rank_to_rank_are_said(share: str, is_said: bool) -> None:
    cache = {"files": 3, "choices_differing_between_ranks": share}
    for value in (cache, {"~/.cache/a": cache, "$B": {"files": 1}}):
        read = Fingerprint.build(
            "0", "now", {"kernels": Section(facts={"sglang_cache": fact(value, "files")})}
        )
        said = ["kernels.sglang_cache: 13 of 22 kernels chosen by autotuning differ from rank to rank"]
        assert list_warnings(read) == (said if is_said else [])
