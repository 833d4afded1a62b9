"""The recording proxy between client and server: what the client gets, the server is asked, and is kept."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.proxying import recording, values
from fakes.upstream import (
    CHAT,
    COMPLETIONS,
    FINGERPRINT,
    FakeUpstream,
    fake_upstream,
    id_of,
    logprob_of,
    word_of,
)

MESSAGES = [{"role": "user", "content": "Name three colours."}]
KEY = "sk-a-key-that-must-never-be-kept"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "The sky is"}),
    "token ids": (COMPLETIONS, {"prompt": [504, 6376, 314], "temperature": 0}),
    "several prompts, n": (COMPLETIONS, {"prompt": ["The sky is", "A cat"], "n": 2}),
    "echo": (COMPLETIONS, {"prompt": "The sky is", "echo": True}),
    "logprobs": (COMPLETIONS, {"prompt": "The sky is", "logprobs": 2}),
    "own ids": (COMPLETIONS, {"prompt": "The sky is", "return_token_ids": True}),
    "chat": (CHAT, {"messages": MESSAGES, "max_completion_tokens": 5, "max_tokens": 6}),
    "chat, n": (CHAT, {"messages": MESSAGES, "n": 3}),
    "chat, logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "chat, top_logprobs alone": (CHAT, {"messages": MESSAGES, "top_logprobs": 2}),
}


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with fake_upstream() as app:
        yield app


def post(url: str, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(url + path, json=body, headers=headers, trust_env=False, timeout=20)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_the_client_gets_what_it_would_get_without_the_proxy(
    upstream: FakeUpstream, tmp_path: Path, case: str, stream: bool
) -> None:
    path, body = CASES[case]
    body = {"model": "plain", **body, "stream": stream}
    with recording(upstream.url, tmp_path / "r") as proxy:
        direct, through = post(upstream.url, path, body), post(proxy.url, path, body)
    assert values(through) == values(direct)
    assert (through.status_code, through.headers["content-type"]) == (200, direct.headers["content-type"])
    asked = upstream.requests[-1][2]
    if case == "echo":
        assert asked == body, "with echo, an addition would change the text"
    elif case != "own ids":
        assert asked["return_token_ids"] is True, "the server was asked for more than the client asked"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_envelope_holds_request_and_answer(upstream: FakeUpstream, tmp_path: Path, stream: bool) -> None:
    body = {
        "model": "plain",
        "messages": MESSAGES,
        "temperature": 0,
        "seed": None,
        "max_completion_tokens": 4,
    }
    body |= {"stream": stream, "user": "u-1", "response_format": {"type": "text"}}
    with recording(upstream.url, tmp_path / "r") as proxy:
        post(proxy.url, CHAT, body, **{"X-Request-Id": "mine"})
        (kept,) = proxy.envelopes()
    steps = range(4)
    assert kept.request_id == "mine"
    assert kept.messages == MESSAGES
    assert kept.prompt_token_ids == upstream_prompt_ids()
    assert kept.sampling.model_dump(exclude_none=True) == {"temperature": 0, "max_tokens": 4}, "silence stays"
    others = {"model": "plain", "user": "u-1", "response_format": {"type": "text"}, "stream": stream}
    assert kept.request == others
    assert kept.logprobs is None
    assert (kept.runtime.engine, kept.runtime.engine_version) == ("vllm", "0.32.0")
    assert kept.expected is not None
    assert kept.expected.token_ids == [id_of(i) for i in steps]
    assert kept.expected.logprobs == [logprob_of(i) for i in steps]
    assert kept.expected.text == "".join(map(word_of, steps))
    assert kept.expected.finish_reason == "length"
    assert kept.context is not None
    assert kept.context.system_fingerprint == FINGERPRINT
    assert (kept.context.status, kept.context.stream, kept.context.route) == (200, stream, CHAT)
    assert kept.context.ttft_ms is not None
    assert kept.context.latency_ms >= kept.context.ttft_ms
    assert kept.unknown_fields() == []


def upstream_prompt_ids() -> list[int]:
    from fakes.upstream import ids_of_prompt

    return ids_of_prompt(json.dumps(MESSAGES))


def test_each_prompt_gets_an_envelope_and_each_sample_is_kept(upstream: FakeUpstream, tmp_path: Path) -> None:
    body = {"model": "plain", "prompt": ["The sky is", "A cat"], "n": 2, "max_tokens": 3}
    with recording(upstream.url, tmp_path / "r") as proxy:
        post(proxy.url, COMPLETIONS, body, **{"X-Request-Id": "call"})
        post(proxy.url, COMPLETIONS, {**body, "stream": True}, **{"X-Request-Id": "call"})
        kept = proxy.envelopes()
    assert [one.request_id for one in kept] == ["call-0", "call-1", "call-0~2", "call-1~2"]
    assert [one.prompt_text for one in kept] == ["The sky is", "A cat"] * 2
    for one in kept:
        assert one.context is not None
        assert one.context.batch_id == "call"
        assert one.expected is not None
        assert one.expected.token_ids == [id_of(i) for i in range(3)]
        assert one.expected.samples is not None
        assert [sample.token_ids for sample in one.expected.samples] == [[id_of(i) for i in range(1, 4)]]


def test_everything_else_passes_unchanged(upstream: FakeUpstream, tmp_path: Path) -> None:
    with recording(upstream.url, tmp_path / "r") as proxy:
        for method in ("GET", "PUT", "DELETE", "PATCH", "POST"):
            answer = httpx.request(
                method, proxy.url + "/echo/a%2Fb?x=1&y=%20", content=b"\x00\xff raw", trust_env=False
            )
            assert (answer.status_code, answer.content) == (207, b"\x00\xff raw")
            assert answer.headers["x-method"] == method
            assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
            assert upstream.requests[-1][1] == "/echo/a%2Fb?x=1&y=%20"
        missing = httpx.get(proxy.url + "/nope", trust_env=False)
        assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
        assert proxy.envelopes() == []
    assert proxy.recorder.counts.passed == 6


def test_a_large_body_is_passed_on_in_pieces(upstream: FakeUpstream, tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield from [b"x" * 100_000] * 30

    with recording(upstream.url, tmp_path / "r") as proxy:
        answer = httpx.post(proxy.url + "/echo", content=pieces(), trust_env=False, timeout=20)
    assert answer.content == b"x" * 3_000_000
    assert upstream.headers[-1]["transfer-encoding"] == "chunked", "it was not collected first"


def test_headers_reach_the_server_but_for_those_of_one_connection(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    sent = {"Authorization": f"Bearer {KEY}", "X-Mine": "1", "Connection": "keep-alive, X-Hop", "X-Hop": "2"}
    with recording(upstream.url, tmp_path / "r") as proxy:
        post(proxy.url, COMPLETIONS, {"model": "plain", "prompt": "a"}, **sent)
    came = upstream.headers[-1]
    assert (came["authorization"], came["x-mine"]) == (f"Bearer {KEY}", "1")
    assert "x-hop" not in came
    assert came["host"] == upstream.url.removeprefix("http://")


def test_no_credential_is_kept_anywhere(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Not even where request or answer repeat it."""
    secrets = {
        "Authorization": f"Bearer {KEY}",
        "Cookie": "session=cookie-of-a-session-1",
        "X-Api-Key": "k-1234567",
    }
    upstream.stream = (f'data: {{"error": {{"message": "bad key {KEY}"}}}}\n\n'.encode(),)
    with recording(upstream.url, tmp_path / "r") as proxy:
        for model in ("plain", "fails", "told"):
            body = {"model": model, "prompt": "a", "stream": model == "told", "api_key": "sk-in-the-body"}
            post(proxy.url, COMPLETIONS + "?api_key=query-secret-1", body, **secrets)
            post(proxy.url, COMPLETIONS, body, **secrets)
        kept = proxy.kept_text()
    assert "bad key [redacted]" in kept, "the check sees what was written"
    for secret in (KEY, "cookie-of-a-session-1", "k-1234567", "query-secret-1", "sk-in-the-body"):
        assert secret not in kept
    assert KEY not in "".join(proxy.said)


