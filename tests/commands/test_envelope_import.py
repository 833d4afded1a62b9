"""`rip envelope import` as a user meets it: the shapes people have, joined and named; what is refused."""

from __future__ import annotations

import json
import pickle
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import Rip
from rip.schemas.envelope import Envelope, load_requests

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
ANSWER = {
    "id": "chatcmpl-9",
    "model": "m-2026",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello."},
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "Hello", "logprob": -0.5}, {"token": ".", "logprob": -0.25}]},
        }
    ],
}


@dataclass
class GenerateReqInput:
    """Named as SGLang's."""

    rid: str = "r"
    text: str = "The sky is"
    sampling_params: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 3})


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Rip:
    monkeypatch.chdir(tmp_path)
    return Rip(monkeypatch, capsys)


def write(name: str, *lines: Any) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def imported(rip: Rip, *arguments: str | Path) -> list[Envelope]:
    done = rip("envelope", "import", *arguments, "-o", "set.jsonl")
    assert done.code == 0, done.err
    return load_requests(Path("set.jsonl"))


def test_a_batchs_two_files_are_joined(rip: Rip) -> None:
    head = {"method": "POST", "url": "/v1/chat/completions"}
    asked = write(
        "in.jsonl",
        {"custom_id": "a", **head, "body": CHAT},
        {"custom_id": "b", **head, "body": CHAT},
        {"custom_id": "c", **head, "body": CHAT},
        {"custom_id": "d", "method": "POST", "url": "/v1/embeddings", "body": {"model": "e", "input": "x"}},
    )
    told = write(
        "out.jsonl",
        {"id": "1", "custom_id": "b", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}},
        {"id": "2", "custom_id": "a", "response": {"status_code": 200, "body": ANSWER}, "error": None},
    )
    answered, refused, alone = imported(rip, told, asked)
    assert [one.request_id for one in (answered, refused, alone)] == ["a", "b", "c"]
    assert answered.messages == CHAT["messages"]
    assert answered.sampling.model_dump(exclude_none=True) == {"temperature": 0, "max_tokens": 4}
    assert answered.expected is not None
    assert (answered.expected.text, answered.expected.finish_reason) == ("Hello.", "stop")
    assert answered.expected.logprobs == [-0.5, -0.25]
    assert answered.context is not None
    assert (answered.context.system_fingerprint, answered.context.status) == ("fp_1", 200)
    assert refused.expected is None
    assert refused.context is not None
    assert refused.context.error == "no"
    assert alone.expected is None
    assert stat.S_IMODE(Path("set.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "line",
    [
        {"request": CHAT, "response": ANSWER},
        {
            "request": {"url": "/v1/chat/completions", "body": CHAT},
            "response": {"status_code": 200, "body": ANSWER},
        },
        {**CHAT, "response": ANSWER},
        {"body": CHAT, "response": ANSWER},
    ],
    ids=["pair", "pair with heads", "body with answer", "body"],
)
def test_other_shapes_of_request_and_answer(rip: Rip, line: Any) -> None:
    (one,) = imported(rip, write("log.jsonl", line))
    assert one.request_id == "chatcmpl-9"
    assert one.messages == CHAT["messages"]
    assert one.request == {"model": "m"}
    assert one.expected is not None
    assert one.expected.text == "Hello."


def test_plain_request_bodies(rip: Rip) -> None:
    lines = [CHAT, {"prompt": ["a", "b"]}, {"prompt": [1, 2, 3], "request_id": "mine", "api_key": "sk-123"}]
    chat, first, second, ids = imported(rip, write("bodies.jsonl", *lines))
    assert chat.messages == CHAT["messages"]
    assert (first.prompt_text, second.prompt_text) == ("a", "b")
    assert (ids.request_id, ids.prompt_token_ids) == ("mine", [1, 2, 3])
    assert "sk-123" not in Path("set.jsonl").read_text()


def test_a_dump_and_a_log_of_sglang(rip: Rip) -> None:
    meta = {"finish_reason": {"type": "length"}, "id": "r"}
    output = {"text": " blue", "output_ids": [7, 8, 9], "meta_info": meta}
    Path("dump.pkl").write_bytes(pickle.dumps({"requests": [(GenerateReqInput(), output, 1.0, 2.0)]}))
    event = {"timestamp": "2026-11-30T10:00:00", "rid": "log-1"}
    asked = {"text": "A cat", "sampling_params": {"temperature": 0}}
    log = write(
        "requests.log",
        {**event, "event": "request.received", "obj": asked},
        {**event, "event": "request.finished", "obj": asked, "out": output},
    )
    dumped, logged = imported(rip, "dump.pkl", log)
    assert (dumped.request_id, dumped.sampling.max_tokens) == ("r", 3)
    assert (logged.request_id, logged.prompt_text) == ("log-1", "A cat")
    for one in (dumped, logged):
        assert one.expected is not None
        assert one.expected.token_ids == [7, 8, 9]
        assert one.runtime.engine == "sglang"


def test_the_models_hashes_are_filled_in(rip: Rip, tiny_model: Path) -> None:
    (one,) = imported(rip, write("log.jsonl", CHAT), "--model", tiny_model)
    (other,) = load_requests(created(rip, tiny_model))
    assert one.model_artifact_sha256 == other.model_artifact_sha256
    assert one.tokenizer_sha256 == other.tokenizer_sha256
    assert one.chat_template_sha256 == other.chat_template_sha256


def created(rip: Rip, model: Path) -> Path:
    done = rip("envelope", "create", "--model", model, "--prompt", "Hi", "-o", "made.json")
    assert done.code == 0, done.err
    return Path("made.json")


def test_values_that_nothing_can_apply_are_kept_and_said(rip: Rip) -> None:
    odd = {"temperature": -5, "max_tokens": 0, "logit_bias": {"abc": 1}, "logprobs": "many"}
    path = write("log.jsonl", {"prompt": "a", **odd}, {"prompt": "b", "temperature": 0, "max_tokens": 1})
    done = rip("envelope", "import", path, "-o", "set.jsonl")
    assert done.code == 0
    assert "log.jsonl:1: kept, though no engine can apply it" in done.err
    assert "1 request with a sampling field that no engine can apply: temperature -5" in done.err
    one, _ = load_requests(Path("set.jsonl"))
    assert {**(one.request or {}), "max_tokens": one.sampling.max_tokens} == odd, "nothing is lost"
    checked = rip("envelope", "check", "set.jsonl")
    assert checked.code == 1
    assert "log.jsonl:1: temperature was stated as -5" in checked.out
    assert "does not state temperature" not in checked.out
    assert "log.jsonl:1: max_tokens is 0" in checked.out


def test_answers_without_a_request_and_errors_are_counted(rip: Rip) -> None:
    told = write(
        "out.jsonl",
        {"custom_id": "a", "response": {"status_code": 500, "body": {"error": {"message": "boom"}}}},
        {"custom_id": "b", "response": None, "error": {"message": "expired"}},
        {"custom_id": "c", "response": {"status_code": 200, "body": ANSWER}},
        {"custom_id": "elsewhere", "response": {"status_code": 200, "body": ANSWER}},
    )
    asked = write("in.jsonl", *({"custom_id": name, "body": CHAT} for name in "abc"))
    done = rip("envelope", "import", asked, told, "-o", "set.jsonl")
    assert done.code == 0
    assert "3 envelopes, 1 with a complete answer" in done.err
    assert "2 answered with an error" in done.err
    assert "1 answer left out, without a request in any of the files: elsewhere" in done.err


def test_one_request_over_several_lines_is_read_as_one(rip: Rip) -> None:
    Path("one.json").write_text(json.dumps(CHAT, indent=2))
    done = rip("envelope", "import", "one.json", "-o", "set.jsonl")
    assert done.code == 0
    assert "1 envelope, 0 with a complete answer" in done.err
    (one,) = load_requests(Path("set.jsonl"))
    assert one.messages == CHAT["messages"]


def test_what_rip_wrote_itself_is_not_imported(rip: Rip) -> None:
    imported(rip, write("log.jsonl", CHAT))
    (Path("one.json")).write_text(json.dumps(json.loads(Path("set.jsonl").read_text()), indent=2))
    for name in ("set.jsonl", "one.json"):
        done = rip("envelope", "import", name, "-o", "again.jsonl")
        assert (done.code, "already an envelope" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n "model_type": "llama"\n}\n', "bad.jsonl: not a request in any known form"),
        ('[\n {"prompt": "a"}\n]\n', "bad.jsonl: one JSON array"),
        ('{"prompt": "a"}\n{"messages": []}\n', "bad.jsonl:2: the prompt"),
        ('\n{"nothing": 1}\n', "bad.jsonl:2: not a request"),
        ('{"prompt": "a"}\n{"prompt": \n', "bad.jsonl:2: not JSON"),
        ('{"custom_id": "x", "response": {"body": {}}}\n', "bad.jsonl:1: an answer to 'x'"),
        ('{"custom_id": "x", "body": {"prompt": "a"}}\n' * 2, "bad.jsonl:2: the custom_id 'x' occurs twice"),
        ('{"event": "request.finished", "obj": {"rid": "r"}, "out": {}}\n', "bad.jsonl:1: it has no prompt"),
        ("Receive: obj=GenerateReqInput(text='a')\n", "bad.jsonl:1: not JSON"),
        ("", "no request that rip can read"),
    ],
)
def test_a_bad_line_is_named(rip: Rip, text: str, says: str) -> None:
    Path("bad.jsonl").write_text(text)
    done = rip("envelope", "import", "bad.jsonl", "-o", "set.jsonl")
    assert done.code == 2
    assert says in done.err
    assert "fix:" in done.err
    assert not Path("set.jsonl").exists()


def test_options_that_cannot_be_used(rip: Rip) -> None:
    path = write("log.jsonl", CHAT)
    Path("set.jsonl").write_text("mine")
    for arguments, says in [
        ([path, "-o", "set.json"], "request set"),
        ([path, "-o", "set.jsonl"], "exists already"),
        ([path, "-o", "new.jsonl", "--format", "csv"], "no such choice"),
        (["absent.jsonl", "-o", "new.jsonl"], "cannot be read"),
        ([path, "-o", "new.jsonl", "--format", "sglang"], "log.jsonl:1"),
    ]:
        done = rip("envelope", "import", *arguments)
        assert (done.code, says in done.err) == (2, True), done.err
    assert Path("set.jsonl").read_text() == "mine"
