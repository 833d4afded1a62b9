"""The kinds of foreign text that rip reads: seeds from goldens and builders of the tests, and the reader."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fakes import pasted_texts
from fuzz import files
from fuzz.mutate import mutate
from rip.diverge.present.findings.labels import label
from rip.diverge.present.findings.sentences import sentence as finding_sentence
from rip.diverge.present.first_screen.compose import Scene, first_screen
from rip.diverge.present.verdict_sentences import headline
from rip.experiments.new_envelope import read_prompts
from rip.experiments.new_envelope import read_sampling as read_new_sampling
from rip.experiments.replay_plan.options import kept_positions, read_sampling
from rip.experiments.settings_search.sentences import run_rows
from rip.experiments.settings_search.sentences import sentence as narrow_sentence
from rip.experiments.settings_search.two_lanes import parse_vary
from rip.fingerprint.drift import compare
from rip.fingerprint.load import from_bytes
from rip.fingerprint.present.drift_report import to_html, to_markdown
from rip.fingerprint.present.summary import summary_rows
from rip.fingerprint.present.warnings import list_warnings
from rip.replay.engines.hf.settings import parse_settings as parse_hf_settings
from rip.replay.engines.http.settings import parse_settings as parse_server_settings
from rip.replay.proxy.exchange import Answer
from rip.replay.proxy.imported import import_files
from rip.replay.request.identity import completeness
from rip.replay.sse import Splitter, data_of, with_data
from rip.schemas.base import Document
from rip.schemas.change import Drift
from rip.schemas.check import Check
from rip.schemas.envelope import Envelope, load_requests
from rip.schemas.errors import RipError
from rip.schemas.fingerprint import Fingerprint
from rip.schemas.lane import load_lane
from rip.schemas.narrow import Narrow
from rip.schemas.redact import command_line, is_secret, without_secrets
from rip.schemas.redact import text as redacted_text
from rip.schemas.verdict import Verdict

GOLDEN = Path(__file__).parents[1] / "golden"
Mutate = Callable[[Random, Sequence[Any]], bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of text: where its seeds come from and what reads it.

    Attributes:
        name: As the table calls it.
        share: Of the inputs, relative to the other kinds.
        seeds: Made once in each worker, which has a folder for it.
        read: Accepts an input or raises `RipError`; the folder is for readers that take a file.
        mutate: How an input is made of the seeds.
    """

    name: str
    share: float
    seeds: Callable[[Path], Sequence[Any]]
    read: Callable[[bytes, Path], object]
    mutate: Mutate = field(default=mutate)


class Unescaped(Exception):
    """Foreign text stands in a page as markup."""


def check_markup(page: str) -> None:
    """Fail where foreign text opens a script; every mutation that is markup does so with `alert(1)`."""
    if "<script>alert" in page.lower() or "</script><script>" in page.lower():
        raise Unescaped(page[:300])


def _golden(*patterns: str) -> Callable[[Path], list[bytes]]:
    return lambda _: [path.read_bytes() for one in patterns for path in sorted(GOLDEN.glob(one))]


