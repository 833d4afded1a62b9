"""Compiled and tuned kernels as facts: the same choices read the same, another choice is told by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rip.fingerprint.probes import kernel_cache_folder, kernel_caches
from rip.fingerprint.probes.context import Context
from rip.schemas.fingerprint import NO_ANSWER, Fact


def read(field: str, **environ: str) -> Fact:
    return kernel_caches.probe(Context(None, environ))["kernels"].facts[field]


def candidates(best: int, fastest: float = 0.5) -> str:
    """Triton's table of three candidates, of which one was fastest."""
    sizes = (64, 128, 256)
    timings = [
        [
            {"kwargs": {"BLOCK_M": size}, "num_warps": 4, "num_stages": 3, "maxnreg": None},
            [fastest + (size != best)] * 3,
        ]
        for size in sizes
    ]
    return json.dumps({"key": [4096, "torch.bfloat16"], "configs_timings": timings})


def triton(folder: Path, best: int = 128, fastest: float = 0.5) -> Path:
    """A Triton cache with one kernel and its tuning."""
    kernel, tuning = folder / "KERNELKEY", folder / "TUNINGKEY"
    for path in (kernel, tuning):
        path.mkdir(parents=True, exist_ok=True)
    (kernel / "attn.cubin").write_bytes(bytes(1000))
    (kernel / "attn.json").write_text(json.dumps({"hash": "KERNELKEY", "num_warps": 4}))
    (kernel / "__grp__attn.json").write_text(
        json.dumps({"child_paths": {"attn.cubin": str(kernel / "attn.cubin")}})
    )
    (tuning / "attn.autotune.json").write_text(candidates(best, fastest))
    return folder


def test_nothing_there_is_a_reason_that_does_not_depend_on_where_was_looked(tmp_path: Path) -> None:
    for field in kernel_caches.CACHES:
        first = read(field, HOME=str(tmp_path / "one"), TMPDIR=str(tmp_path))
        second = read(field, HOME=str(tmp_path / "two"), TMPDIR=str(tmp_path), TRITON_CACHE_DIR="7")
        assert first == second
        assert first.unavailable is not None
    assert list(tmp_path.iterdir()) == []  # looking made no folder


def test_a_triton_cache_tells_what_autotuning_chose(tmp_path: Path) -> None:
    triton(tmp_path / ".triton" / "cache")
    found = read("triton_cache", HOME=str(tmp_path)).value
    assert (found["files"], found["compiled"], found["chosen"]) == (4, 1, 1)
    assert found["choices"] == {"TUNINGKEY/attn.autotune.json": "BLOCK_M=128 num_stages=3 num_warps=4"}


def test_other_timings_of_the_same_choice_are_the_same_and_another_choice_is_not(tmp_path: Path) -> None:
    caches = {
        "first": triton(tmp_path / "a"),
        "measured again, elsewhere": triton(tmp_path / "b" / "moved", fastest=0.7),
        "another choice": triton(tmp_path / "c", best=256),
    }
    found = {name: read("triton_cache", TRITON_CACHE_DIR=str(path)) for name, path in caches.items()}
    found["below TRITON_HOME"] = read("triton_cache", TRITON_HOME=str(tmp_path / "home"))
    assert (
        found["first"].value["choices_sha256"] == found["measured again, elsewhere"].value["choices_sha256"]
    )
    assert found["first"].value["sha256"] == found["measured again, elsewhere"].value["sha256"]
    assert found["first"].value["choices_sha256"] != found["another choice"].value["choices_sha256"]
    assert "BLOCK_M=256" in str(found["another choice"].value["choices"])
    triton(tmp_path / "home" / ".triton" / "cache")
    assert read("triton_cache", TRITON_HOME=str(tmp_path / "home")) == found["first"]


def test_inductor_choices_are_compared_without_the_time_they_took(tmp_path: Path) -> None:
    def best(name: str, block: int, took: int) -> str:
        folder = tmp_path / name / "ab"
        folder.mkdir(parents=True)
        chosen = {
            "XBLOCK": block,
            "num_warps": 4,
            "configs_hash": "c",
            "time_taken_ms": took,
            "found_by_coordesc": False,
        }
        (folder / "abkey.best_config").write_text(json.dumps(chosen))
        found = read("inductor_cache", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / name)).value
        return str(found["choices_sha256"])

    assert best("first", 64, 10) == best("again", 64, 99)
    assert best("other", 128, 10) != best("third", 64, 10)


def test_compiled_graphs_count_by_what_they_were_compiled_from(tmp_path: Path) -> None:
    # Two runs of the same program with torch 2.13 differ in the names of the pickled files only.
    def compiled(name: str, graph: str, pickled: str) -> Fact:
        for place in (f"fxgraph/7c/{graph}", f"aotautograd/{graph}"):
            (tmp_path / name / place).mkdir(parents=True)
            (tmp_path / name / place / pickled).write_bytes(pickled.encode())
        return read("inductor_cache", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / name))

    first = compiled("a", "graph", "one")
    assert compiled("b", "graph", "second") == first
    assert compiled("c", "other", "one") != first


def test_the_default_folder_of_inductor_is_the_users(tmp_path: Path) -> None:
    folder = tmp_path / "torchinductor_a_b"
    folder.mkdir()
    (folder / "k.py").write_text("kernel")
    assert read("inductor_cache", TMPDIR=str(tmp_path), USER="a/b").value["files"] == 1


