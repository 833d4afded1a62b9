"""Who may import whom, and what `--help` must not load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
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


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]


def test_every_contract_of_imports_holds() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


def modules() -> list[str]:
    """Every module of the package, as a path from its root without the suffix."""
    skipped = {"tests", "benchmarks", "build", "dist"}
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    return [
        str(path.with_suffix(""))
        for path in paths
        if path.parts[0] not in skipped and not any(part.startswith(".") for part in path.parts)
    ]


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("schemas/noun.py", "from ..replay import run", "one import direction"),
        ("replay/run.py", "from ..diverge import compare", "one import direction"),
        ("replay/request/resolve_request.py", "from ..engines import base", "rooms of replay"),
        ("replay/engines/base.py", "if False:\n    from .. import run", "rooms of replay"),
        ("replay/wire.py", "def late():\n    from .proxy import store", "rooms of replay"),
        ("replay/unlisted.py", "", "rooms of replay"),
        ("replay/engines/hf/model.py", "from ..http import client", "engines"),
        ("fingerprint/probes/cpu.py", "from .. import collect", "fingerprint"),
        ("fingerprint/drift.py", "from .present import drift_report", "fingerprint"),
        (
            "fingerprint/model/read_and_hash.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..probes import cpu",
            "fingerprint",
        ),
        ("diverge/compare.py", "def late():\n    from ..cli import main", "one import direction"),
        ("commands/demo.py", "from ..cli import main", "one import direction"),
        ("experiments/lanes/resolve_lane.py", "from ..replay_plan import options", "experiments"),
        ("experiments/settings_search/runs.py", "from ..narrow import narrow_lanes", "experiments"),
        ("experiments/unlisted.py", "", "experiments"),
        ("commands/tap.py", "def late():\n    from .drift import drift", "commands"),
        ("diverge/reading/load.py", "from ..comparison import align", "diverge"),
        ("diverge/causes/rank.py", "if False:\n    from ..patterns import sequences", "diverge"),
        ("diverge/comparison/tally.py", "def late():\n    from .. import compare", "diverge"),
        ("diverge/new_folder/file.py", "", "diverge"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, line: str, broken: str) -> None:
    """The negative control: the same contracts over a tree of empty modules with one wrong import."""
    package = tmp_path / "rip"
    for name in [*modules(), "schemas/noun"]:
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).with_name("__init__.py").touch()
    (package / file).write_text(line + "\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{len(CONTRACTS) - 1} kept, 1 broken" in done.stdout
    assert re.search(rf"^{broken}.* BROKEN$", done.stdout, re.MULTILINE)


def test_every_file_of_the_commands_is_a_command_or_shared() -> None:
    """A command has no second file: whatever is none of them is imported by several, or by the assembly."""
    contract = next(one for one in CONTRACTS if one["type"] == "independence")
    names = {name.removeprefix("rip.commands.") for name in contract["modules"]}
    files = {path.stem for path in (ROOT / "commands").glob("*.py")} - {"__init__"}
    assert names == {words[0] for words in commands()}
    for shared in files - names:
        if f"from .commands.{shared} import" in (ROOT / "cli.py").read_text("utf-8"):
            continue
        importers = [
            path.stem
            for path in (ROOT / "commands").glob("*.py")
            if re.search(rf"from \.{shared} import", path.read_text("utf-8"))
        ]
        assert len(importers) > 1, f"{shared}.py is the second file of {importers}"


def cycles(package: str) -> list[list[str]]:
    """Chains of imports that lead back to where they start, those under TYPE_CHECKING included."""
    graph = grimp.build_graph(package, cache_dir=None)
    found: dict[frozenset[str], list[str]] = {}
    for module in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if chain := graph.find_shortest_chain(imported, module):
                found.setdefault(frozenset(chain), [module, *chain])
    return list(found.values())


def test_no_module_imports_itself_over_others() -> None:
    assert [" -> ".join(cycle) for cycle in cycles("rip")] == []


def test_a_cycle_for_types_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    package = tmp_path / "looped"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from .two import b\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .three import c\n"
    )
    (package / "three.py").write_text("def late():\n    from .one import a\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [set(cycle) for cycle in cycles("looped")] == [{"looped.one", "looped.two", "looped.three"}]
