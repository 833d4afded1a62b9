"""One planted change at a time, in whole `rip fingerprint` processes: it changes its own sections and no
others, and `rip drift` names it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes import libraries
from fakes.checkpoints import SMALL, write_safetensors
from fakes.nvidia.stand_in import compiler
from rip.fingerprint.drift import drift
from rip.schemas.fingerprint import Fingerprint


@dataclass
class World:
    """Everything that one process sees and a test may change."""

    folder: Path
    model: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def packages(self) -> Path:
        return self.folder / "packages"

    @property
    def libraries(self) -> Path:
        return self.folder / "libraries"

    def read(self) -> Fingerprint:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": str(self.packages),
            "LD_LIBRARY_PATH": str(self.libraries),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **self.variables,
        }
        command = [sys.executable, "-m", "rip", "fingerprint", "--model", str(self.model)]
        done = subprocess.run(command, env=environment, capture_output=True, check=True, cwd=self.folder)
        return Fingerprint.from_json(done.stdout, "test")


@pytest.fixture
def world(tmp_path: Path, model_folder: Path) -> World:
    write_safetensors(model_folder / "model.safetensors", SMALL)
    made = World(tmp_path, model_folder)
    made.packages.mkdir()
    libraries.install(made.packages, "flash-attn", "2.8.0")
    if compiler() is not None:
        libraries.build(made.libraries / "libnccl.so.2", libraries.NCCL % 22809, build_id="aa01")
    return made


def _package(world: World) -> None:
    (world.packages / "flash_attn-2.8.0.dist-info").rename(world.packages / "old")
    libraries.install(world.packages, "flash-attn", "2.8.1")


def _library(world: World) -> None:
    if compiler() is None:
        pytest.skip("no C compiler")
    libraries.build(world.libraries / "libnccl.so.2", libraries.NCCL % 22809, build_id="bb02")


def _variable(world: World) -> None:
    world.variables["NCCL_ALGO"] = "Ring"


def _threads(world: World) -> None:
    world.variables["OMP_NUM_THREADS"] = "1"  # fewer: a BLAS takes no more than the machine has


def _tensor(world: World) -> None:
    dtype, shape, content = SMALL["model.layers.0.weight"]
    changed = {**SMALL, "model.layers.0.weight": (dtype, shape, bytes([content[0] ^ 1]) + content[1:])}
    write_safetensors(world.model / "model.safetensors", changed)


def _template(world: World) -> None:
    path = world.model / "chat_template.jinja"
    path.write_text(path.read_text().replace("{{ messages }}", "{{ messages }} "))


@pytest.mark.parametrize(
    ("plant", "sections", "named"),
    [
        (_package, {"kernels"}, "kernels.flash-attn"),
        (_library, {"libraries"}, "libraries.nccl_build_id"),
        (_variable, {"determinism"}, "determinism.NCCL_ALGO"),
        (_threads, {"determinism", "cpu"}, "determinism.OMP_NUM_THREADS"),
        (_tensor, {"model"}, "model.tensors"),
        (_template, {"template"}, "template.rendered_sha256"),
    ],
    ids=[
        "package",
        "library file",
        "variable",
        "thread count",
        "one bit of a tensor",
        "a space in the template",
    ],
)
def test_a_single_change_changes_its_sections_and_is_named(
    world: World, plant: Callable[[World], None], sections: set[str], named: str
) -> None:
    before = world.read()
    assert world.read().root_digest == before.root_digest  # the negative control
    plant(world)
    after = world.read()
    changed = {
        name for name, section in after.sections.items() if section.digest != before.sections[name].digest
    }
    assert changed == sections
    assert after.root_digest != before.root_digest
    assert named in {change.name for change in drift(before, after)}


def test_the_tensor_that_changed_is_named(world: World) -> None:
    before = world.read()
    _tensor(world)
    change = next(change for change in drift(before, world.read()) if change.name == "model.tensors")
    assert change.before is not None
    assert change.after is not None
    unlike = {name for name in SMALL if change.before.value[name] != change.after.value[name]}
    assert unlike == {"model.layers.0.weight"}
