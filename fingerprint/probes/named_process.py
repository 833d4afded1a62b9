"""A running process, by its pid: its engine and arguments, its Python and packages.

Everything is read from outside, through its own root; nothing of it is executed, stopped or changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from ...schemas import redact
from ...schemas.fingerprint import Fact, Section, fact, fact_or, unavailable
from ..engine_arguments import command_line
from ..engine_arguments.command_line import CONFIG_FILES, Engine
from ..engine_arguments.meaning import EXPECTED, fields_of
from ..fields.known_names import ALL_VARIABLES, FRAMEWORK_PACKAGES, KERNEL_PACKAGES
from ..process import proc, python_packages, root_files
from ..process.proc import mapped_files
from ..process.python_packages import Python, python_of
from .cpu import FROM_INSIDE, NOT_VISIBLE_FROM_OUTSIDE
from .os_env import LAUNCH_SOURCE
from .process_workers import process_section
from .torch_env import CPU_FLAGS, FLAGS, VERSION_FILE, versions_beside

if TYPE_CHECKING:
    from .context import Context


COMMAND_LINE = "/proc/PID/cmdline (requested)"
"""What was asked for is no proof that it ran."""
NOT_ON_COMMAND_LINE = "not given on the command line: the engine's default applies"
NOT_SHOWN = "the process wrote its title over its command line, and no parent shows it"
NO_ENGINE = "no engine that rip knows was recognised"
_NO_PYTHON = "the process does not run Python"
_NOT_RUN = "a program does not tell its version unless it is run: ask its server with --url"
_NOT_INSTALLED = "its package is not installed where its Python looks"
_MAX_EXECUTABLE_BYTES = 256 * 1024 * 1024
_MAX_CONFIG_BYTES = 1024 * 1024
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Named:
    """The named process; what could not be read is a `proc.Unread` that says why."""

    context: Context
    pid: int

    @cached_property
    def command_line(self) -> list[str]:
        """Empty where it could not be read."""
        found = _attempt(lambda: proc.command_line(self.pid))
        return found if isinstance(found, list) else []

    @cached_property
    def executable(self) -> str | proc.Unread:
        return _attempt(lambda: proc.link(self.pid, "exe").removesuffix(" (deleted)"))

    @cached_property
    def folder(self) -> str:
        """Its working directory, from which relative paths on its command line start."""
        found = _attempt(lambda: proc.link(self.pid, "cwd"))
        return found if isinstance(found, str) else "/"

    @cached_property
    def mapped(self) -> set[str] | proc.Unread:
        return _attempt(lambda: mapped_files(self.pid))

    @cached_property
    def python(self) -> Python | proc.Unread:
        if isinstance(self.mapped, proc.Unread):
            return self.mapped
        if isinstance(self.executable, proc.Unread):
            return self.executable
        return python_of(
            self.context.root,
            self.executable,
            self.command_line,
            self.mapped,
            self.context.environ,
            self.folder,
        )

    @cached_property
    def package_folders(self) -> list[str]:
        """As this process reaches them."""
        return [] if isinstance(self.python, proc.Unread) else self.python.reachable(self.context.root)

    def sha256(self, path: str, limit: int) -> Fact:
        """The digest of a file that it names."""
        try:
            content = root_files.read_file(self.context.root, os.path.join(self.folder, path), limit + 1)
        except proc.Unread as reason:
            return unavailable(redact.text(str(reason)), "file-sha256")
        if len(content) > limit:
            return unavailable(f"larger than {limit >> 20} MiB", "file-sha256")
        return fact(hashlib.sha256(content).hexdigest(), "file-sha256:verified")


def _attempt(reading: Callable[[], _Read]) -> _Read | proc.Unread:
    try:
        return reading()
    except proc.Unread as reason:
        return reason


def probe(context: Context) -> dict[str, Section]:
    """Sections `process`, `engine`, `frameworks`, `kernels`, and all that the engine's arguments set."""
    assert context.pid is not None
    named = Named(context, context.pid)
    engine = _engine(named)
    sections = _settings(named, engine)
    sections["engine"] |= _engine_facts(named, engine)
    sections["frameworks"] = _frameworks(named)
    sections["kernels"] = _kernels(named)
    sections["cpu"] = dict.fromkeys(CPU_FLAGS, unavailable(FROM_INSIDE, NOT_VISIBLE_FROM_OUTSIDE))
    contract = unavailable("the engine samples by its own rules, not by rip's", "rip")
    sections["sampling"] = {"contract_version": contract, **sections.get("sampling", {})}
    sections["replica"] = {"id": unavailable("a process does not name its replica: ask with --url", "rip")}
    found = {name: Section(facts=facts) for name, facts in sections.items()}
    return {**found, "process": process_section(context.pid, context.family)}


