"""Lane files: what a person writes is what the command line would have been given."""

from __future__ import annotations

from pathlib import Path

import pytest
from rip.schemas.errors import BadInput
from rip.schemas.lane import load_lane


def written(folder: Path, text: str) -> Path:
    path = folder / "tp2.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_and_variables_read_as_set_options(tmp_path: Path) -> None:
    lane = load_lane(
        written(
            tmp_path,
            """
            engine = "vllm"
            model = "org/model"
            [set]
            tensor-parallel-size = 2
            enforce-eager = true
            dtype = "bfloat16"
            [env]
            OMP_NUM_THREADS = "1"
            """,
        )
    )
    assert (lane.engine, lane.model, lane.url) == ("vllm", "org/model", None)
    assert lane.settings() == [
        "tensor-parallel-size=2",
        "enforce-eager=true",
        "dtype=bfloat16",
        "env.OMP_NUM_THREADS=1",
    ]


def test_paths_are_relative_to_the_file_where_they_exist_there(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    lane = load_lane(written(tmp_path, 'model = "weights"\npython = "/usr/bin/python3"\ntap = "no-such"\n'))
    assert lane.model == str(tmp_path / "weights")
    assert lane.python == "/usr/bin/python3"
    assert lane.tap == "no-such"


def test_neighbours_are_a_number_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").touch()
    assert load_lane(written(tmp_path, "neighbours = 7")).neighbours == 7
    assert load_lane(written(tmp_path, 'neighbours = "other.jsonl"')).neighbours == f"{tmp_path}/other.jsonl"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine = ", "is not TOML"),
        ('engin = "vllm"', "a lane has no field 'engin'"),
        ("engine = 3", "engine"),
        ("[env]\nOMP_NUM_THREADS = 1", "env.OMP_NUM_THREADS"),
    ],
)
def test_what_is_no_lane_is_refused_with_its_file_and_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_lane(written(tmp_path, text))
    assert said in caught.value.message
    assert "tp2.toml" in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml: cannot be read"):
        load_lane(tmp_path / "none.toml")
