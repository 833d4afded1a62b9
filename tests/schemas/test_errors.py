"""Errors: two single lines, an exit code, and nothing of a terminal sequence."""

from __future__ import annotations

import pickle
import traceback

import pytest
from rip.schemas import errors
from rip.schemas.errors import RipError

EXIT_CODES = {"NothingCompared": 3, "Interrupted": 130}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RipError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_is_wrong_and_how_to_mend_it(kind: type[RipError]) -> None:
    error = kind("it broke", "mend it")
    assert (error.message, error.fix, str(error)) == ("it broke", "mend it", "it broke")
    assert error.exit_code == EXIT_CODES.get(kind.__name__, 2)
    assert kind.__doc__


def test_quoted_text_cannot_break_the_line_or_reach_the_terminal() -> None:
    error = RipError("engine said:\n  out of\x1b[31m memory\r\n", "a\u2028b")
    assert error.message == "engine said: out of\ufffd[31m memory"
    assert error.fix == "a b"


def test_the_fix_stands_in_a_traceback_once() -> None:
    error = errors.BadInput("it broke", "mend it")
    for one in (error, pickle.loads(pickle.dumps(error))):
        said = "".join(traceback.format_exception(one))
        assert said.endswith("BadInput: it broke\nfix: mend it\n")
        assert said.count("mend it") == 1


def test_an_error_survives_the_way_between_processes() -> None:
    again = pickle.loads(pickle.dumps(errors.BadInput("m", "f")))
    assert type(again) is errors.BadInput
    assert (again.message, again.fix) == ("m", "f")
