"""Who may import whom, and what `--help` must not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rip.cli import app
from typer.main import get_command

ROOT = Path(__file__).parent.parent
HEAVY = (
    *("torch", "transformers", "pyarrow", "duckdb", "numba", "numpy", "jinja2", "httpx", "huggingface_hub"),
    "psutil",
)

# `rip --help` loads not even these. `rip COMMAND --help` must: typer reads parameters with pydantic.
ALSO_NOT_FOR_THE_OVERVIEW = ("pydantic", "rich")

SHOW_MODULES = """
import atexit, json, sys
def tell():
    print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
atexit.register(tell)
from rip.cli import main
sys.argv = ["rip", *sys.argv[1:]]
main()
"""


def modules_loaded_by(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", SHOW_MODULES, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: rip" in done.stdout
    return set(json.loads(done.stderr.splitlines()[-1]))


def commands() -> list[tuple[str, ...]]:
    """Every command line that leads to a command, nested ones included: `("envelope", "show")`."""
    found: list[tuple[str, ...]] = []
    waiting = [((name,), command) for name, command in get_command(app).commands.items()]  # type: ignore[attr-defined]
    while waiting:
        words, command = waiting.pop()
        found.append(words)
        waiting += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return sorted(found)


def test_the_overview_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by("--help")
    assert not loaded & {*HEAVY, *ALSO_NOT_FOR_THE_OVERVIEW}
    assert "typer" in loaded, "the check sees modules at all"


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_commands_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert not modules_loaded_by(*words, "--help") & set(HEAVY)


def test_importing_the_package_runs_nothing() -> None:
    code = "import sys; before = set(sys.modules); import rip; print(sorted(set(sys.modules) - before))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "['rip']"


def lint_imports(folder: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    command += [option for contract in contracts for option in ("--contract", contract)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_one_import_direction_holds() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert ", 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("schemas/noun.py", "from ..replay import verb"),
        ("replay/verb.py", "from ..diverge import verb"),
        ("diverge/verb.py", "def late():\n    from ..cli import main"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, line: str) -> None:
    """The negative control: the same contract over a small tree with one wrong import."""
    package = tmp_path / "rip"
    for name in ("", "schemas", "fingerprint", "replay", "diverge", "cli"):
        (package / name).mkdir(exist_ok=True)
        (package / name / "__init__.py").touch()
    for name in ("replay/verb.py", "diverge/verb.py", "cli/main.py"):
        (package / name).touch()
    (package / file).write_text(line + "\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    done = lint_imports(tmp_path, "packages")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout


FINGERPRINT_ROOMS = (
    *("probes", "export", "present", "drift", "rules", "gpus", "libraries", "remote"),
    *("engine_arguments", "model", "process", "fields", "untrusted"),
)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("probes/module.py", "from .. import collect"),
        ("drift/module.py", "from ..present import module"),
        (
            "model/module.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..probes import module",
        ),
    ],
    ids=["a folder imports an entry point", "against the order", "for a type only"],
)
def test_a_wrong_import_inside_fingerprint_is_found(tmp_path: Path, file: str, line: str) -> None:
    package = tmp_path / "rip"
    for name in ("", "fingerprint", *(f"fingerprint/{room}" for room in FINGERPRINT_ROOMS)):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
        (package / name / "module.py").touch()
    (package / "fingerprint" / "module.py").unlink()
    for entry in ("collect", "load", "field_tables"):
        (package / "fingerprint" / f"{entry}.py").touch()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    assert "1 kept, 0 broken" in lint_imports(tmp_path, "fingerprint").stdout
    (package / "fingerprint" / file).write_text(line + "\n")
    done = lint_imports(tmp_path, "fingerprint")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout
