"""docs/release-gate.md and the CI examples do what they say: their commands run, on a small random model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fakes.models import save_tiny_model
from ruamel.yaml import YAML

DOCS = Path(__file__).parents[1] / "docs"
GITHUB = DOCS / "examples" / "github-release-gate.yml"
GITLAB = DOCS / "examples" / "gitlab-release-gate.yml"


def blocks(language: str) -> Iterator[str]:
    text = (DOCS / "release-gate.md").read_text("utf-8")
    yield from re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def shell(script: str, folder: Path, **variables: str) -> str:
    """What a script printed; every command of it must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder in which every command of the page has run, and what each block printed."""
    folder = tmp_path_factory.mktemp("release")
    save_tiny_model("llama", folder / "SmolLM2")
    for block in blocks("toml"):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None, "the first line of a file is its name"
        (folder / name[1]).write_text(block)
    return folder, {block: shell(block, folder) for block in blocks("console")}


def test_the_page_leads_from_nothing_to_a_gated_release(gated: tuple[Path, dict[str, str]]) -> None:
    folder, printed = gated
    gates = [text for block, text in printed.items() if "rip gate" in block]
    assert len(gates) == 3
    for text in gates:
        assert "Pass with a drift report" in text
    assert "lane.threads: 2 → 1" in gates[0]
    assert "is intact" in gates[-1]
    statement = json.loads((folder / "evidence" / "statement.json").read_text())
    assert "model.safetensors" in {subject["name"] for subject in statement["subject"]}


def steps(path: Path) -> list[str]:
    """The shell of a CI job, without what installs."""
    job: Any = YAML(typ="safe").load(path)
    if path == GITHUB:
        found = [step["run"] for step in job["jobs"]["gate"]["steps"] if "run" in step]
    else:
        found = [line for part in ("script", "after_script") for line in job["release-gate"][part]]
    return [step for step in found if "pip install" not in step]


@pytest.mark.parametrize("example", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_the_steps_of_a_ci_job_run(gated: tuple[Path, dict[str, str]], example: Path, tmp_path: Path) -> None:
    folder, _ = gated
    (folder / "evidence").rename(tmp_path / "evidence")
    for name in ("gate.xml", "gate.md"):
        (folder / name).unlink()
    summary = tmp_path / "summary.md"
    for step in steps(example):
        shell(step, folder, GITHUB_STEP_SUMMARY=str(summary))
    assert (folder / "gate.xml").read_text().count("<testcase") == 5
    assert (folder / "evidence" / "manifest.json").exists()
    if example == GITHUB:
        assert summary.read_text().startswith("## Pass with a drift report")


@pytest.mark.parametrize(
    ("example", "schema"), [(GITHUB, "github-workflows"), (GITLAB, "gitlab-ci")], ids=["github", "gitlab"]
)
def test_the_examples_are_what_github_and_gitlab_take(example: Path, schema: str) -> None:
    published = files("check_jsonschema") / "builtin_schemas" / "vendor" / f"{schema}.json"
    job = YAML(typ="safe").load(example)
    jsonschema.validate(job, json.loads(published.read_text("utf-8")))
