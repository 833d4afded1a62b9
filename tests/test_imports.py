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
HEAVY = ("torch", "transformers", "pyarrow", "duckdb", "numba", "numpy", "jinja2", "httpx", "huggingface_hub")

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


def lint_imports(folder: Path, contract: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--contract", contract]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_one_import_direction_holds() -> None:
    done = lint_imports(ROOT, "packages")
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


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


def test_the_rooms_of_diverge_have_one_order() -> None:
    done = lint_imports(ROOT, "diverge")
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("reading/load.py", "from ..comparison import align"),
        ("causes/rank.py", "if False:\n    from ..patterns import sequences"),
        ("comparison/tally.py", "def late():\n    from .. import compare"),
        ("new_room/file.py", ""),
    ],
    ids=["a lower room", "for types", "an entry point", "a room without its place in the order"],
)
def test_a_wrong_import_between_the_rooms_of_diverge_is_found(tmp_path: Path, file: str, line: str) -> None:
    """The negative control: the same contract over empty rooms with one wrong import."""
    package = tmp_path / "rip"
    for path in (ROOT / "diverge").rglob("*.py"):
        copy = package / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (package / "__init__.py").touch()
    (package / "diverge" / file).parent.mkdir(exist_ok=True)
    (package / "diverge" / file).with_name("__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    assert lint_imports(tmp_path, "diverge").returncode == (1 if file.startswith("new_room") else 0)
    (package / "diverge" / file).write_text(line + "\n")
    done = lint_imports(tmp_path, "diverge")
    assert done.returncode == 1, done.stdout + done.stderr