def test_a_server_that_refuses_additions_is_asked_again_without(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    body = {"model": "refuses", "prompt": "The sky is"}
    with recording(upstream.url, tmp_path / "r") as proxy:
        answers = [post(proxy.url, COMPLETIONS, body) for _ in range(2)]
        kept = proxy.envelopes()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == post(upstream.url, COMPLETIONS, body).content
    tried = ["return_token_ids" in asked for _, _, asked in upstream.requests[:-1]]
    assert tried == [True, False, False], "once, and then it is known"
    assert len([line for line in proxy.said if "refuses" in line]) == 1
    assert kept[0].context is not None
    assert kept[0].context.notes == [
        "the upstream refused what was added to the request; it was sent once more without"
    ]
    assert kept[0].expected is not None
    assert kept[0].expected.token_ids is None
    assert kept[0].expected.text


def test_a_clients_own_mistake_stays_its_mistake(upstream: FakeUpstream, tmp_path: Path) -> None:
    body = {"model": "plain", "prompt": "The sky is", "temperature": -1}
    with recording(upstream.url, tmp_path / "r") as proxy:
        answer = post(proxy.url, COMPLETIONS, body)
        good = post(proxy.url, COMPLETIONS, {**body, "temperature": 0})
        wrong, right = proxy.envelopes()
    assert answer.content == post(upstream.url, COMPLETIONS, body).content
    assert good.status_code == 200
    assert wrong.expected is None
    assert wrong.context is not None
    assert (wrong.context.status, wrong.context.error) == (400, "temperature must be non-negative")
    assert wrong.request == {"model": "plain", "temperature": -1}, "kept, though no sampling field takes it"
    assert right.expected is not None
    assert right.expected.token_ids, "the additions go on"


def test_errors_of_the_server_pass_and_are_counted(upstream: FakeUpstream, tmp_path: Path) -> None:
    with recording(upstream.url, tmp_path / "r") as proxy:
        answer = post(proxy.url, CHAT, {"model": "fails", "messages": MESSAGES})
        (kept,) = proxy.envelopes()
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "out of memory")
    assert kept.expected is None
    assert kept.context is not None
    assert (kept.context.finish_reason, kept.context.error) == ("error", "out of memory")
    assert proxy.recorder.counts.refused == 1


