"""The cache of converted GGUF models."""

from __future__ import annotations

from pathlib import Path

import pytest
from rip.replay.engines import model_files
from rip.replay.engines.model_files import cache_folder, loadable_folder
from rip.schemas.errors import EngineFailed

SHA256 = "0f" * 32


@pytest.fixture(autouse=True)
def conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, and a conversion that writes one file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        model_files, "_convert_gguf", lambda path, target: (target / "config.json").write_text("ours")
    )


def test_a_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = loadable_folder(tmp_path / "model.gguf", SHA256)
    monkeypatch.setattr(model_files, "_convert_gguf", lambda path, target: pytest.fail("converted twice"))
    assert loadable_folder(tmp_path / "model.gguf", SHA256) == folder
    assert list(cache_folder().iterdir()) == [folder]


def test_the_slower_of_two_conversions_uses_the_folder_of_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def rename_too_late(unfinished: Path, target: Path) -> Path:
        target.mkdir()
        (target / "config.json").write_text("theirs")
        return rename(unfinished, target)

    monkeypatch.setattr(Path, "rename", rename_too_late)
    folder = loadable_folder(tmp_path / "model.gguf", SHA256)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(cache_folder().iterdir()) == [folder], "the unfinished folder is gone"


def test_a_conversion_that_cannot_be_moved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(unfinished: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(EngineFailed, match="No space left on device"):
        loadable_folder(tmp_path / "model.gguf", SHA256)
    assert list(cache_folder().iterdir()) == []
