"""What is said at once about damage and contradictions, and what is refused outright."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.checkpoints import SMALL, write_safetensors
from rip.fingerprint.collect import collect
from rip.fingerprint.drift import drift
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.present.warnings import list_warnings
from rip.schemas.errors import BadInput
from rip.schemas.fingerprint import Fingerprint, Section, fact


def test_a_whole_model_raises_no_doubt_and_one_that_is_cut_off_does(model_folder: Path) -> None:
    weights = write_safetensors(model_folder / "model.safetensors", SMALL)
    whole = collect(resolve(str(model_folder)))
    assert list_warnings(whole) == []
    weights.write_bytes(weights.read_bytes()[:-4])
    cut = collect(resolve(str(model_folder)))
    assert any("model.safetensors" in line and "cut off" in line for line in list_warnings(cut))
    change = next(change for change in drift(whole, cut) if change.name == "model.tensor_dtypes")
    assert "precision" not in change.rule
    command = [sys.executable, "-m", "rip", "fingerprint", "--model", str(model_folder), "--flat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "warning: weights: model.safetensors" in done.stderr


def test_library_warnings_and_an_ended_process_are_said() -> None:
    sections = {"libraries": Section(facts={"warnings": fact(["libnccl was replaced"], "proc-maps")})}
    assert list_warnings(Fingerprint.build("0", "now", sections)) == ["libnccl was replaced"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_link_that_leads_nowhere_and_a_pipe_are_named(model_folder: Path, name: str) -> None:
    path = model_folder / name
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(BadInput, match=f"{name} is a link that leads nowhere"):
        resolve(str(model_folder))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput, match=f"{name} is no regular file"):
        resolve(str(model_folder))
