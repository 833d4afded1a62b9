"""The Python of a process, read and never run: its version, its package folders, what is installed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

from ...schemas.fingerprint import Fact, fact, unavailable
from . import proc, root_files

_SITE = re.compile(r"^(/.*?/(?:site|dist)-packages)/.*\.so(?:\.[\d.]+)?$")
"""Of a code library; a model that is mapped from there is only data."""
_VERSIONED = re.compile(r"(?:^|/)(?:lib)?(?:python|pypy)(\d\.\d{1,2})t?(?:\.so[\d.]*|/|$)")
_COMPILERS = (b"[GCC ", b"[Clang ")
_MAX_COMPILER = 100
_MAX_INTERPRETER_BYTES = 64 * 1024 * 1024
_MAX_CFG_BYTES = 65536


@dataclass(frozen=True)
class Python:
    """What the files of a process say about the Python that it runs."""

    version: str | None
    """`3.11.7`, out of the interpreter's own file; else `3.11`, from names; None for another program."""
    compiler: str | None
    folders: tuple[str, ...]
    """Its `site-packages`, as the process sees them, first one first; only those that exist."""

    def reachable(self, root: Path) -> list[str]:
        """The same folders as rip reaches them."""
        found = []
        for folder in self.folders:
            try:
                found.append(str(root_files.locate(root, folder)))
            except proc.Unread:
                continue  # it went away after it was found
        return found


def python_of(
    root: Path,
    executable: str,
    command_line: list[str],
    mapped: Iterable[str],
    environ: Mapping[str, str],
    working_directory: str = "/",
) -> Python:
    """Look at what a process runs on.

    Args:
        root: Its view of the file system.
        executable: What /proc/PID/exe points to.
        command_line: Its arguments.
        mapped: The files it has mapped.
        environ: As it was launched.
        working_directory: Where its program was looked for, if it was named relatively.
    """
    paths = sorted(mapped)
    interpreters = [path for path in paths if re.search(r"/libpython\d", path)] + [executable]
    short = next((match[1] for path in [*interpreters, *paths] if (match := _VERSIONED.search(path))), None)
    version, compiler = _of_interpreter(root, interpreters, short)
    if short is None:
        return Python(None, None, ())
    programs = [str(PurePosixPath(working_directory, name)) for name in command_line[:2] if "/" in name]
    candidates = dict.fromkeys(_candidates(root, executable, programs, paths, environ, short))
    folders = tuple(folder for folder in candidates if root_files.is_folder(root, folder))
    return Python(version or short, compiler, folders)


def _candidates(
    root: Path,
    executable: str,
    programs: list[str],
    paths: list[str],
    environ: Mapping[str, str],
    short: str,
) -> Iterator[str]:
    """Where packages may lie, in the order in which Python searches."""
    yield from (folder for folder in environ.get("PYTHONPATH", "").split(":") if folder.startswith("/"))
    mapped = list(dict.fromkeys(match[1] for path in paths if (match := _SITE.match(path))))
    homes = [str(PurePosixPath(program).parent.parent) for program in programs]
    homes += [
        environ.get("VIRTUAL_ENV", ""),
        *(str(PurePosixPath(folder).parent.parent.parent) for folder in mapped),
    ]
    virtual = next((home for home in homes if _settings(root, home)), None)
    if virtual is not None:
        yield f"{virtual}/lib/python{short}/site-packages"
    yield from mapped
    if virtual is None or _settings(root, virtual).get("include-system-site-packages") == "true":
        if environ.get("HOME") and not environ.get("PYTHONNOUSERSITE"):
            yield f"{environ['HOME']}/.local/lib/python{short}/site-packages"
        prefix = PurePosixPath(executable).parent.parent
        for relative in (
            f"python{short}/site-packages",
            f"python{short}/dist-packages",
            "python3/dist-packages",
        ):
            yield f"{prefix}/lib/{relative}"
        yield f"/usr/local/lib/python{short}/dist-packages"


def _settings(root: Path, home: str) -> dict[str, str]:
    """The pyvenv.cfg of a virtual environment; empty where there is none."""
    if not home:
        return {}
    text = root_files.read_text(root, f"{home}/pyvenv.cfg", _MAX_CFG_BYTES)
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


def _of_interpreter(root: Path, paths: list[str], short: str | None) -> tuple[str | None, str | None]:
    """Version and compiler as they stand in the interpreter's file, where CPython keeps them as texts."""
    for path in paths if short else ():
        try:
            content = root_files.read_file(root, path, _MAX_INTERPRETER_BYTES)
        except proc.Unread:
            continue
        # The linker may keep it as the end of a longer text, such as a path.
        pattern = re.escape(short or "").encode() + rb"\.\d{1,2}(?:(?:a|b|rc)\d+)?\+?\0"
        versions = {
            match[0][:-1].decode()
            for match in re.finditer(pattern, content)
            if content[match.start() - 1 : match.start()] not in b".0123456789"
        }
        if len(versions) == 1:
            return versions.pop(), _compiler(content)
    return None, None


def _compiler(interpreter: bytes) -> str | None:
    for mark in _COMPILERS:
        begin = interpreter.find(mark)
        end = interpreter.find(b"]", begin, begin + _MAX_COMPILER)
        if begin >= 0 and end > begin:
            return interpreter[begin + 1 : end].decode("ascii", "replace")
    return None


SOURCE = "importlib.metadata"


def read_version(name: str, folders: list[str] | None = None) -> Fact:
    """The installed version of one distribution; `folders` as in `build`."""
    built = read_build(name, folders)
    return fact(built.value["version"], SOURCE) if built.unavailable is None else built


def read_build(name: str, folders: list[str] | None = None) -> Fact:
    """Version, origin and content of one distribution: distinguishes two builds of one version.

    Args:
        name: Of the distribution.
        folders: The `site-packages` of another environment, first one first; None for this process.

    The value has `version`, `record_sha256` (over the names and hashes of the installed files; absent
    where the installer left no hashes) and, for a package not from an index, `direct_url`.
    """
    path = sys.path if folders is None else folders
    distribution = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
    if distribution is None:
        return unavailable("not installed", SOURCE)
    if not distribution.version:  # an installation that was broken off
        return unavailable("its metadata names no version", SOURCE)
    value = {"version": distribution.version}
    if (digest := _record_digest(distribution.read_text("RECORD"))) is not None:
        value["record_sha256"] = digest
    if (url := _direct_url(distribution.read_text("direct_url.json"))) is not None:
        value["direct_url"] = url
    return fact(value, SOURCE)


def _record_digest(record: str | None) -> str | None:
    """SHA-256 over the sorted hashed lines of a RECORD.

    Left out, because they differ between two installations of the same wheel: the installer's own files
    (`.dist-info`), compiled files (no hash), and scripts outside the package folder (their first line names
    the interpreter).
    """
    lines = sorted(
        line
        for line in (record or "").splitlines()
        if "=" in line and ".dist-info/" not in line and not line.startswith(("..", "/"))
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else None


def _direct_url(text: str | None) -> str | None:
    """The origin with its commit; user names, passwords and query strings are taken out."""
    try:
        origin = json.loads(text or "null")
        parts = urlsplit(origin["url"])
    except (ValueError, KeyError, TypeError):
        return None
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme, host, parts.path, "", ""))
    commit = (origin.get("vcs_info") or {}).get("commit_id")
    return f"{url}@{commit}" if commit else url
