"""What cannot run is refused before anything heavy is imported: a wrong model answers at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "numba"}
RUN = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({name.split(".")[0] for name in sys.modules}))))
from rip.cli import main
main()
"""
REPLAY = ("replay", "r.json", "-o", "t.parquet")
NARROW = ("narrow", "r.json", "--vary", "threads=1:2", "-o", "narrowed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*REPLAY, "--model", "MODEL"), "recorded with a different model"),
        ((*REPLAY, "--model", "empty"), "the folder has no config.json"),
        ((*NARROW, "--model", "empty"), "the folder has no config.json"),
        (("check", "batch-invariance", "--model", "empty"), "the folder has no config.json"),
        (("replay", "none.json", "-o", "t.parquet", "--model", "MODEL"), "cannot be read"),
        ((*REPLAY, "--model", "MODEL", "--set", "dtype=int3"), "dtype"),
    ],
)
def test_a_refused_command_has_loaded_no_engine(
    arguments: tuple[str, ...], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    envelope = {"request_id": "r0", "prompt_token_ids": [1, 2], "sampling": {"temperature": 0}}
    (tmp_path / "r.json").write_text(json.dumps({**envelope, "model_artifact_sha256": "ab" * 32}))
    (tmp_path / "empty").mkdir()
    words = [str(tiny_model) if word == "MODEL" else word for word in arguments]
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & HEAVY
    assert "pydantic" in loaded  # the check sees modules at all
