"""Processes for tests that look at one from outside: they sleep until the test ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Start = Callable[..., int]
"""Starts one and gives its pid: the arguments, then `environ`, `executable`."""

SLEEP = "import sys; print('up', flush=True); sys.stdin.read()"
"""Says that it is up, and ends when its standard input does."""

TITLED_WORKER = """
import ctypes, subprocess, sys
# The environment as a title leaves it that was written over its beginning: empty entries, then half a one.
child = '''
import ctypes, sys
libc = ctypes.CDLL(None)
def array(texts): return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
libc.execve(sys.argv[1].encode(), array([b"VLLM::Worker_TP0"]),
            array([b"", b"", b"", b"", b"HREADS=7", b"NCCL_ALGO=Ring", b"MKL_CBWR=AVX2"]))
'''
worker = subprocess.Popen([sys.executable, "-c", child, sys.executable], stdin=subprocess.PIPE)
import time
while not open(f"/proc/{worker.pid}/cmdline", "rb").read().startswith(b"VLLM"):
    time.sleep(0.005)
print(worker.pid, flush=True)
sys.stdin.read()
worker.stdin.close()
worker.wait()
"""


@contextmanager
def starting() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that are ended and waited for afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str | Path, environ: dict[str, str] | None = None, executable: str | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", **(environ or {})},
            executable=executable,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def make_environment(folder: Path, **packages: str) -> Path:
    """A virtual environment with package metadata and a program `vllm` that sleeps; gives its folder."""
    short = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / short / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    for name, version in packages.items():
        add_package(site, name, version)
    (folder / "bin" / "vllm").write_text(SLEEP)
    return folder


def add_package(site: Path, name: str, version: str) -> None:
    """The metadata of an installed package."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,sha256=abc,1\n")
