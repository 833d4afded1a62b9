"""`rip record` as a process: it says where it listens, records, and ends with a summary."""

from __future__ import annotations

import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fakes.command_line import Rip
from fakes.upstream import CHAT, FakeUpstream, fake_upstream, id_of
from rip.schemas.envelope import load_requests

BODY = {"model": "plain", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with fake_upstream() as app:
        yield app


class Running:
    """A `rip record` that runs, and what it said on stderr."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "rip", "record", "--listen", "127.0.0.1:0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.before = ""
        """What was said before it listened."""
        while "listening on" not in (line := self._lines.get(timeout=60)):
            assert line, "it has ended"
            self.before += line
        self.url = re.findall(r"http://\S+", line)[0]

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Exit code, and everything said since the last line that was read."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        said = ""
        while not self._lines.empty():
            said += self._lines.get()
        return code, said

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")


@contextmanager
def running(*arguments: str | Path) -> Iterator[Running]:
    started = Running(*arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_it_records_until_it_is_told_to_end(upstream: FakeUpstream, tmp_path: Path, number: int) -> None:
    with running("--upstream", upstream.url, "-o", tmp_path / "kept") as record:
        assert "upstream: vllm 0.32.0; token ids" in record.before, "known before the first request"
        for stream in (False, True):
            answer = httpx.post(record.url + CHAT, json={**BODY, "stream": stream}, trust_env=False)
            assert answer.status_code == 200
        code, said = record.end(number)
    assert code == 0
    assert "2 requests forwarded, 2 of them for completions; 2 chosen" in said
    assert "2 envelopes of 2 requests" in said
    kept = load_requests(tmp_path / "kept" / "requests.jsonl")
    for one in kept:
        assert one.expected is not None
        assert one.expected.token_ids == [id_of(i) for i in range(4)]
        assert (one.runtime.engine, one.runtime.engine_version) == ("vllm", "0.32.0")
    (fingerprint,) = (tmp_path / "kept").glob("fingerprint-*.json")
    assert kept[0].fingerprint_sha256 is not None
    assert kept[0].fingerprint_sha256[:12] in fingerprint.name


def test_a_running_request_may_end_after_ctrl_c_and_a_second_one_stops_it(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    with running("--upstream", upstream.url, "-o", tmp_path / "set.jsonl") as record:
        body = {**BODY, "model": "waits", "stream": True}
        with httpx.stream("POST", record.url + CHAT, json=body, trust_env=False, timeout=60) as response:
            pieces = response.iter_raw()
            next(pieces)
            record.process.send_signal(signal.SIGINT)
            refused_from_now_on(record.url)
            upstream.go_on.set()
            assert b"[DONE]" in b"".join(pieces), "it came to its end"
        assert record.process.wait(60) == 0
    (kept,) = load_requests(tmp_path / "set.jsonl")
    assert kept.expected is not None


def refused_from_now_on(url: str) -> None:
    """Until no new connection is taken."""
    pause = threading.Event()
    port = int(url.rpartition(":")[2])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return
        pause.wait(0.01)


def test_a_server_that_comes_later_is_recognised(tmp_path: Path) -> None:
    with fake_upstream() as first:
        port = first.url  # free again once it has ended
    with running("--upstream", port, "-o", tmp_path / "kept") as record:
        assert "does not answer yet" in record.before
        answer = httpx.post(record.url + CHAT, json=BODY, trust_env=False)
        assert answer.status_code == 502
        with fake_upstream(int(port.rpartition(":")[2])):
            answer = httpx.post(record.url + CHAT, json=BODY, trust_env=False, timeout=30)
            assert answer.status_code == 200
            code, said = record.end()
    assert code == 0
    assert "1 not answered by the server" in said
    kept = load_requests(tmp_path / "kept" / "requests.jsonl")
    assert kept[-1].expected is not None
    assert kept[-1].expected.token_ids, "the first request that it answers is asked for its token ids"
    assert kept[-1].runtime.engine == "vllm"


def test_answers_without_token_ids_are_counted_with_the_reason(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    with running("--upstream", upstream.url, "--passive", "-o", tmp_path / "kept") as record:
        httpx.post(record.url + CHAT, json=BODY, trust_env=False)
        code, said = record.end()
    assert code == 0
    assert "1 envelope of 1 request written" in said
    assert "1 recorded without token ids: --passive does not request them" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--upstream", "nonsense", "-o", "kept"], "not an http or https URL"),
        (["--upstream", "http://user:pass@host", "-o", "kept"], "user name or password"),
        (["--upstream", "http://127.0.0.1:9", "-o", "kept", "--rate", "2"], "--rate 2"),
        (["--upstream", "http://127.0.0.1:9", "-o", "kept", "--listen", "8100"], "not HOST:PORT"),
        (["--upstream", "http://127.0.0.1:9", "-o", "kept", "--listen", "127.0.0.1:99999"], "not HOST:PORT"),
        (["--upstream", "http://127.0.0.1:9", "-o", "kept", "--redact", "all"], "no such choice"),
        (["--upstream", "http://127.0.0.1:9", "-o", "mine.jsonl"], "exists already"),
        (["--upstream", "http://127.0.0.1:9", "-o", "no/where/x.jsonl"], "not a folder"),
        (["--upstream", "http://127.0.0.1:9", "-o", "kept", "--api-key-env", "NO_SUCH_VAR"], "is not set"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text("mine\n")
    done = Rip(monkeypatch, capsys)("record", *arguments)
    assert (done.code, says in done.err) == (2, True), done.err
    assert Path("mine.jsonl").read_text() == "mine\n"


def test_a_port_in_use_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = Rip(monkeypatch, capsys)(
            "record", "--upstream", "http://127.0.0.1:9", "-o", "k", "--listen", listen
        )
    assert done.code == 2
    assert listen in done.err
    assert "in use" in done.err
