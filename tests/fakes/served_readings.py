"""Reading a fake server into a fingerprint, and one fact of it."""

from __future__ import annotations

from rip.fingerprint.collect import collect
from rip.fingerprint.remote.address import Server
from rip.schemas.fingerprint import Fingerprint

from . import servers


def ask(answers: servers.Answers, key: str | None = None) -> Fingerprint:
    with servers.serve(answers) as served:
        return collect(server=Server(served.url, key))


def value(found: Fingerprint, place: str) -> object:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is None, reading.unavailable
    return reading.value


def reason(found: Fingerprint, place: str) -> str:
    reading = found.get(*place.split(".", 1))
    assert reading is not None, place
    assert reading.unavailable is not None, reading.value
    return reading.unavailable
