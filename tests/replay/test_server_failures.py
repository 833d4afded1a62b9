"""Replays on servers that fail: what a user is told, and what is kept of what had come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.command_line import Rip
from fakes.failing_server import reply, running
from fakes.inference import (
    SERVERS,
    Ollama,
    OpenAi,
    Sglang,
)
from fakes.replay_lab import (
    PROMPT,
    TELL_TEXT,
    Lab,
    Replayed,
    envelope,
    greedy,
)
from fakes.toy_model import MODEL, text_of
from rip.replay.engines.base import Opening
from rip.replay.engines.http.answer_rows import Answer, Event
from rip.replay.engines.registry import engine_class
from rip.schemas.envelope import Envelope, Runtime
from rip.schemas.errors import EngineFailed


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


# Servers that fail


@pytest.mark.parametrize("engine", sorted(SERVERS))
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies", r"r0: .*(the connection broke|broke off)"),
        ("cut", r"r0: .*broke off inside"),
        ("ends", r"r0: the stream ended before the answer did"),
        ("html", r"r0: .*(text/html where a stream|not JSON)"),
        ("status:500", r"r0: .*answers 500: error 500"),
        ("status:429", r"r0: .*answers 429: error 429"),
    ],
)
def test_a_fault_of_the_server_is_named_and_what_had_come_is_kept(
    engine: str, fault: str, message: str, lab: Lab
) -> None:
    server = SERVERS[engine](fault=fault)
    if isinstance(server, Sglang):
        server.incremental = True
    with pytest.raises(EngineFailed, match=message) as raised:
        lab(engine, server)
    if fault == "status:429":
        assert "wait 7 s" in raised.value.fix
    came = fault in ("dies", "cut", "ends")
    if not came:  # a prompt that nobody answered is nothing to keep
        assert "kept" not in raised.value.message
        return
    assert f"kept in {lab.last}.parts" in raised.value.message
    if engine in TELL_TEXT:
        [result] = lab.left.results
        assert (result.reason, result.text) == ("broken off", text_of(greedy(PROMPT[1:])[:2]))
    else:
        rows = pq.read_table(f"{lab.last}.parts/part-00000.parquet").to_pylist()
        made = [row["token_id"] for row in rows[len(PROMPT) :]]
        # The last one's distribution had not come yet, and a row without it is not whole.
        assert made == greedy(PROMPT)[: 1 if came else 0]
    assert not lab.last.exists()


@pytest.mark.parametrize("engine", sorted(SERVERS))
def test_an_answer_of_another_shape_is_an_error_and_no_traceback(engine: str, lab: Lab) -> None:
    with pytest.raises(EngineFailed) as raised:
        lab(engine, SERVERS[engine](fault="shape"))
    assert "does not have the form of" in raised.value.message or "ended before" in raised.value.message


@pytest.mark.parametrize("engine", sorted(SERVERS))
def test_a_server_that_drips_is_given_up(engine: str, lab: Lab) -> None:
    with pytest.raises(EngineFailed, match=r"no whole answer within 1 s") as raised:
        lab(engine, SERVERS[engine](fault="drips"), given={"timeout": 1})
    assert "--set timeout" in raised.value.fix
    assert "kept in" in raised.value.message


@pytest.mark.parametrize("engine", sorted(SERVERS))
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_may_come_byte_by_byte(engine: str, line_end: bytes, lab: Lab) -> None:
    trace = lab(engine, SERVERS[engine](split="bytes", line_end=line_end))
    expected = greedy(PROMPT[1:] if engine in TELL_TEXT else PROMPT)
    assert trace.tokens() == ([] if engine in TELL_TEXT else expected)
    assert trace.texts() == [None if engine == "tensorrt-llm" else text_of(expected)]


def test_an_error_in_the_middle_of_an_answer_of_ollama_is_told_in_its_words(lab: Lab) -> None:
    with pytest.raises(EngineFailed, match=r"llama runner process has terminated"):
        lab("ollama", Ollama(fault="late error"))
    assert lab.left.results[0].text == text_of(greedy(PROMPT[1:])[:2])


@pytest.mark.parametrize("engine", ["openai", "sglang"])
def test_what_came_of_the_others_of_a_batch_is_kept_when_one_is_refused(
    engine: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two requests is refused when two tokens of the first have come, which goes on."""
    server = SERVERS[engine](fault="drips", incremental=True) if engine == "sglang" else OpenAi(fault="drips")

    come: list[Event] = []
    plain_add = Answer.add

    def add(answer: Answer, event: Event) -> None:
        plain_add(answer, event)
        come.append(event)

    async def refusing(send: Any, path: str) -> bool:
        if len(server.asked(path)) < 2:
            return True
        while len(come) < 2:
            await asyncio.sleep(0.002)
        await reply(send, {"error": {"message": "no"}}, 400)
        return False

    monkeypatch.setattr(Answer, "add", add)
    server.generation = refusing  # type: ignore[method-assign]
    with pytest.raises(EngineFailed, match=r"answers 400: no; .* kept"):
        lab(engine, server, envelope("good"), envelope("bad"), given={"batch_size": 2})
    assert server.cancelled == 1
    if engine == "openai":
        [result] = lab.left.results
        assert (result.request_id, result.text) == ("good", text_of(greedy(PROMPT[1:])[:2]))
    else:
        rows = pq.read_table(f"{lab.last}.parts/part-00000.parquet").to_pylist()
        assert greedy(PROMPT)[0] in [row["token_id"] for row in rows if row["request_id"] == "good"]


