"""What ELF files say, what a process has mapped, and which copies lie on disk."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.libraries import NCCL, build, running
from fakes.nvidia.stand_in import compiler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rip.fingerprint.libraries import loaded
from rip.fingerprint.libraries.library_file import MAX_BYTES, family_of, parse_elf, read_elf
from rip.fingerprint.libraries.loaded import LoadedLibrary, loaded_libraries
from rip.fingerprint.libraries.on_disk import LibrarySearch, version_in_name
from rip.fingerprint.process import proc
from rip.fingerprint.process.proc import Unread

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the stand-in libraries need a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="loaded libraries are read from /proc"),
]


def only(pid: int, family: str = "nccl") -> LoadedLibrary:
    found = [item for item in loaded_libraries(pid) if item.family == family]
    assert len(found) == 1
    return found[0]


# What an ELF file says.


def test_build_id_and_names_are_those_that_the_linker_was_given(tmp_path: Path) -> None:
    found = read_elf(build(tmp_path / "libx.so.7.1", build_id="0123abcd", soname="libx.so.7"))
    assert (found.build_id, found.soname, found.reason) == ("0123abcd", "libx.so.7", None)
    assert read_elf(sys.executable).needed
    without = read_elf(build(tmp_path / "liby.so", build_id=None))
    assert (without.build_id, without.soname, without.reason) == (None, "liby.so", None)


def test_what_is_no_library_is_a_reason_and_nothing_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.so")
    (tmp_path / "text.so").write_text("INPUT ( -lm )")
    (tmp_path / "empty.so").touch()
    (tmp_path / "folder.so").mkdir()
    for path in (*tmp_path.iterdir(), tmp_path / "absent.so", Path("/dev/zero")):
        found = read_elf(path)
        assert found.build_id is None
        assert found.reason


@pytest.fixture(scope="module")
def small_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build(tmp_path_factory.mktemp("elf") / "libsmall.so", NCCL % 1).read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    cut=st.integers(0, 20000),
    changes=st.lists(st.tuples(st.integers(0, 1024), st.binary(min_size=1, max_size=8)), max_size=4),
)
def test_a_damaged_library_takes_bounded_reading_and_no_error_comes_out(
    small_library: bytes, cut: int, changes: list[tuple[int, bytes]]
) -> None:
    damaged = bytearray(small_library[: max(0, len(small_library) - cut)])
    for place, value in changes:
        damaged[place : place + len(value)] = value
    read = 0

    def counted(offset: int, size: int) -> bytes:
        nonlocal read
        read += size
        return bytes(damaged[offset : offset + size])

    found = parse_elf(counted, len(damaged))
    assert found.reason is None or found.reason in ("not a whole ELF file", "its tables have no end")
    assert read <= MAX_BYTES + 64


# What a process has mapped.


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3", "nccl"),
        ("/x/libnccl-net.so", "nccl_net"),
        ("/x/site-packages/nvidia/cu13/lib/libcublasLt.so.13", "cublaslt"),
        ("/x/site-packages/nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", "cudnn"),
        ("/x/torch/lib/libcudart-a7b20f20.so.11.0", "cudart"),
        ("/x/torch/lib/libtorch_cuda.so", "torch"),
        ("/x/torch/lib/libc10_cuda.so", "torch"),
        ("/x/numpy.libs/libscipy_openblas64_-32a4b2a6.so", "openblas"),
        ("/x/scikit_learn.libs/libgomp-a34b3233.so.1.0.0", "openmp"),
        ("/x/libmkl_avx512.so.2", "mkl"),
        ("/x/llama/libggml-cpu-haswell.so", "ggml"),
        ("/lib/x86_64-linux-gnu/libm.so.6", "libm"),
        ("/x/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", "flash_attn"),
        ("/x/site-packages/vllm/_C.abi3.so", "vllm"),
        ("/x/site-packages/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm"),
        ("/x/site-packages/sgl_kernel/common_ops.abi3.so", "sgl_kernel"),
        ("/home/user/.cache/flashinfer/0.6/90a/cached_ops/norm/norm.so", "flashinfer"),
        ("/memfd:libnccl.so.2", "nccl"),
        ("/home/me/vllm/.venv/lib/python3.12/lib-dynload/_ssl.cpython-312-x86_64-linux-gnu.so", None),
        ("/home/me/flashinfer/.venv/lib/python3.12/lib-dynload/math.cpython-312-x86_64-linux-gnu.so", None),
        ("/usr/lib/libcrypto.so.3", None),
        ("/x/libnccl.so.2.txt", None),
        ("/x/nccl.txt", None),
    ],
)
def test_numeric_libraries_are_told_by_name(path: str, family: str | None) -> None:
    assert family_of(path) == family


def test_a_loaded_library_is_found_with_its_build_id(tmp_path: Path) -> None:
    library = build(tmp_path / "a folder" / "libnccl.so.2", build_id="00aa")
    with running(library) as pid:
        found = only(pid)
    assert (found.path, found.soname, found.build_id) == (str(library), "libnccl.so.2", "00aa")
    assert (found.deleted, found.replaced, found.reason) == (False, False, None)
    assert found.size == library.stat().st_size
    assert found.inode == library.stat().st_ino


def test_a_library_replaced_since_it_was_loaded_keeps_the_identity_of_what_runs(tmp_path: Path) -> None:
    library = build(tmp_path / "libnccl.so.2", build_id="00aa")
    with running(library) as pid:
        os.replace(build(tmp_path / "new" / "libnccl.so.2", build_id="00bb"), library)
        found = only(pid)
        assert (found.deleted, found.replaced, found.build_id) == (True, True, "00aa")
        library.unlink()
        found = only(pid)
        assert (found.deleted, found.replaced, found.build_id) == (True, False, "00aa")


def test_without_privileges_memory_tells_the_build_id_of_a_deleted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "_mapped_file", lambda pid, mapping: tmp_path / "no permission")
    library = build(tmp_path / "libnccl.so.2", build_id="00aa")
    with running(library) as pid:
        assert (only(pid).build_id, only(pid).deleted) == ("00aa", False)
        library.unlink()
        assert (only(pid).build_id, only(pid).deleted) == ("00aa", True)
        build(library, build_id="00bb")
        assert (only(pid).build_id, only(pid).replaced) == ("00aa", True)


def test_what_cannot_be_looked_at_is_not_said_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "_mapped_file", lambda pid, mapping: tmp_path / "no permission")
    library = build(tmp_path / "libnccl.so.2", build_id="00aa")
    with running(library) as pid:
        # As of a process with another root: its path starts elsewhere, and is found from rip's own root.
        monkeypatch.setattr(loaded.root_files, "root_of", lambda pid: tmp_path)
        found = only(pid)
        assert (found.deleted, found.unseen, found.build_id) == (False, False, "00aa")
        monkeypatch.setattr(loaded, "_is_mapped", lambda *of: False)
        found = only(pid)
        assert (found.deleted, found.unseen, found.build_id) == (False, True, "00aa")
        library.unlink()  # the kernel says so, from wherever one looks
        assert (only(pid).deleted, only(pid).unseen) == (True, False)


def test_a_library_that_was_never_on_disk(tmp_path: Path) -> None:
    library = build(tmp_path / "libnccl.so.2", build_id="00aa")
    script = (
        "import ctypes, os, sys\nfd = os.memfd_create('libnccl.so.2')\n"
        "os.write(fd, open(sys.argv[1], 'rb').read())\nctypes.CDLL(f'/proc/self/fd/{fd}')\n"
        "os.close(fd); print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = only(process.pid)
        process.communicate()
    assert (found.path, found.build_id) == ("/memfd:libnccl.so.2", "00aa")
    assert (found.deleted, found.replaced) == (True, False)


def test_processes_that_cannot_be_read() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(Unread, match="the process ended"):
        loaded_libraries(ended.pid)
    if (
        Path("/proc/2/comm").exists()
        and Path("/proc/2/comm").read_text() == "kthreadd\n"
        and os.getuid() == 0
    ):
        with pytest.raises(Unread, match="kernel thread"):
            loaded_libraries(2)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root to be somebody else")
def test_another_users_process_is_a_reason_with_the_mend() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            loaded_libraries(os.getppid())
        except Unread as refused:
            os.write(write, str(refused).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, encoding="utf-8") as said:
        assert "CAP_SYS_PTRACE" in said.read()


# Where copies are found.


def loader_cache(*paths: str) -> bytes:
    """An `/etc/ld.so.cache` as glibc 2.2 and later write it."""
    names, entries, at = b"", b"", 48 + 24 * len(paths)
    for path in paths:
        key, value = path.rpartition("/")[2].encode() + b"\0", path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x303, at + len(names), at + len(names) + len(key), 0, 0)
        names += key + value
    return (
        b"glibc-ld.so.cache1.1" + struct.pack("<7I", len(paths), len(names), 2, 0, 0, 0, 0) + entries + names
    )


@pytest.mark.parametrize("before", [b"", b"ld.so-1.7.0" + bytes(37)])
def test_the_loaders_cache_is_read_below_another_root(tmp_path: Path, before: bytes) -> None:
    root = tmp_path / "root"
    build(root / "opt" / "real" / "libnccl.so.2.28.3", build_id="0283", soname="libnccl.so.2")
    (root / "usr" / "lib").mkdir(parents=True)
    (root / "usr" / "lib" / "libnccl.so.2").symlink_to(
        "/opt/real/libnccl.so.2.28.3"
    )  # absolute: inside the root
    (root / "etc").mkdir()
    (root / "etc" / "ld.so.cache").write_bytes(
        before + loader_cache("/usr/lib/libnccl.so.2", "/gone/libcudart.so.12")
    )
    found = LibrarySearch(root, (), {}).copies()
    assert [(copy.label, copy.path, version_in_name(copy.path)) for copy in found] == [
        ("system/libnccl.so.2", "/opt/real/libnccl.so.2.28.3", "2.28.3")
    ]


@given(content=st.binary(max_size=200), count=st.integers(0, 2**32 - 1))
def test_a_damaged_loaders_cache_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, count: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "cache-root"
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc" / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + struct.pack("<I", count) + content)
    assert LibrarySearch(root, (), {}).copies() == []


def test_reading_many_mappings_is_not_slow_by_design(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100,000 lines of one file are one file, looked at once.
    line = b"%x-%x r--p 00000000 fe:00 7 /usr/lib/libcrypto.so.3\n"
    monkeypatch.setattr(proc, "_read_maps", lambda pid: b"".join(line % (n, n + 1) for n in range(100_000)))
    assert loaded_libraries() == []
    assert len(proc.read_mappings()) == 1
