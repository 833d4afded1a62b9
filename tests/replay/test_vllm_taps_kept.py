"""Replays on a vLLM server that end early with taps in it, and what is said of taps that are not there."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.command_line import Rip
from fakes.failing_server import Json, Send
from fakes.inference import Vllm
from fakes.replay_lab import PROMPT, Lab, Replayed, envelope, greedy
from fakes.tapped_server import TappedVllm
from fakes.toy_model import MODEL, VOCABULARY
from rip.replay.engines.http import sending, vllm_sites
from rip.replay.engines.http.answer_rows import Answer, Event
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput, EngineFailed, Interrupted
from rip.schemas.fingerprint import Fingerprint, Section, fact


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def observed(lab: Lab, server: TappedVllm, *envelopes: Envelope, **options: Any) -> Replayed:
    """A replay with the sites of a server that runs."""
    server.folder = lab.folder / "taps"
    server.begin()
    lab.stack.callback(server.end)
    opening = {"sites": re.compile(""), "tap": server.folder}
    return lab("vllm", server, *envelopes, opening=opening, capture="sites", **options)


def kept(lab: Lab) -> list[tuple[int, bool]]:
    """Of every kept row its token and whether its sites were seen."""
    parts = sorted(Path(f"{lab.last}.parts").glob("*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert [row["position"] for row in rows] == list(range(len(rows)))
    return [(row["token_id"], any(row["site_hash"] or b"")) for row in rows]


@pytest.mark.parametrize("kept_back", [0, 2])
def test_what_was_told_and_observed_is_kept_when_a_replay_is_interrupted(
    kept_back: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    come: list[Event] = []
    both = threading.Event()
    plain_add = Answer.add

    def add(answer: Answer, event: Event) -> None:
        plain_add(answer, event)
        come.append(event)
        if len(come) == 2:
            both.set()

    def interrupt() -> None:
        both.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(Answer, "add", add)
    server = TappedVllm(fault="drips", kept_back=kept_back, before_idle=interrupt)
    with pytest.raises(Interrupted, match=r"interrupted; 5 rows are kept in"):
        observed(lab, server)
    # What workers held back they wrote when the request was given up.
    assert kept(lab) == [(token, True) for token in [*PROMPT, greedy(PROMPT)[0]]]
    assert server.cancelled == 1
    assert lab.left.sites


def test_tokens_without_sites_are_kept_when_a_server_dies(lab: Lab) -> None:
    with pytest.raises(EngineFailed, match=r"5 rows are kept in"):
        observed(lab, TappedVllm(fault="dies", kept_back=5))
    assert kept(lab) == [*((token, True) for token in PROMPT), (greedy(PROMPT)[0], False)]


def test_rows_that_are_taken_while_an_answer_goes_on_are_those_of_a_whole_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    plain = vllm_sites.VllmTaps.rows_of_running_answer

    async def counted(taps: Any, answer: Answer) -> Any:
        rows = await plain(taps, answer)
        taken.append(0 if rows is None else len(rows.token_ids))
        return rows

    monkeypatch.setattr(vllm_sites.VllmTaps, "rows_of_running_answer", counted)
    whole = observed(lab, TappedVllm(kept_back=2))
    assert taken == []
    monkeypatch.setattr(sending, "TAPS_READ_S", 0.0)
    other = Lab(lab.folder / "other", lab.stack)
    other.folder.mkdir()
    pieces = observed(other, TappedVllm(kept_back=2))
    assert 0 < sum(taken) < len(pieces.rows)
    columns = ("position", "token_id", "site_hash", "topk_ids", "batch_size")
    assert [[row.get(name) for name in columns] for row in pieces.rows] == [
        [row.get(name) for name in columns] for row in whole.rows
    ]
    assert all(any(row["site_hash"]) for row in pieces.rows[:-1])


def test_tokens_that_are_scored_in_one_pass_are_observed_too(lab: Lab) -> None:
    recorded = envelope(expected={"token_ids": greedy(PROMPT)})
    trace = observed(lab, TappedVllm(), recorded, mode="golden-prefill")
    assert trace.tokens() == greedy(PROMPT)
    assert [any(row["site_hash"] or b"") for row in trace.rows] == [True] * (len(trace.rows) - 1) + [False]


# Taps that are not there


def test_a_tap_folder_that_nobody_writes_into_is_said_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lab.start(Vllm())
    said: list[str] = []
    for name, message in (("none", "there is no such folder"), ("empty", "no rank has written there")):
        folder = lab.folder / name
        if name == "empty":
            folder.mkdir()
            monkeypatch.setattr(vllm_sites, "SERVING_S", 0.0)
        opening = {"sites": re.compile(""), "tap": folder, "say": said.append}
        with pytest.raises(EngineFailed, match=message):
            lab("vllm", server, opening=opening, capture="sites")
    assert said[-1] == f"waiting for the taps of the server in {lab.folder / 'empty'}"
    dead = TappedVllm(folder=lab.folder / "dead")
    dead.begin()
    dead.end()
    monkeypatch.setattr(vllm_sites, "SERVING_S", 3600.0)
    with pytest.raises(EngineFailed, match="has ended"):
        lab("vllm", server, opening={"sites": re.compile(""), "tap": dead.folder}, capture="sites")


@pytest.fixture
def rip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Rip(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("engine", "options", "message", "fix"),
    [
        ("vllm", ["--sites", "mlp"], "are read from its tap folder", "with --tap"),
        ("vllm", ["--capture", "sites"], "are read from its tap folder", "with --tap"),
        ("vllm", ["--tap", "nowhere"], "--tap nowhere: no such folder", "RIP_TAP"),
        (
            "openai",
            ["--sites", "mlp"],
            "the engine openai does not support the capture of sites",
            "without --sites",
        ),
        ("openai", ["--tap", "."], "the engine openai writes no tap folder", "leave --tap out"),
    ],
)
def test_sites_that_cannot_be_observed_are_refused_where_they_are_asked_for(
    engine: str,
    options: list[str],
    message: str,
    fix: str,
    rip: Callable[..., Any],
    lab: Lab,
    tmp_path: Path,
) -> None:
    server = lab.start(Vllm())
    (tmp_path / "r.jsonl").write_text(json.dumps(envelope().to_object()) + "\n")
    asked = (
        "replay",
        "r.jsonl",
        "--url",
        server.url,
        "--engine",
        engine,
        "--model",
        MODEL,
        "-o",
        "t.parquet",
    )
    done = rip(*asked, *options)
    assert (done.code, server.asked("/v1/completions")) == (2, [])
    assert message in done.err
    assert fix in done.err
    assert rip(*asked).code == 0


# What a server does not tell


def test_synthetic_neighbours_are_drawn_from_the_vocabulary_or_refused(lab: Lab) -> None:
    server = lab.start(Vllm(together=3))
    with pytest.raises(BadInput, match="the size of the vocabulary is not known") as raised:
        lab("vllm", server, fill=2)
    assert "--model" in raised.value.fix
    assert "--neighbours SET.jsonl" in raised.value.fix
    assert server.asked("/v1/completions") == []
    known = Section(facts={"vocab_size": fact(VOCABULARY, "test")})
    lab(
        "vllm",
        server,
        fill=2,
        environment=Fingerprint.build("0.1.0", "2026-07-14T09:00:00Z", {"model": known}),
    )
    prompts = [asked["prompt"] for asked in server.asked("/v1/completions")]
    assert len(prompts) == 3
    assert all(token < VOCABULARY for prompt in prompts for token in prompt)


class Frugal(Vllm):
    """As vLLM with its own `--max-logprobs`: the refusal comes as an event."""

    async def POST_v1_completions(self, asked: Json, send: Send) -> None:
        if asked["logprobs"] <= 20:
            await super().POST_v1_completions(asked, send)
            return
        said = f"Requested sample logprobs of {asked['logprobs']}, which is greater than max allowed: 20"
        await self.stream(send, [{"error": {"message": said, "type": "BadRequestError", "code": 400}}])


def test_more_likely_tokens_than_a_server_tells_are_refused_with_both_ways_out(lab: Lab) -> None:
    server = lab.start(Frugal())
    with pytest.raises(EngineFailed, match=r"r0: --topk 50, .* at most 20") as raised:
        lab("vllm", server, topk=50)
    assert raised.value.fix == "use --topk 20, or start the server with --max-logprobs 50"
    assert lab("vllm", server, topk=20).tokens() == greedy(PROMPT)
