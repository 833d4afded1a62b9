"""Shared libraries by the names of NVIDIA's, with build-ids as asked, and processes that load them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.nvidia.stand_in import compiler

NCCL = "int ncclGetVersion(int *version) { *version = %d; return 0; }"
_SLEEPER = """
import ctypes, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path)
print("ready", flush=True)
sys.stdin.read()
"""


def build(path: Path, source: str = "", build_id: str | None = "00aa", soname: str | None = None) -> Path:
    """Compile a library; `soname` defaults to the file's name, `build_id` is hex, None for none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = "none" if build_id is None else f"0x{build_id}"
    options = [
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        f"-Wl,--build-id={identity}",
        f"-Wl,-soname,{soname or path.name}",
    ]
    subprocess.run(
        [compiler() or "cc", "-o", str(path), *options],
        input=source or "int nothing;",
        text=True,
        check=True,
    )
    return path


def install(site: Path, name: str, version: str, *files: Path, requires: str = "") -> None:
    """Write the metadata of a package that brought `files`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    record = [f"{file.relative_to(site)},sha256=x,{file.stat().st_size}" for file in files]
    (info / "RECORD").write_text("\n".join(record) + "\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")


@contextmanager
def running(*libraries: Path | str) -> Iterator[int]:
    """A process that has loaded the libraries; gives its pid and ends it afterwards."""
    process = subprocess.Popen(
        # Not of the virtual environment that runs the tests: its packages are none of this process.
        [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", _SLEEPER, *map(str, libraries)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.communicate()
