"""One envelope on three engines: tokens and log-probabilities of all, layers where both show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .conftest import Server, diverged, replayed, rip


def test_drift_across_engines(
    vllm: Server, smollm2: Path, gguf: Path, request_set: Callable[[int], Path], tmp_path: Path
) -> None:
    hf, served, llama = (tmp_path / f"{name}.parquet" for name in ("hf", "vllm", "llama"))
    replayed(request_set(1), "--model", smollm2, "--set", "dtype=bfloat16", "-o", hf)
    golden = ("--mode", "golden-decode", "--golden", hf)
    on_vllm = ("--engine", "vllm", "--url", vllm.url, "--tap", vllm.tap, "--model", smollm2)
    replayed(request_set(1), *on_vllm, *golden, "-o", served)
    on_llama = ("--engine", "llama.cpp", "--model", gguf, "--allow-drift", "--set", "n_ctx=2048")
    replayed(request_set(1), *on_llama, *golden, "-o", llama)
    _, verdict = diverged(hf, served)
    assert verdict["compared"]["sites"] >= 270
    assert verdict["first_site"] is not None
    drift = json.loads(
        rip(
            "query",
            tmp_path / "hf-vllm",
            "SELECT layer, max(drift_p50) AS drift FROM site_totals WHERE layer IS NOT NULL"
            " AND differing > 0 GROUP BY layer ORDER BY layer",
            "--format",
            "json",
        ).out
    )["rows"]
    # The same tensors by the same names: rounding apart, in all 30 layers.
    assert [row["layer"] for row in drift] == list(range(30))
    assert all(0 < row["drift"] < 0.1 for row in drift), drift
    for a, b in ((hf, served), (hf, llama), (served, llama)):
        _, verdict = diverged(a, b)
        assert verdict["levels"]["numeric"]["state"] == "not stated"
        assert verdict["first_logprob"] is not None
        # llama.cpp runs 4-bit weights, the others bfloat16 ones that were made from them.
        assert verdict["max_abs_logprob_diff"] < 3
