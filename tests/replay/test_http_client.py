"""The HTTP client, event streams, and servers as processes: what a user is told, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import inference
from fakes.replaying import batch_of, gather
from fakes.servers import endless, serve, serve_raw
from fakes.toy_model import MODEL, TOY
from rip.replay.engines.base import Opening
from rip.replay.engines.http.client import HttpClient, Refused
from rip.replay.engines.http.server_process import Launch, StartedServer
from rip.replay.engines.http.vllm import VllmEngine
from rip.schemas.envelope import Runtime
from rip.schemas.errors import BadInput, EngineFailed

KEY = "sk-a-key-that-must-never-be-kept"
STREAM = {"Content-Type": "text/event-stream"}
LINES = {"Content-Type": "application/x-ndjson"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def call(url: str, kind: str = "json", timeout_s: float = 10.0, key: str | None = None) -> Any:
    """One question; of a stream, all that came."""

    async def ask() -> Any:
        client = HttpClient(url, key, timeout_s)
        try:
            if kind == "json":
                return await client.json("GET", "/q")
            return [said async for said in getattr(client, kind)("/q", {})]
        finally:
            await client.close()

    return asyncio.run(ask())


# Answers


def test_what_a_server_says_is_handed_over() -> None:
    events = b': hello\n\ndata: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\ndata: {"late": 1}\n\n'
    answers = {"GET /q": {"a": [1, 2]}, "POST /q": (200, STREAM, events)}
    with serve(answers) as server:
        assert call(server.url) == {"a": [1, 2]}
        assert call(server.url, "events", key=KEY) == [{"a": 1}, {"a": 2}]
        assert server.keys == [None, f"Bearer {KEY}"]
    with serve({"POST /q": (200, LINES, b'{"a": 1}\n\n{"a": 2}')}) as server:
        assert call(server.url, "lines") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("end", [b"data: [DONE]\n", b"data: [DONE]", b": bye\n", b""])
def test_a_stream_may_end_without_its_last_empty_line_or_its_done(end: bytes) -> None:
    with serve({"POST /q": (200, STREAM, b'data: {"a": 1}\n\n' + end)}) as server:
        assert call(server.url, "events") == [{"a": 1}]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((200, {}, b"<html>"), "json", "does not answer with JSON"),
        ((200, {}, b"[" * 100_000), "json", "does not answer with JSON"),
        ((200, STREAM, b'data: {"a"\n\n'), "events", "does not answer with JSON"),
        ((200, STREAM, b'data: {"a": 1}\n\ndata: {"a"'), "events", "broke off inside an event"),
        ((200, {"Content-Type": "application/json"}, b"{}"), "events", "application/json where a stream"),
        ((200, {}, b"data: 1\n\n"), "events", "an untyped body where a stream"),
        ((200, LINES, b'{"a": 1}\n{"a"'), "lines", "broke off inside a line"),
        ((200, LINES, b'{"a": 1}\nnonsense\n'), "lines", "does not answer with JSON"),
        ((200, {"Content-Type": "text/html"}, b"<html>"), "lines", "text/html where a stream"),
        ((307, {"Location": "/login"}, b""), "json", "answers 307"),
    ],
)
def test_what_is_no_answer_is_an_error_with_the_address(answer: Any, kind: str, message: str) -> None:
    with serve({"GET /q": answer, "POST /q": answer}) as server, pytest.raises(EngineFailed) as raised:
        call(server.url, kind)
    assert message in raised.value.message
    assert f"{server.url}/q" in raised.value.message


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, {"error": {"message": "temperature must be positive"}}, ": temperature must be positive"),
        (400, {"error": "no model"}, ": no model"),
        (400, {"message": "Extra inputs"}, ": Extra inputs"),
        (422, {"detail": [{"loc": ["body"], "msg": "wrong"}]}, ': [{"loc": ["body"], "msg": "wrong"}]'),
        (500, {"error": {"message": "x" * 5000}}, ": " + "x" * 300 + "…"),
        (502, "<html>Bad gateway</html>", ""),
        (500, {"error": {"message": None}}, ""),
        (500, [], ""),
    ],
)
def test_the_servers_own_words_are_told(status: int, body: Any, said: str) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    with serve({"GET /q": (status, {}, raw)}) as server, pytest.raises(Refused) as raised:
        call(server.url)
    assert raised.value.message == f"{server.url}/q answers {status}{said}"
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, "--api-key-env"),
        (403, "--api-key-env"),
        (404, "--url"),
        (429, "lower --set batch_size"),
        (500, "check that the server is up"),
        (503, "wait until the server is ready"),
    ],
)
def test_an_error_status_says_what_to_do(status: int, fix: str) -> None:
    with serve({"GET /q": (status, {}, b"{}")}) as server, pytest.raises(Refused) as raised:
        call(server.url)
    assert fix in raised.value.fix


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("20", "the server says to wait 20 s"),
        ("Mon, 30 Nov 2026 11:00:00 GMT", "the server says to wait until Mon, 30 Nov"),
    ],
)
def test_how_long_a_busy_server_asks_to_wait_is_told(after: str, words: str) -> None:
    with serve({"GET /q": (429, {"Retry-After": after}, b"{}")}) as server:
        with pytest.raises(Refused) as raised:
            call(server.url)
        assert words in raised.value.fix
        assert len(server.questions) == 1  # never repeated by itself


def test_no_request_is_repeated() -> None:
    """A second try would be another execution, with another batch around it."""
    with serve({"POST /q": (500, {}, b"{}")}) as server:
        with pytest.raises(EngineFailed):
            call(server.url, "events")
        assert server.questions == ["POST /q"]


# Servers that do not behave


def test_a_connection_that_is_cut_is_named() -> None:
    with (
        serve_raw(lambda connection, ended: None) as url,
        pytest.raises(EngineFailed, match=r"connection broke"),
    ):
        call(url)
    with (
        serve_raw(lambda connection, ended: connection.sendall(HEAD + b'data: {"a"')) as url,
        pytest.raises(EngineFailed, match=r"broke off inside an event"),
    ):
        call(url, "events")


@pytest.mark.parametrize(
    "behave",
    [
        endless(b"", b""),
        endless(HEAD, b"", 0.01),
        endless(HEAD, b":", 0.01),
        endless(b"HTTP/1.1 200 OK\r\n", b"A", 0.01),
    ],
    ids=["silent", "stalls", "drips", "drips a header"],
)
def test_the_whole_answer_has_one_time_limit(behave: Callable[..., None]) -> None:
    """A byte now and then does not keep a request alive."""
    with (
        serve_raw(behave) as url,
        pytest.raises(EngineFailed, match=r"no whole answer within 0.3 s") as raised,
    ):
        call(url, "events", timeout_s=0.3)
    assert "--set timeout=SECONDS" in raised.value.fix


def test_a_stream_of_no_events_is_not_kept_in_memory_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rip.replay.sse.MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr("rip.replay.engines.http.client.MAX_EVENT_BYTES", 1 << 20)
    with (
        serve_raw(endless(HEAD, b"x" * 65536)) as url,
        pytest.raises(EngineFailed, match=r"does not stream events"),
    ):
        call(url, "events")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
    with (
        serve_raw(endless(head, b"x" * 65536)) as url,
        pytest.raises(EngineFailed, match=r"does not stream lines"),
    ):
        call(url, "lines")


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rip.replay.engines.http.client.MOST_BYTES", 1 << 20)
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    with (
        serve_raw(endless(head, b" " * 65536)) as url,
        pytest.raises(EngineFailed, match=r"answers without an end"),
    ):
        call(url)


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(EngineFailed, match=r"cannot be reached") as raised:
        call(url)
    assert "--url" in raised.value.fix


# Servers as processes


def program(
    tmp_path: Path,
    text: str,
    *,
    port: int = 0,
    ready_s: float = 30.0,
    say: Callable[[str], None] | None = None,
) -> StartedServer:
    command = [sys.executable, "-c", text, "{port}"]
    return StartedServer(
        Launch(command, {"WORD": "deep"}, tmp_path / "server.log", port, ready_timeout_s=ready_s, say=say)
    )


def is_running(pid: int) -> bool:
    """A zombie, which nobody has asked for its exit code yet, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def ending(pid: int) -> Iterator[Callable[[], bool]]:
    """Whether a process that runs now has come to its end; it has half a minute for it."""
    handle = os.pidfd_open(pid)  # readable when it has
    try:
        yield lambda: bool(select.select([handle], [], [], 30)[0])
    finally:
        os.close(handle)