def _texts(*texts: str) -> Callable[[Path], list[bytes]]:
    return lambda _: [one.encode() for one in texts]


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def of_content(content: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(content)
        return read(path)

    return of_content


# Pasted text and fingerprints


def _pasted(folder: Path) -> list[bytes]:
    texts = [text.encode() for text in pasted_texts.KINDS.values()]
    journal = [b"Mar 04 10:00:01 host vllm[7]: " + line for line in pasted_texts.VLLM.encode().splitlines()]
    return [*texts, b"```\n" + texts[0] + b"```\n", b"\n".join(journal)]


def _fingerprints(folder: Path) -> list[bytes]:
    """As they are, and without the digests that would refuse every change."""
    whole = _golden("fingerprint-*.json")(folder)
    raw = json.loads((GOLDEN / "fingerprint-v1.json").read_bytes())
    sections = {
        name: {part: value for part, value in section.items() if part != "digest"}
        for name, section in raw["sections"].items()
    }
    open_to_change = {name: value for name, value in raw.items() if name != "root_digest"} | {
        "sections": sections
    }
    return [*whole, *[json.dumps(open_to_change).encode()] * 4]


def _read_fingerprint(content: bytes, folder: Path) -> None:
    found = from_bytes(content, "x")
    found.to_json()
    summary_rows(found)
    list_warnings(found)


_BASE: list[Fingerprint] = []


def _read_drift(content: bytes, folder: Path) -> None:
    if not _BASE:
        _BASE.append(from_bytes((GOLDEN / "fingerprint-v1.json").read_bytes(), "base"))
    now = from_bytes(content, "x")
    for a, b in ((_BASE[0], now), (now, _BASE[0])):
        found = compare(a, b)
        check_markup(to_html(found, a, b, ("a<script>alert(1)</script>", "b")))
        check_markup(to_markdown(found, a, b, ("a", "b<script>alert(1)</script>")))


# Requests


def _read_envelope(content: bytes, folder: Path) -> None:
    found = Envelope.from_json(content, "x")
    completeness(found)
    found.redacted(keep_token_ids=True)
    found.to_json()


def _request_sets(folder: Path) -> list[bytes]:
    lines = [json.dumps(json.loads(one)).encode() for one in _golden("envelope-v1*.json")(folder)]
    small = [
        b'{"request_id":"r%d","prompt_token_ids":[1,2],"sampling":{"temperature":0}}' % n for n in range(3)
    ]
    return [b"\n".join(lines), b"\n".join(small) + b"\n"]


_BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
_ANSWER = {
    "id": "chatcmpl-9", "model": "m-2026", "system_fingerprint": "fp_1",
    "usage": {"prompt_tokens_details": {"cached_tokens": 2}},
    "choices": [{
        "index": 0, "finish_reason": "stop", "token_ids": [5, 6],
        "message": {"role": "assistant", "content": "Hello.", "tool_calls": [
            {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        "logprobs": {"content": [{"token": "token_id:5", "logprob": -0.5}, {"token": ".", "logprob": -0.25}]},
    }],
}  # fmt: skip
_VLLM_PARAMS = "SamplingParams(n=1, temperature=0.5, top_k=-1, seed=7, stop=['a, b'], output_kind=<K.D: 1>)"
_SGLANG = {
    "event": "request.finished", "rid": "r1",
    "obj": {"rid": "r1", "text": "Hi", "sampling_params": {"max_new_tokens": 3}},
    "out": {"text": " so", "output_ids": [5], "meta_info": {"id": "r1", "finish_reason": {"type": "stop"}}},
}  # fmt: skip


def _logs(folder: Path) -> list[bytes]:
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": _BODY}
    answer = {"custom_id": "a", "response": {"status_code": 200, "body": _ANSWER}, "error": None}
    begin = "INFO 03-04 10:00:00 [logger.py:39] "
    vllm = (
        f"{begin}Received request cmpl-1: prompt: 'it\\'s, params: \\n', params: {_VLLM_PARAMS}, "
        "prompt_token_ids: [5, 6], lora_request: None.\n"
        f"{begin}Request chatcmpl-1 details: prompt: 'Hi', prompt_token_ids: [1], prompt_embeds shape: N.\n"
        f"{begin}Received request chatcmpl-1: params: {_VLLM_PARAMS}, lora_request: None.\n"
    )
    lines = [
        [batch, answer], [{"request": _BODY, "response": _ANSWER}], [{**_BODY, "response": _ANSWER}],
        [_SGLANG],
        [{"prompt": [1, 2], "max_tokens": 2, "stop": ["a"]}],
    ]  # fmt: skip
    sets = ["\n".join(json.dumps(one) for one in several) for several in lines]
    return [one.encode() for one in (*sets, vllm, f"[2026-03-04 10:00:00] {json.dumps(_SGLANG)}")]


def _read_log(path: Path) -> object:
    return import_files([path], "auto", {}, is_secret)


def _pickles(folder: Path) -> list[bytes]:
    request = {"rid": "r", "text": "The sky", "sampling_params": {"max_new_tokens": 3}, "stream": False}
    output = {"text": " is", "output_ids": [5, 6], "meta_info": {"finish_reason": {"type": "stop"}}}
    dumps = {"server_args": {"model_path": "m"}, "requests": [(request, output, 1.0, 2.0)]}
    return [
        pickle.dumps(one, protocol)
        for one in (dumps, [(request, output, 1.0, 2.0)])
        for protocol in (0, 2, 4)
    ]


def _streams(folder: Path) -> list[bytes]:
    chunk = json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "token_ids": [1]}]})
    return [
        f"data: {chunk}\n\ndata: {chunk}\n\ndata: [DONE]\n\n".encode(),
        f": ping\r\n\r\nevent: x\r\ndata: {chunk}\r\ndata: y\r\n\r\n".encode(),
        b"\xef\xbb\xbfdata:" + json.dumps(_ANSWER).encode() + b"\r\r",
    ]


def _read_stream(content: bytes, folder: Path) -> None:
    splitter, answer, events = Splitter(), Answer(), []
    step = 1 + len(content) // 7
    for start in range(0, len(content), step):
        events += splitter.feed(content[start : start + step])
    if b"".join(events) + splitter.rest() != content:
        raise AssertionError("the events of a stream are not its bytes")
    for event in events:
        with_data(event, b"{}")
        data = data_of(event)
        try:
            answer.add(json.loads(data or b"null"))
        except (ValueError, RecursionError):
            continue


# Lanes and options

_LANE = (
    'engine = "vllm"\nmodel = "m"\nneighbours = 3\n[set]\nbatch_size = 8\ndtype = "bfloat16"\n'
    'list = [1, 2.5, "x"]\n[env]\nOMP_NUM_THREADS = "4"\n',
    'engine = "hf"\npython = "p/bin/python"\nurl = "http://u:p@h:1"\nset = { threads = 1, a.b = true }\n',
)
_OPTIONS = (
    "temperature=0.5", 'stop=["a","b"]', "stop=END", "seed=7", "top_k=-1", "logit_bias={\"5\": 1}",
    "max_tokens=4",
    "allowed_token_ids=[1,2]", "dtype=float32:bfloat16", "batch_size=8", "threads=2", "env.OMP_NUM_THREADS=1",
    "max-model-len=4096", "timeout=60", "device=cpu", "attention=sdpa", "57:58", "--api-key=sk-aaaaaaaaaaaa",
    "Authorization: Bearer abcdefgh", "http://user:secret@host/?token=abc",
)  # fmt: skip