def _engine(named: Named) -> Engine | None:
    """The engine; of a process with a title, with the arguments of the nearest parent that shows them."""
    mapped = named.mapped if isinstance(named.mapped, set) else set()
    engine = command_line.recognise(named.command_line, mapped)
    parent = named.pid
    while engine is not None and engine.arguments is None:
        try:
            parent = proc.parent_of(parent)
            above = command_line.recognise(proc.command_line(parent), ())
        except proc.Unread:
            break
        if above is None or above.name != engine.name:
            break
        engine = Engine(engine.name, engine.how, above.arguments)
    return engine


def _settings(named: Named, engine: Engine | None) -> dict[str, dict[str, Fact]]:
    """Section → facts that the arguments set, and those that an engine is expected to have."""
    reason = NO_ENGINE if engine is None else NOT_SHOWN if engine.arguments is None else NOT_ON_COMMAND_LINE
    sections: dict[str, dict[str, Fact]] = {}
    for section, field in EXPECTED:
        sections.setdefault(section, {})[field] = unavailable(reason, COMMAND_LINE)
    if engine is None or engine.arguments is None:
        return sections
    arguments = command_line.arguments_of(engine, named.context.environ)
    for (section, field), value in fields_of(engine.name, arguments).items():
        sections.setdefault(section, {})[field] = fact(redact.value(value), COMMAND_LINE)
    sections["engine"]["arguments"] = fact_or(
        redact.value(arguments), COMMAND_LINE, "it was started without arguments"
    )
    for name in CONFIG_FILES:
        if isinstance(path := arguments.get(name), str):
            sections["engine"]["config_file_sha256"] = named.sha256(path, _MAX_CONFIG_BYTES)
    return sections


def _engine_facts(named: Named, engine: Engine | None) -> dict[str, Fact]:
    if engine is None:
        return dict.fromkeys(("name", "version", "environment"), unavailable(NO_ENGINE, COMMAND_LINE))
    facts = {"name": fact(engine.name, engine.how), "environment": _environment(named, engine)}
    if isinstance(named.python, proc.Unread):
        return {**facts, "version": unavailable(str(named.python), python_packages.SOURCE)}
    if named.python.version is None and isinstance(named.executable, str):
        digest = named.sha256(named.executable, _MAX_EXECUTABLE_BYTES)
        return {**facts, "version": unavailable(_NOT_RUN, "proc-maps"), "executable_sha256": digest}
    for name in command_line.PACKAGES.get(engine.name, ()):
        build = python_packages.read_build(name, named.package_folders)
        if build.unavailable is None:
            return {**facts, "version": fact(build.value["version"], f"dist-info of {name}"), "build": build}
    return {**facts, "version": unavailable(_NOT_INSTALLED, python_packages.SOURCE)}


def _environment(named: Named, engine: Engine) -> Fact:
    """The engine's own variables, but for those that stand in `determinism` and those that are secret."""
    if named.context.environ_unread is not None:
        return unavailable(named.context.environ_unread, LAUNCH_SOURCE)
    found = {
        name: redact.text(value)
        for name, value in sorted(named.context.environ.items())
        if command_line.is_variable_of(engine.name, name)
        and name not in ALL_VARIABLES
        and not redact.is_secret(name)
    }
    return fact_or(found, LAUNCH_SOURCE, "none is set")


def _frameworks(named: Named) -> dict[str, Fact]:
    source, python = "proc-maps", named.python
    if isinstance(python, proc.Unread) or python.version is None:
        names = ["python", "python_implementation", "python_compiler", "torch", "torch.build"]
        names += ["torch.git_version", "torch.hip", *FRAMEWORK_PACKAGES, *FLAGS]
        reason = str(python) if isinstance(python, proc.Unread) else _NO_PYTHON
        return dict.fromkeys(names, unavailable(reason, source))
    torch = python_packages.read_build("torch", named.package_folders)
    unknown = "not found in the interpreter's file"
    return {
        "python": fact(python.version, source),
        "python_implementation": fact_or(python.compiler and "CPython", source, unknown),
        "python_compiler": fact_or(python.compiler, source, unknown),
        **{name: python_packages.read_build(name, named.package_folders) for name in FRAMEWORK_PACKAGES},
        "torch": torch if torch.unavailable is not None else fact(torch.value["version"], torch.source),
        "torch.build": torch,
        **dict.fromkeys(FLAGS, unavailable(FROM_INSIDE, NOT_VISIBLE_FROM_OUTSIDE)),
        **_torch_versions(named, python),
    }


def _torch_versions(named: Named, python: Python) -> dict[str, Fact]:
    """Commit and HIP version of the torch that is installed; of CUDA speaks section `libraries`."""
    names = ("torch.git_version", "torch.hip")
    versions = versions_beside(named.context.root, python.folders)
    if versions is None:
        return dict.fromkeys(names, unavailable("torch is not installed", VERSION_FILE))
    return {name: versions[name] for name in names}


def _kernels(named: Named) -> dict[str, Fact]:
    if named.package_folders:
        return {name: python_packages.read_build(name, named.package_folders) for name in KERNEL_PACKAGES}
    reason = str(named.python) if isinstance(named.python, proc.Unread) else _NO_PYTHON
    return dict.fromkeys(KERNEL_PACKAGES, unavailable(reason, python_packages.SOURCE))