def test_how_many_choices_differ_between_ranks(tmp_path: Path) -> None:
    for rank, best in (("rank_0_0", 128), ("rank_1_0", 256)):
        folder = tmp_path / "torch_compile_cache" / "hash" / rank
        triton(folder / "triton_cache", best=best)
        (folder / "inductor_cache").mkdir()
        (folder / "inductor_cache" / "k.best_config").write_text(json.dumps({"XBLOCK": 8}))
        (folder / "cache_key_factors.json").write_text(json.dumps({"env": {"TOKEN": "secret"}}))
    found = read("vllm_compile_cache", VLLM_CACHE_ROOT=str(tmp_path))
    assert found.value["choices_differing_between_ranks"] == "1 of 2"
    assert "secret" not in str(found.value)


def test_flashinfer_tables_are_choices(tmp_path: Path) -> None:
    folder = tmp_path / "0.6.1" / "sm90" / "cafe"
    folder.mkdir(parents=True)
    table = {
        "_metadata": {"gpu": "H200"},
        "gemm (16, 4096)": ["cutlass", 3],
        "gemm (32, 4096)": ["trtllm", -1],
    }
    (folder / "autotune_configs.json").write_text(json.dumps(table))
    found = read("vllm_autotune_cache", VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR=str(tmp_path)).value
    assert found["chosen"] == 2
    assert '["cutlass", 3]' in found["choices"].values()


def test_tuned_tables_of_a_folder_and_of_the_package_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "site-packages" / "vllm" / "model_executor" / "layers" / "fused_moe" / "configs"
    for folder in (packaged, tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "E=8,N=14336,device_name=NVIDIA_H200.json").write_text(
            json.dumps({"16": {"BLOCK_SIZE_M": 16}})
        )
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    only_packaged = read("vllm_tuned_configs").value
    assert only_packaged["files"] == 1
    both = read("vllm_tuned_configs", VLLM_TUNED_CONFIG_FOLDER=str(tmp_path / "mine")).value
    assert set(both) == {"$VLLM_TUNED_CONFIG_FOLDER", "vllm/model_executor/layers/fused_moe/configs"}
    (packaged / "E=8,N=14336,device_name=NVIDIA_H200.json").write_text(
        json.dumps({"16": {"BLOCK_SIZE_M": 32}})
    )
    assert read("vllm_tuned_configs").value["sha256"] != only_packaged["sha256"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"configs_timings": []}'),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text('{"configs_timings": [["no dictionary", null], [1, [2]]]}'),
    ],
)
def test_a_damaged_table_counts_with_its_bytes(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    folder = triton(tmp_path / "cache")
    whole = read("triton_cache", TRITON_CACHE_DIR=str(folder)).value
    damage(folder / "TUNINGKEY" / "attn.autotune.json")
    found = read("triton_cache", TRITON_CACHE_DIR=str(folder)).value
    assert found["files"] == whole["files"]
    assert "chosen" not in found
    assert found["sha256"] != whole["sha256"]


def test_loops_pipes_and_passing_files_do_no_harm(tmp_path: Path) -> None:
    folder = triton(tmp_path / "cache")
    before = read("triton_cache", TRITON_CACHE_DIR=str(folder))
    (folder / "loop").symlink_to(folder)
    (folder / "elsewhere").symlink_to("/")
    os.mkfifo(folder / "pipe.json")
    (folder / "compile.lock").touch()
    (folder / "tmp.pid_7_x").mkdir()
    (folder / "tmp.pid_7_x" / "half.cubin").write_bytes(b"x")
    assert read("triton_cache", TRITON_CACHE_DIR=str(folder)) == before
    (folder / "KERNELKEY" / "attn.cubin").write_bytes(bytes(1001))
    assert read("triton_cache", TRITON_CACHE_DIR=str(folder)) != before  # the control


def test_a_folder_that_is_a_link_or_a_file_or_a_pipe(tmp_path: Path) -> None:
    real = triton(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "file").write_text("no folder")
    os.mkfifo(tmp_path / "pipe")
    assert read("triton_cache", TRITON_CACHE_DIR=str(tmp_path / "link")).value["files"] == 4
    for name in ("file", "pipe", "absent"):
        assert read("triton_cache", TRITON_CACHE_DIR=str(tmp_path / name)).unavailable is not None


def test_a_large_cache_is_read_up_to_a_bound_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache_folder, "MAX_FILES", 5)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(str(number))
    found = read("triton_cache", TRITON_CACHE_DIR=str(tmp_path)).value
    assert (found["files"], found["bounded"]) == (5, "the first 5 files in the order of their names")
    assert read("triton_cache", TRITON_CACHE_DIR=str(tmp_path)).value == found


def test_what_takes_too_long_enters_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_caches, "LIMIT_S", 0)
    said = read("triton_cache", TRITON_CACHE_DIR=str(triton(tmp_path / "cache"))).unavailable
    assert said is not None
    assert said.startswith(NO_ANSWER)


def test_where_was_looked_is_volatile(tmp_path: Path) -> None:
    section = kernel_caches.probe(Context(None, {"TRITON_CACHE_DIR": str(tmp_path)}))["kernels"]
    assert section.volatile["cache_paths"].value["triton_cache"] == [str(tmp_path)]


def test_of_a_process_whose_variables_are_not_readable_no_folder_is_guessed() -> None:
    context = Context(
        None, {}, pid=os.getpid(), root=Path("/proc/self/root"), environ_unread="no permission: …"
    )
    for reading in kernel_caches.probe(context)["kernels"].facts.values():
        assert reading.unavailable == "where it lies is not known: no permission: …"


def test_folders_of_another_root_are_those_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(f"me:x:{os.getuid()}:0::/home/me:/bin/sh\n")
    triton(tmp_path / "home" / "me" / ".triton" / "cache")
    facts = kernel_caches.probe(Context(None, {}, root=tmp_path))["kernels"].facts
    assert facts["triton_cache"].value["files"] == 4
