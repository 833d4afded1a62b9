"""The package as people install it: the whole tree in the wheel, and rip working from the wheel alone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
NOT_THE_PACKAGE = {"tests", "benchmarks", "docs", "build", "dist"}

# Packages that come with another one and are imported by their own name.
COMPANIONS = {"pydantic-core": "pydantic", "llvmlite": "numba", "markupsafe": "jinja2"}
# What comes with the driver of an accelerator, or with the torch built for it, and is asked where it is.
WITH_A_DRIVER = {"amdsmi", "triton"}
# What only runs inside them imports these, and what cannot be declared is imported by nothing else.
HOSTS = {"vllm", "deepinfer"}


def package_folders() -> list[Path]:
    """The folders below the root whose files belong to the package."""
    tops = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in NOT_THE_PACKAGE]
    tops = [path for path in tops if not path.name.startswith(".") and any(path.rglob("*.py"))]
    return sorted(
        folder for top in tops for folder in (top, *top.rglob("*/")) if folder.name != "__pycache__"
    )


def package_files() -> set[str]:
    """Every file of the package, by its path in the wheel."""
    files = [ROOT / name for name in ("__init__.py", "__main__.py", "cli.py", "py.typed")]
    for folder in package_folders():
        files += [path for path in folder.iterdir() if path.is_file()]
    return {f"rip/{path.relative_to(ROOT).as_posix()}" for path in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that nothing is left in the tree."""
    copy = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in {path.relative_to(ROOT).parts[0] for path in package_folders()}:
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in (
        "__init__.py",
        "__main__.py",
        "cli.py",
        "py.typed",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):
        shutil.copy(ROOT / name, copy)
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An interpreter whose only `rip` is the wheel's, and the environment to run it in.

    The dependencies are lent from this environment through PYTHONPATH. Its own editable install stays
    invisible, because `.pth` files count only in an interpreter's own site-packages.
    """
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    lent = next(path for path in sys.path if path.endswith("site-packages"))
    return python, {**os.environ, "PYTHONPATH": lent}


def test_the_list_of_packages_is_that_of_the_tree() -> None:
    with_modules = [folder for folder in package_folders() if any(folder.glob("*.py"))]
    found = {"rip", *(f"rip.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in with_modules)}
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])
    assert all((folder / "__init__.py").is_file() for folder in with_modules)


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == package_files()


def test_the_wheel_carries_its_license_and_no_test_dependency(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    plain = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert plain
    assert not [line for line in plain if re.search("torch|transformers|pytest|numba|jinja2", line)]


def test_the_installed_wheel_runs(clean_python: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    python, environment = clean_python
    rip = python.with_name("rip")
    told = subprocess.run([rip, "--version"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "rip 0.1.0\n"), told.stderr


def test_every_module_of_the_wheel_is_found_where_it_was_installed(
    clean_python: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    python, environment = clean_python
    code = (
        "import pkgutil, rip, rip.schemas.generate as g\n"
        "print(rip.__file__)\n"
        "print(g.stale_files())\n"
        "print(*sorted(m.name for m in pkgutil.walk_packages(rip.__path__, 'rip.')))\n"
    )
    told = subprocess.run([python, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    where, stale, modules = told.stdout.splitlines()
    assert Path(where).is_relative_to(python.parent.parent)
    assert stale == "[]", "the JSON Schema files came along"
    expected = {
        name[:-3].replace("/", ".").removesuffix(".__init__")
        for name in package_files()
        if name.endswith(".py")
    }
    assert set(modules.split()) == expected - {"rip"}


def third_party_imports() -> Iterator[tuple[Path, str]]:
    """(file, top-level module) of every import that is neither ours nor the standard library's."""
    for folder in package_folders():
        for path in folder.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    modules = [node.module]
                for module in modules:
                    if module.split(".")[0] not in sys.stdlib_module_names:
                        yield path, module.split(".")[0]


def canonical(distribution: str) -> str:
    """A distribution's name as registries compare it, without version and extras."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", distribution, maxsplit=1)[0]).lower()


def test_every_imported_package_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    declared = {
        canonical(text)
        for text in chain(
            PROJECT["project"]["dependencies"],
            *(extras[name] for name in ("gate", "llama", "local", "record", "report")),
        )
    }
    distributions = packages_distributions()
    for path, module in third_party_imports():
        offered = {module, *(canonical(name) for name in distributions.get(module, [module]))}
        offered |= {COMPANIONS[name] for name in offered if name in COMPANIONS}
        assert offered & (declared | WITH_A_DRIVER | HOSTS), (
            f"{path.relative_to(ROOT)} imports {module}, which pyproject.toml does not declare"
        )


def test_every_direct_dependency_has_a_tested_version() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked_for = [*PROJECT["project"]["dependencies"], *chain.from_iterable(extras.values())]
    direct = {canonical(text) for text in asked_for}
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {canonical(line): line for line in lines if line and not line.startswith("#")}
    assert direct - {"rip-forensics"} <= set(pinned)
    assert all(re.fullmatch(r"[a-z0-9_-]+==[0-9][0-9a-z.]*", line) for line in pinned.values()), (
        "no local versions"
    )