def test_earlier_answers_are_kept_when_a_later_one_fails(lab: Lab) -> None:
    server = OpenAi()
    lab.start(server)

    async def refusing(send: Any, path: str) -> bool:
        server.fault = "dies" if len(server.asked(path)) == 3 else ""
        return True

    server.generation = refusing  # type: ignore[method-assign]
    with pytest.raises(EngineFailed, match=r"c: .*3 texts are kept in"):
        lab("openai", server, *(envelope(name) for name in ("a", "b", "c", "d")))
    assert [(result.request_id, result.reason) for result in lab.left.results] == [
        ("a", "length"),
        ("b", "length"),
        ("c", "broken off"),
    ]


def test_a_server_that_is_not_there_is_named(lab: Lab) -> None:
    server = OpenAi()
    with running(server):
        url = server.url
    for engine in SERVERS:
        with pytest.raises(EngineFailed, match=r"cannot be reached"):
            engine_class(engine)(Opening(Runtime(), 3, model_name=MODEL, url=url))


# The command line


@pytest.fixture
def rip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Rip(monkeypatch, capsys)


def write(path: Path, *envelopes: Envelope) -> None:
    path.write_text("".join(f"{json.dumps(one.to_object())}\n" for one in envelopes))


def test_a_text_that_is_expected_and_comes_again_is_exit_0_and_another_one_1(
    rip: Callable[..., Any], lab: Lab, tmp_path: Path
) -> None:
    server = lab.start(OpenAi())
    right = text_of(greedy(PROMPT[1:]))
    write(tmp_path / "r.jsonl", envelope(expected={"text": right}))
    asked = ("--url", f"{server.url}/v1", "--engine", "openai", "--model", MODEL)
    done = rip("replay", "r.jsonl", *asked, "-o", "t.parquet")
    assert (done.code, "reproduced: 1 of 1" in done.err) == (0, True), done.err
    assert Replayed(tmp_path / "t.parquet").texts() == [right]
    write(tmp_path / "r.jsonl", envelope(expected={"text": right.replace("w", "v", 1)}))
    done = rip("replay", "r.jsonl", *asked, "-o", "u.parquet")
    assert (done.code, "reproduced: 0 of 1" in done.err) == (1, True), done.err


@pytest.mark.parametrize(
    ("engine", "fault", "message", "fix"),
    [
        ("sglang", "dies", "the connection broke", "check that the server is up"),
        ("openai", "dies", "1 text is kept in t.parquet.parts", "check that the server is up"),
        ("openai", "status:429", "answers 429", "the server says to wait 7 s"),
        ("tgi", "shape", "does not have the form of tgi", "--debug"),
    ],
)
def test_a_failing_server_is_exit_2_with_message_and_fix(
    engine: str, fault: str, message: str, fix: str, rip: Callable[..., Any], lab: Lab, tmp_path: Path
) -> None:
    server = lab.start(SERVERS[engine](fault=fault))
    write(tmp_path / "r.jsonl", envelope())
    done = rip(
        "replay", "r.jsonl", "--url", server.url, "--engine", engine, "--model", MODEL, "-o", "t.parquet"
    )
    said = " ".join(done.err.split())
    assert done.code == 2
    assert message in said
    assert fix in said
    assert (tmp_path / "t.parquet.parts").exists() == ("kept" in said)
    assert not (tmp_path / "t.parquet").exists()
