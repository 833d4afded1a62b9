"""A server whose answers are wrong, damaged or endless: a fact or an error that says how to fix it."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket

import pytest
from fakes import servers
from fakes.served_readings import ask, reason, value
from fakes.servers import endless, serve_raw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rip.fingerprint.collect import collect
from rip.fingerprint.present.warnings import list_warnings
from rip.fingerprint.probes.context import Context
from rip.fingerprint.probes.remote_server import probe
from rip.fingerprint.remote import client as bounded_http
from rip.fingerprint.remote.address import Server
from rip.fingerprint.remote.vllm import settings_of
from rip.fingerprint.rules.promises import contradictions
from rip.schemas.errors import EngineFailed
from rip.schemas.fingerprint import Fingerprint

DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE_PROPS: dict[str, tuple[servers.Answer, str]] = {
    "not JSON": (b"<html>hello</html>", "its answer is not JSON"),
    "not UTF-8": (b'{"build_info": "\xff\xfe"}', "its answer is not UTF-8 text"),
    "nested without end": (DEEP, "its answer is nested more than 64 deep"),
    "nested too deep": (b"[" * 70 + b"]" * 70, "its answer is nested more than 64 deep"),
    "too large": (b'"' + b"a" * (5 << 20) + b'"', "its answer is larger than 4 MiB"),
    "compressed": (
        (200, {"Content-Encoding": "gzip"}, gzip.compress(b"0" * (1 << 20))),
        "it compresses its answer though not asked to",
    ),
    "ends early": (
        (200, {"Content-Length": "1000", "Connection": "close"}, b"{"),
        "it ended its answer early",
    ),
    "an error": (500, "it answers with status 500"),
    "elsewhere": (
        (302, {"Location": "http://192.0.2.1/props"}, b""),
        "it redirects to http://192.0.2.1: give that address with --url",
    ),
    "in a circle": ((302, {"Location": "/props"}, b""), "it redirects in a circle"),
    "many headers": (
        (200, {f"X-{index}": "a" for index in range(200)}, b"{}"),
        "its answer is no proper HTTP",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_PROPS)
def test_a_hostile_answer_is_a_fact(name: str) -> None:
    answer, expected = HOSTILE_PROPS[name]
    found = ask({**servers.LLAMA, "GET /props": answer})
    assert reason(found, "engine.version").startswith(expected)
    assert value(found, "model.vocab_size") == 49152, "the other answers are used"


@pytest.mark.parametrize(
    "answer", [[], {}, None, 7, "x", {"data": 3}, {"data": [1, None, []]}, {"data": [{"id": {"a": 1}}]}]
)
def test_answers_of_another_shape_are_facts(answer: object) -> None:
    for engine in servers.BY_ENGINE:
        shapeless = dict.fromkeys(servers.BY_ENGINE[engine], answer)
        shapeless |= {"GET /v1/models": servers.BY_ENGINE[engine]["GET /v1/models"]}
        found = ask(shapeless)
        assert engine == "tgi" or value(found, "engine.name") == engine
        with pytest.raises(EngineFailed, match=r"does not answer as an inference server|does not speak HTTP"):
            ask(dict.fromkeys(servers.BY_ENGINE[engine], answer))


UNREAD: dict[str, tuple[servers.Answers, str, str]] = {
    "wants a key": ({"*": 401}, r"it wants an API key(\n|$)", "--api-key-env NAME"),
    "wants a key elsewhere": ({"*": 403, "GET /v1/models": 404}, r"wants an API key(\n|$)", "--api-key-env"),
    "nothing there": ({}, "no such endpoint", "--url"),
    "fails": ({"*": 500}, "status 500", "log"),
    "a web page": ({"*": "<html>hello</html>"}, "not JSON", "--url"),
    "broken": ({"*": b'{"data": ['}, "not JSON", "--url"),
    "empty": ({"*": {}}, "no list of models", "--url"),
    "no name": ({"*": {"data": [{"id": None}]}}, "no list of models", "--url"),
    "elsewhere": (
        {"*": (301, {"Location": "https://192.0.2.1/ai/v1/models"}, b"")},
        "redirects to https://192.0.2.1/ai",
        "--url https://192.0.2.1/ai",
    ),
    "to nowhere": ({"*": (301, {"Location": "http://[::1"}, b"")}, "an address that is none", "--url"),
    "in a circle": ({"*": (302, {"Location": "/v1/models"}, b"")}, "in a circle", "--url"),
    "huge": ({"*": b'"' + b"a" * (5 << 20) + b'"'}, "larger than 4 MiB", "--url"),
    "compressed": ({"*": (200, {"Content-Encoding": "gzip"}, b"x")}, "compresses its answer", "--url"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_server_that_cannot_be_read_is_an_error_with_its_mend(name: str) -> None:
    answers, why, fix = UNREAD[name]
    with pytest.raises(EngineFailed, match=why) as raised:
        ask(answers)
    assert fix in raised.value.fix


def test_a_wrong_key_is_named_as_such() -> None:
    with pytest.raises(EngineFailed, match="it refuses the API key") as raised:
        ask({"*": 401}, "wrong")
    assert "holds the key of this server" in raised.value.fix


def test_a_server_without_a_model_is_still_one() -> None:
    assert ask({"GET /v1/models": {"object": "list", "data": []}}).sections


def test_a_port_that_speaks_no_http_is_named_as_such() -> None:
    with (
        serve_raw(lambda connection, ended: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as url,
        pytest.raises(EngineFailed, match="does not speak HTTP"),
    ):
        collect(server=Server(url))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, answer: object) -> object:
    """The same JSON, with any part of it replaced by anything."""
    if draw(st.integers(0, 5)) == 0:
        return draw(JSON)
    if isinstance(answer, dict):
        return {name: draw(damaged(said)) for name, said in answer.items()}
    if isinstance(answer, list):
        return [draw(damaged(said)) for said in answer]
    return answer


@pytest.mark.parametrize("engine", servers.BY_ENGINE)
@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_answer_of_wrong_types_ends_the_reading(engine: str, data: st.DataObject) -> None:
    whole = servers.VLLM_DEVELOPMENT if engine == "vllm" else servers.BY_ENGINE[engine]
    answers = {name: data.draw(damaged(said)) for name, said in whole.items()}

    def answer(asked: bounded_http.Client, method: str, path: str, body: object) -> bounded_http.Reply:
        said = answers.get(f"{method} {path}", ...)
        if said is ...:
            raise bounded_http.NoAnswer("absent", absent=True)
        content = said if isinstance(said, str) and path == "/metrics" else json.dumps(said)
        return bounded_http.Reply(content.encode("utf-8", "replace"), {})

    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(EngineFailed):
        patched.setattr(bounded_http.Client, "_answer", answer)
        patched.setattr(bounded_http.Client, "uses_tls", lambda asked: False)
        context = Context(None, {}, server=Server("http://127.0.0.1:1"))
        found = Fingerprint.build("0", "2026-07-14T09:30:00+00:00", probe(context))
        assert Fingerprint.from_json(found.to_json(), "it") == found
        assert len(list_warnings(found)) == len(contradictions(found)), "no other warning is made of it"


@given(st.text(alphabet="ab=,'\"\\()[]{} 01.", max_size=60))
def test_any_text_of_settings_is_taken_apart_or_refused(text: str) -> None:
    settings_of(text)


HOSTILE_SERVERS = {
    "a body without end": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n[", b"1," * 4096),
    "a body without length": endless(b"HTTP/1.1 200 OK\r\n\r\n[", b"1," * 4096),
    "a byte now and then": endless(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"[", 0.05),
    "a slow body without length": endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[", 0.05),
    "headers now and then": endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.05),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 100),
    "a header without end": endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 4096),
    "chunks without end": endless(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n", 0.01
    ),
    "a chunk of no size": endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n"),
    "always to be continued": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "nothing at all": endless(b"", b"", 0.05),
    "no HTTP": endless(b"\x15\x03\x01\x00\x02\x02\x50", b"", 0.05),
}


@pytest.mark.parametrize("name", HOSTILE_SERVERS)
def test_a_server_that_never_ends_is_left_in_bounded_time(name: str, short: None) -> None:
    with serve_raw(HOSTILE_SERVERS[name]) as url, contextlib.suppress(EngineFailed):
        assert reason(collect(server=Server(url)), "engine.name")


def test_a_server_that_hangs_up_is_an_error() -> None:
    with (
        serve_raw(lambda connection, ended: None) as url,
        pytest.raises(EngineFailed, match="without an answer"),
    ):
        collect(server=Server(url))


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineFailed, match="Connection refused"):
        collect(server=Server(f"http://127.0.0.1:{port}"))
    with pytest.raises(EngineFailed, match="no host of that name"):
        collect(server=Server("http://no-such-host.invalid"))