LISTENS = """
import http.server, os, signal, subprocess, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print("children:", child.pid, os.environ["WORD"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_ends_with_its_children_even_those_that_do_not_want_to(tmp_path: Path) -> None:
    server = program(tmp_path, LISTENS)
    server.wait_ready()
    log = (tmp_path / "server.log").read_text()
    child = int(log.partition("children: ")[2].split()[0])
    assert "deep" in log
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600
    assert is_running(child)
    with ending(child) as ended:
        server.stop()
        server.stop()
        assert not is_running(server.pid)
        assert ended()


def test_a_server_that_dies_at_once_shows_its_last_error(tmp_path: Path) -> None:
    failing = "print('loading'); raise ValueError('no GPU was found')"
    server = program(tmp_path, failing)
    with closing(Stopping(server)), pytest.raises(EngineFailed) as raised:
        server.wait_ready()
    assert raised.value.message == (
        "the server could not be started: it ended with code 1: ValueError: no GPU was found"
    )
    assert raised.value.fix == f"see {tmp_path / 'server.log'}"
    killed = program(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with closing(Stopping(killed)), pytest.raises(EngineFailed, match=r"it was ended by SIGKILL"):
        killed.wait_ready()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "(APIServer pid=7) WARNING 11-30 15:05:53 [utils.py:255] can cause `OSError: [Errno 24]`",
            "",
        ),
        ("INFO:     Application startup complete.", ""),
        ("2026-11-30 15:05:53,120 INFO retried after ConnectionError: gone", ""),
        ("loading weights 50%", ""),
        ("(EngineCore pid=9) ERROR 11-30 15:05:53 [core.py:12] worker 1 has died", "worker 1 has died"),
        ("CRITICAL:root:no memory is left", "no memory is left"),
        ("torch.OutOfMemoryError: 3 GiB are missing", "torch.OutOfMemoryError: 3 GiB are missing"),
        (
            "core.ValidationError: 1 validation error for ModelConfig\n  Value error, too long\n  For more",
            "core.ValidationError: 1 validation error for ModelConfig Value error, too long",
        ),
        ("api_server.py: error: unrecognized arguments: --x", "unrecognized arguments: --x"),
    ],
)
def test_only_what_tells_an_error_is_shown_of_a_log(line: str, shown: str, tmp_path: Path) -> None:
    dying = f"import os, signal; print({line!r}, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    server = program(tmp_path, dying)
    with closing(Stopping(server)), pytest.raises(EngineFailed) as raised:
        server.wait_ready()
    how = "the server could not be started: it was ended by SIGKILL"
    assert raised.value.message.startswith(f"{how}: " if shown else how)
    assert raised.value.message.endswith(shown or how)
    assert raised.value.fix == f"see {tmp_path / 'server.log'}"


def test_a_server_that_never_listens_is_given_up_and_ended(tmp_path: Path) -> None:
    said: list[str] = []
    server = program(tmp_path, "import time; time.sleep(600)", ready_s=0.3, say=said.append)
    with closing(Stopping(server)), pytest.raises(EngineFailed, match=r"not ready within 0.3 s") as raised:
        server.wait_ready()
    assert "--set ready_timeout=SECONDS" in raised.value.fix
    assert said[0].startswith("starting the server")
    assert not is_running(server.pid)


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {port} cannot be used") as raised:
            program(tmp_path, "raise SystemExit", port=port)
    assert "--set port=N" in raised.value.fix
    assert not (tmp_path / "server.log").exists()


def test_a_program_that_cannot_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"does not exist") as raised:
        StartedServer(Launch([str(tmp_path / "python")], {}, tmp_path / "log"))
    assert "--python" in raised.value.fix
    (tmp_path / "python").write_text("")
    with pytest.raises(EngineFailed, match=r"could not be started: Permission denied"):
        StartedServer(Launch([str(tmp_path / "python")], {}, tmp_path / "log"))


class Stopping:
    """Closes a server as its engine does."""

    def __init__(self, server: StartedServer) -> None:
        self._server = server

    def close(self) -> None:
        self._server.stop()
        assert not is_running(self._server.pid)


# An engine and the server that it started


@pytest.fixture
def start_vllm(tmp_path: Path) -> Callable[..., VllmEngine]:
    """Starts the engine with an interpreter that has vLLM, or what passes for it."""
    python = tmp_path / "python"
    fake = Path(inference.__file__)
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\n'
        f"PYTHONPATH='{fake.parents[1]}' exec '{sys.executable}' '{fake}' vllm \"$@\"\n"
    )
    python.chmod(0o755)
    (tmp_path / "model").mkdir()

    def start(fault: str = "", topk: int = 3, sites: str | None = None, **given: Any) -> VllmEngine:
        settings = {"env.FAULT": fault, "served_model": MODEL, "ready_timeout": 60, **given}
        return VllmEngine(
            Opening(
                Runtime(),
                topk,
                None if sites is None else re.compile(sites),
                model=tmp_path / "model",
                python=str(python),
                settings=settings,
                log=tmp_path / "server.log",
            )
        )

    return start


def test_an_engine_starts_its_server_runs_on_it_and_leaves_nothing(
    start_vllm: Callable[..., VllmEngine],
) -> None:
    with closing(start_vllm()) as engine:
        pid = engine.pid
        assert pid is not None
        assert is_running(pid)
        found = gather(engine.run(batch_of([0, 5, 6, 7]), "free", False))[0]
        assert found.token_ids[4:] == TOY.generate([0, 5, 6, 7], 8, 0, None)
    assert not is_running(pid)


def test_a_server_that_dies_in_the_middle_is_told_with_its_last_words(
    start_vllm: Callable[..., VllmEngine], tmp_path: Path
) -> None:
    rows = []
    with closing(start_vllm("exits")) as engine:
        with pytest.raises(EngineFailed) as raised:
            rows.extend(engine.run(batch_of([0, 5, 6, 7]), "free", False))
        pid = engine.pid
    assert raised.value.message.startswith("r0: ")
    assert raised.value.message.endswith("it ended with code 9: RuntimeError: the device is gone")
    assert raised.value.fix == f"see {tmp_path / 'server.log'}"
    assert pid is not None
    assert not is_running(pid)


def test_a_server_that_serves_another_model_is_ended_too(start_vllm: Callable[..., VllmEngine]) -> None:
    before = children()
    with pytest.raises(BadInput, match=r"does not serve 'other'"):
        start_vllm(served_model="other")
    assert children() == before


def test_a_server_that_cannot_be_started_leaves_no_tap_folder(
    start_vllm: Callable[..., VllmEngine], tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {port} cannot be used"):
            start_vllm(sites="", port=port)
    assert sorted(tmp_path.iterdir()) == before


def test_a_server_is_started_to_tell_as_many_likely_tokens_as_are_wanted(
    start_vllm: Callable[..., VllmEngine],
) -> None:
    with closing(start_vllm(topk=20)) as engine:
        assert "max-logprobs" not in engine.settings
    with closing(start_vllm(topk=50)) as engine:
        assert (engine.settings["max-logprobs"].resolved, engine.settings["max-logprobs"].source) == (
            "50",
            "rip",
        )
    with pytest.raises(BadInput, match="--topk 50, but the server is started to return at most 30") as raised:
        start_vllm(topk=50, **{"max-logprobs": "30"})
    assert raised.value.fix == "use --topk 30, or --set max-logprobs=50"


def children() -> set[int]:
    """Of this process, those that run."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in found if is_running(int(pid))}


def test_a_server_dies_with_rip(tmp_path: Path) -> None:
    """Also where rip is killed and can clean up nothing."""
    inner = """
import sys, time
from pathlib import Path
from rip.replay.engines.http.server_process import Launch, StartedServer
server = StartedServer(Launch([sys.executable, "-c", "import time; time.sleep(600)"], {}, Path("log")))
print(server.pid, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    with ending(pid) as ended:
        process.kill()
        process.communicate()
        assert ended()
