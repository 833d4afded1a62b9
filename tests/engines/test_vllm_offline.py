"""An offline vLLM program, observed by nothing but its environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import VLLM_SETTINGS, diverged, rip

PROGRAM = """
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    how = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 512}
    llm = LLM(sys.argv[1], max_num_seqs=int(sys.argv[2]), **how)
    ids = [[(13 * i + 7 * j) % 40000 + 100 for i in range(60 + j)] for j in range(4)]
    prompts = [{"prompt_token_ids": one} for one in ids]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for answer in llm.generate(prompts, sampling, use_tqdm=False):
        print("answer:", *answer.outputs[0].token_ids)
"""


def test_a_program_becomes_a_trace_and_two_of_them_compare(
    vllm_python: Path, smollm2: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    variables = {
        name.removeprefix("env."): value for name, value in VLLM_SETTINGS.items() if name.startswith("env.")
    }
    answers = {}
    for name, together in (("one", 1), ("again", 1), ("four", 4)):
        done = subprocess.run(
            [vllm_python, tmp_path / "program.py", smollm2, str(together)],
            env={**os.environ, **variables, "RIP_TAP": str(tmp_path / f"{name}.tap")},
            capture_output=True,
            text=True,
            check=True,
        )
        answers[name] = [line for line in done.stdout.splitlines() if line.startswith("answer: ")]
        said = rip("tap", tmp_path / f"{name}.tap", "-o", tmp_path / f"{name}.parquet")
        assert said.code == 0, said.err
        assert "4 requests" in said.err
    found = rip(
        "query",
        tmp_path / "one.parquet",
        "SELECT string_agg(token_id, ' ' ORDER BY step) AS ids FROM tokens WHERE step IS NOT NULL"
        " GROUP BY request_id ORDER BY min(sequence)",
        "--format",
        "csv",
    )
    # All but the last token of each, which the model is never fed.
    without_last = [line.rpartition(" ")[0].removeprefix("answer: ") for line in answers["one"]]
    assert found.out.splitlines()[1:] == without_last
    code, verdict = diverged(tmp_path / "one.parquet", tmp_path / "again.parquet", "--require", "bitwise")
    assert (code, verdict["level"]) == (0, "bitwise")
    _, verdict = diverged(tmp_path / "one.parquet", tmp_path / "four.parquet")
    if verdict["first_site"] is None:
        assert verdict["compared"]["rows_differing"] == 0
        pytest.skip("on this CPU four requests together have the same bits as alone")
    assert verdict["first_site"]["is_origin"]
    assert verdict["compared"]["rows_differing"] > 0