def _read_option(content: bytes, folder: Path) -> None:
    text = content.decode("utf-8", "surrogateescape")
    redacted_text(text)
    command_line(text.split())
    without_secrets({"a": text})
    refused = []
    for read in _OPTION_READERS:
        try:
            read(text)
        except RipError as error:
            refused.append(error)
    if len(refused) == len(_OPTION_READERS):
        raise refused[0]


_OPTION_READERS: tuple[Callable[[str], object], ...] = (
    lambda text: read_sampling([text]),
    lambda text: read_new_sampling([text]),
    lambda text: parse_vary([text]),
    lambda text: parse_hf_settings([text]),
    lambda text: parse_server_settings([text], {}, True),
    lambda text: kept_positions(text, "tensors"),
)

# Documents of results


def _read_verdict(content: bytes, folder: Path) -> None:
    found = Verdict.from_json(content, "x")
    first_screen(found, Scene("result", (None, None)))
    headline(found)
    for cause in found.causes:
        label(cause)
        for one in (*cause.evidence, *cause.missing):
            finding_sentence(one)
    found.to_json()


def _small_verdicts(folder: Path) -> list[bytes]:
    return [one for one in _golden("verdict-v*.json")(folder) if len(one) < 10_000] + _cut_verdicts(folder)


def _cut_verdicts(folder: Path) -> list[bytes]:
    """The large ones with two causes and two changes each, of every cause at least once."""
    made = []
    for one in _golden("verdict-v2.json", "verdict-v3.json")(folder):
        whole = json.loads(one)
        causes, changes = whole.get("causes", []), whole.get("changes", [])
        for start in range(0, max(len(causes), 1), 2):
            small = {**whole, "causes": causes[start : start + 2], "changes": changes[start : start + 2]}
            made.append(json.dumps(small).encode())
    return made


def _read_narrow(content: bytes, folder: Path) -> None:
    found = Narrow.from_json(content, "x")
    narrow_sentence(found)
    run_rows(found)
    found.to_json()


def _document(form: type[Document]) -> Callable[[bytes, Path], object]:
    return lambda content, _: form.from_json(content, "x").to_json()


_PROMPTS = ('{"prompt":"a","id":"x"}\n{"chat":"Hi"}\n', '{"messages":[{"role":"user"}]}\n')

KINDS: tuple[Kind, ...] = (
    Kind("pasted text", 2, _pasted, _read_fingerprint),
    Kind("fingerprint", 6, _fingerprints, _read_fingerprint),
    Kind("drift, as HTML and Markdown", 0.3, _fingerprints, _read_drift),
    Kind("envelope", 12, _golden("envelope-*.json"), _read_envelope),
    Kind("request set", 8, _request_sets, _in_file("set.jsonl", load_requests)),
    Kind("bulk prompts", 8, _texts(*_PROMPTS), _in_file("p.jsonl", lambda path: list(read_prompts(path)))),
    Kind("lane file", 10, _texts(*_LANE), _in_file("lane.toml", lambda path: load_lane(path).settings())),
    Kind("options", 12, _texts(*_OPTIONS), _read_option),
    Kind("request log", 8, _logs, _in_file("log.jsonl", _read_log)),
    Kind("pickled dump", 6, _pickles, _in_file("dump.pkl", _read_log)),
    Kind("event stream", 14, _streams, _read_stream),
    Kind("verdict, as first screen", 2, _small_verdicts, _read_verdict),
    Kind("narrow", 4, _golden("narrow-v*.json"), _read_narrow),
    Kind("check", 6, _golden("check-v*.json"), _document(Check)),
    Kind("drift result", 6, _golden("drift-v1.json"), _document(Drift)),
    Kind("safetensors header", 10, files.safetensors, files.read_safetensors, files.mutate_safetensors),
    Kind("GGUF header", 8, files.ggufs, files.read_gguf),
    Kind("model folder", 1, files.model_folders, files.read_model_folder, files.mutate_model_folder),
    Kind("trace", 0.3, files.traces, files.read_trace, files.mutate_trace),
    Kind("report, HTML and Markdown", 0.01, files.result_folders, files.read_result, files.mutate_result),
)  # fmt: skip


def by_name(words: Sequence[str]) -> list[Kind]:
    """The kinds with one of the words in their names; all without words."""
    return [kind for kind in KINDS if not words or any(word in kind.name for word in words)]


def inputs(kind: Kind, seed: int, numbers: range, folder: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each of a kind's inputs; a number alone determines the content."""
    seeds = kind.seeds(Path(tempfile.mkdtemp(dir=folder)))
    for number in numbers:
        yield number, kind.mutate(Random(f"{seed}/{kind.name}/{number}"), seeds)
