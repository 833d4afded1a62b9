"""What the fuzz run found: inputs that ended in a fault of Python, and are refused or read now."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import Rip
from rip.experiments.new_envelope import read_prompt, read_sampling
from rip.replay.proxy.imported import import_files
from rip.schemas.errors import BadInput
from rip.schemas.lane import load_lane
from rip.schemas.narrow import Narrow

GOLDEN = Path(__file__).parents[1] / "golden"
MANY_DIGITS = "9" * 5000
"""More than Python makes an integer of."""


def test_a_path_in_a_lane_may_have_any_length(tmp_path: Path) -> None:
    path = tmp_path / "lane.toml"
    path.write_text(f'python = "{MANY_DIGITS}"\n')
    assert load_lane(path).python == MANY_DIGITS


def test_an_integer_of_thousands_of_digits_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="seed"):
        read_sampling([f"seed={MANY_DIGITS}"])
    messages = tmp_path / "messages.json"
    messages.write_text(f'[{{"role": {MANY_DIGITS}}}]')
    with pytest.raises(BadInput, match="too many digits"):
        read_prompt(None, None, None, messages)


def test_a_small_dump_takes_little_memory(tmp_path: Path) -> None:
    request = {"rid": "r", "text": "The sky", "sampling_params": {"max_new_tokens": 3}}
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps([(request, {"text": " is", "meta_info": {}}, 1.0, 2.0)]))
    tracemalloc.start()
    import_files([path], "auto", {}, lambda name: False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20, "not as much as the largest dump"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rest": "nowhere"}, "rest names no configuration"),
        ({"rest": "good", "found": []}, "nothing was found"),
        ({"state": "noise", "configurations": []}, "noise without"),
    ],
)
def test_a_result_of_narrow_names_only_what_it_holds(changes: dict[str, Any], message: str) -> None:
    whole = json.loads((GOLDEN / "narrow-v2.json").read_bytes())
    cut = {**whole, **({"rest": None, "found": []} if "configurations" in changes else {}), **changes}
    with pytest.raises(BadInput, match=message):
        Narrow.from_object(cut, "narrow.json")
    found = {**whole["found"][0], "settings": ["unheard-of"]}
    with pytest.raises(BadInput, match="not varied"):
        Narrow.from_object({**whole, "found": [found]}, "narrow.json")


def test_force_replaces_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"  # stands for /dev/null, which would be gone for everybody
    os.mkfifo(pipe)
    rip = Rip(monkeypatch, capsys)
    done = rip("query", GOLDEN / "trace-v1.parquet", "SELECT 1", "-o", pipe, "--format", "csv", "--force")
    assert done.code == 2
    assert "not a file" in done.err
    assert pipe.is_fifo()
