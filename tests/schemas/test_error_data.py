"""Errors as data: what they are about can be written in another way, and other processes can read them."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile

import pytest
from rip.schemas.choices import MODES, check_choice
from rip.schemas.errors import (
    VARIABLE,
    BadInput,
    EngineFailed,
    RipError,
    Stated,
    read_report,
    report_error,
    stated_option,
    stated_setting,
)


def test_an_error_names_what_it_is_about_as_it_was_written() -> None:
    error = EngineFailed("cannot be run", "name one with {option}", stated_option("python", "no/python"))
    assert (error.message, error.fix) == ("--python no/python: cannot be run", "name one with --python")
    in_file = error.stated_as(Stated("python", "bad.toml: python = no/python", "python in the file"))
    assert type(in_file) is EngineFailed
    assert in_file.message == "bad.toml: python = no/python: cannot be run"
    assert in_file.fix == "name one with python in the file"


def test_an_error_about_nothing_keeps_braces() -> None:
    assert BadInput("not {option}", "give {option}").fix == "give {option}"
    assert stated_setting("batch_size=0") == Stated("batch_size", "--set batch_size=0", "--set batch_size")
    assert stated_option("api_key_env").text == "--api-key-env"


def test_an_error_survives_pickling() -> None:
    error = BadInput("not a number", "for example {option}=1", stated_setting("a=x"))
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.fix, again.about) == (error.message, error.fix, error.about)


def test_a_choice_is_returned_or_refused() -> None:
    assert check_choice("mode", "free", MODES) == "free"
    with pytest.raises(BadInput, match="--mode fast: no such choice") as caught:
        check_choice("mode", "fast", MODES)
    assert caught.value.fix == f"choose one of: {', '.join(MODES)}"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_another_process_reads_the_error_and_that_the_disk_was_full(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with tempfile.TemporaryFile() as file:
        monkeypatch.setenv(VARIABLE, str(file.fileno()))
        try:
            try:
                raise OSError(number, os.strerror(number))
            except OSError as error:
                raise EngineFailed("the engine failed", "look there") from error
        except RipError as error:
            report_error(error, error.message, error.fix)
        file.seek(0)
        report = read_report(file.read())
    assert report == ("EngineFailed", "the engine failed", "look there", number == errno.ENOSPC)
    assert VARIABLE not in os.environ


def test_without_a_reader_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    report_error(ValueError("x"), "x", "y")
    assert read_report(b"") is None
    assert read_report(b'{"kind": "BadInput"}') is None