def test_a_server_that_is_not_there_is_a_502(tmp_path: Path) -> None:
    with recording("http://127.0.0.1:9", tmp_path / "r") as proxy:
        answer = post(proxy.url, CHAT, {"model": "plain", "messages": MESSAGES})
        (kept,) = proxy.envelopes()
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "upstream_error"
    assert kept.messages == MESSAGES
    assert kept.expected is None
    assert proxy.recorder.counts.unreachable == 1


def test_a_stream_that_breaks_off_breaks_off_for_the_client_too(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    def received(url: str) -> tuple[bytes, bool]:
        got, broke = b"", False
        body = {"model": "breaks", "prompt": "a", "stream": True}
        with httpx.stream("POST", url + COMPLETIONS, json=body, trust_env=False) as response:
            try:
                for piece in response.iter_raw():
                    got += piece
            except httpx.RemoteProtocolError:
                broke = True
        return got, broke

    with recording(upstream.url, tmp_path / "r") as proxy:
        direct, through = received(upstream.url), received(proxy.url)
        (kept,) = proxy.envelopes()
    assert through == direct
    assert through[1], "the check sees a break"
    assert kept.expected is None
    assert kept.context is not None
    assert kept.context.finish_reason == "upstream broke off"
    assert kept.context.partial is not None
    assert kept.context.partial.token_ids == [id_of(0), id_of(1)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_cancels_its_request(
    upstream: FakeUpstream, tmp_path: Path, stream: bool
) -> None:
    body = {"model": "waits", "prompt": "a", "stream": stream}
    with recording(upstream.url, tmp_path / "r") as proxy:
        if stream:
            with httpx.stream("POST", proxy.url + COMPLETIONS, json=body, trust_env=False) as response:
                first = next(response.iter_raw())
            assert word_of(0).encode() in first, "it came before the rest was there"
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(proxy.url + COMPLETIONS, json=body, trust_env=False, timeout=0.3)
        assert upstream.cancelled.wait(10)
        (kept,) = proxy.envelopes()
    assert kept.context is not None
    assert kept.context.finish_reason == "client disconnected"
    assert kept.expected is None
    assert (kept.context.partial is not None) is stream
    assert proxy.recorder.counts.disconnected == 1


def test_events_of_any_form_come_through_whole(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Carriage returns, comments, several data lines, names, events cut anywhere."""
    first, last = (
        '{"index":0,"text":"é","token_ids":[7],"logprobs":null,"finish_reason":' + end + "}]}"
        for end in ("null", '"stop"')
    )
    head = '{"id":"c","choices":['
    text = (
        f": ping\r\n\r\nevent: token\r\nid: 1\r\ndata: {head}\r\ndata: {first}\r\n\r\n"
        f"data:{head}{last}\n\nretry: 5\n\ndata: not json\n\ndata: [DONE]\n\n"
    ).encode()
    upstream.stream = tuple(text[i : i + 7] for i in range(0, len(text), 7))
    body = {"model": "told", "prompt": "a", "stream": True}
    with recording(upstream.url, tmp_path / "r") as proxy:
        through = post(proxy.url, COMPLETIONS, body).content
        (kept,) = proxy.envelopes()
    stripped = text.replace(b'"token_ids":[7]', b'"token_ids":null').replace(b"data:{", b"data: {")
    assert through == stripped.replace(b"[\r\ndata: {", b"[{")
    assert kept.expected is None, "an event that is no JSON makes the answer doubtful"
    assert kept.context is not None
    assert kept.context.partial is not None
    assert kept.context.partial.token_ids == [7, 7]


def test_without_additions_bytes_are_not_touched(upstream: FakeUpstream, tmp_path: Path) -> None:
    upstream.stream = (b'data: { "choices" : [ ] }\r', b"\n\r\ndata: [DONE]\n")
    body = {"model": "told", "prompt": "a", "stream": True}
    with recording(upstream.url, tmp_path / "r", passive=True) as proxy:
        through = httpx.post(proxy.url + COMPLETIONS, content=json.dumps(body, indent=1), trust_env=False)
    assert through.content == b"".join(upstream.stream)
    assert upstream.requests[-1][2] == body


def test_a_server_that_compresses_unasked_is_understood(upstream: FakeUpstream, tmp_path: Path) -> None:
    body = {"model": "zips", "prompt": "a"}
    with recording(upstream.url, tmp_path / "r") as proxy:
        through = post(proxy.url, COMPLETIONS, body, **{"Accept-Encoding": "gzip"})
        (kept,) = proxy.envelopes()
    assert upstream.headers[-1]["accept-encoding"] == "identity"
    assert values(through) == values(post(upstream.url, COMPLETIONS, body))
    assert kept.expected is not None
    assert kept.expected.token_ids == [id_of(i) for i in range(4)]


@pytest.mark.parametrize("engine", [None, "sglang"])
def test_of_an_unknown_server_nothing_is_asked(
    upstream: FakeUpstream, tmp_path: Path, engine: str | None
) -> None:
    with recording(upstream.url, tmp_path / "r", engine=engine) as proxy:
        post(proxy.url, COMPLETIONS, {"model": "plain", "prompt": "a"})
        (kept,) = proxy.envelopes()
    assert upstream.requests[-1][2] == {"model": "plain", "prompt": "a"}
    assert kept.expected is not None
    assert kept.expected.token_ids is None
    assert kept.expected.text


def test_the_rate_chooses_the_same_requests_every_time(upstream: FakeUpstream, tmp_path: Path) -> None:
    def chosen(folder: str, **how: Any) -> set[str]:
        with recording(upstream.url, tmp_path / folder, **how) as proxy:
            with httpx.Client(trust_env=False) as client:
                for i in range(40):
                    headers = {"X-Request-Id": f"r{i}"}
                    client.post(
                        proxy.url + COMPLETIONS, json={"model": "plain", "prompt": "a"}, headers=headers
                    )
            assert proxy.recorder.counts.generating == 40
            return {kept.request_id for kept in proxy.envelopes()}

    some = chosen("a", rate=0.4, seed=1)
    assert 5 < len(some) < 30
    assert chosen("b", rate=0.4, seed=1) == some
    assert chosen("c", rate=0.4, seed=2) != some
    assert chosen("d", rate=0.0) == set()


def test_requests_that_run_at_once_are_all_kept(upstream: FakeUpstream, tmp_path: Path) -> None:
    def ask(index: int) -> None:
        body = {"model": "plain", "prompt": "a", "stream": True, "max_tokens": 20}
        answer = post(proxy.url, COMPLETIONS, body, **{"X-Request-Id": f"r{index}"})
        assert answer.status_code == 200

    upstream.delay_s = 0.002
    with recording(upstream.url, tmp_path / "r") as proxy:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = proxy.envelopes()
    assert {one.request_id for one in kept} == {f"r{i}" for i in range(24)}
    assert all(one.expected and len(one.expected.token_ids or ()) == 20 for one in kept)
    assert len({one.context.raw for one in kept if one.context}) == 24


def test_files_are_the_owners_alone(upstream: FakeUpstream, tmp_path: Path) -> None:
    with recording(upstream.url, tmp_path / "r") as proxy:
        post(proxy.url, COMPLETIONS, {"model": "plain", "prompt": "a", "stream": True})
        (kept,) = proxy.envelopes()
    assert kept.context is not None
    assert kept.context.raw is not None
    assert (tmp_path / "r" / kept.context.raw).is_file()
    for path in (tmp_path / "r").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("redact", ["text", "ids"])
def test_redaction_leaves_no_text(upstream: FakeUpstream, tmp_path: Path, redact: str) -> None:
    body = {"model": "plain", "prompt": "my secret question", "user": "someone", "n": 2}
    with recording(upstream.url, tmp_path / "r", redact=redact) as proxy:
        post(proxy.url, COMPLETIONS, body)
        kept = proxy.kept_text()
        (one,) = proxy.envelopes()
    assert "secret question" not in kept
    assert "someone" not in kept
    assert word_of(1) not in kept
    assert not (tmp_path / "r" / "raw").exists()
    assert (one.prompt_token_ids is not None) is (redact == "text")
    assert one.context is not None
    assert one.context.status == 200, "what is not private stays readable"


def test_an_answer_beyond_the_limit_is_passed_on_whole_and_said_to_be_cut(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    body = {"model": "plain", "prompt": "a", "stream": True, "max_tokens": 200}
    with recording(upstream.url, tmp_path / "r", limit=5000) as proxy:
        through, direct = post(proxy.url, COMPLETIONS, body), post(upstream.url, COMPLETIONS, body)
        (kept,) = proxy.envelopes()
    assert values(through) == values(direct)
    assert kept.expected is None
    assert kept.context is not None
    assert kept.context.notes is not None
    assert "the first 5000" in kept.context.notes[0]
