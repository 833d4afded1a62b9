"""`rip envelope` as a user meets it: made, shown, checked; what is refused, and what is kept private."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import Done
from rip.experiments.new_envelope import read_prompts
from rip.schemas.envelope import Envelope, load_envelope, load_requests

PUBLISHED = Path(__file__).parent.parent / "golden" / "envelope-published.json"


@dataclass
class Rip:
    """Runs `rip envelope …` in this process."""

    model: Path
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Done:
        from rip.cli import main

        self.monkeypatch.setattr(sys, "argv", ["rip", "envelope", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(stopped.value.code or 0), said.out, said.err)

    def create(self, *arguments: str | Path) -> Done:
        return self("create", "--model", self.model, *arguments)

    def write(self, name: str, **fields: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps({"request_id": "r0", "prompt_token_ids": [1, 2], **fields}))
        return path


@pytest.fixture
def rip(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rip:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Rip(tiny_model, tmp_path, monkeypatch, capsys)


def refused(done: Done, message: str, fix: str = "") -> None:
    """Exit 2; one line that says what is wrong, one that says how to mend it; nothing on stdout."""
    assert (done.code, done.out) == (2, ""), done.err
    first, second, *rest = done.err.splitlines()
    assert message in first
    assert second.startswith("     fix: ")
    assert fix in second
    assert rest == []


# create


def test_a_chat_message_goes_through_the_template_and_hashes_are_filled_in(rip: Rip) -> None:
    done = rip.create(
        "--chat", "w30 w31", "--sampling", "temperature=0", "--sampling", "max_tokens=4", "-o", "r.json"
    )
    assert (done.code, done.out) == (0, "")
    envelope = load_envelope(Path("r.json"))
    assert done.err == f"Wrote r.json: {envelope.request_id}, 4 prompt tokens\n"
    assert envelope.prompt_token_ids == [4, 30, 31, 5]  # <user> w30 w31 <assistant>
    assert envelope.messages == [{"role": "user", "content": "w30 w31"}]
    assert (envelope.sampling.temperature, envelope.sampling.max_tokens) == (0, 4)
    assert envelope.runtime.engine == "hf"
    assert stat.S_IMODE(Path("r.json").stat().st_mode) == 0o600
    checked = rip("check", "r.json", "--model", rip.model)
    assert (checked.code, checked.out) == (0, "1 valid, 1 complete\n")


def test_the_document_goes_to_stdout_without_a_file(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("w40 w41\n")
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "w42"}]')
    for arguments, ids in (
        (["--prompt", "w40 w41"], [40, 41]),
        (["--prompt-file", "p.txt"], [40, 41]),
        (["--messages", "m.json"], [4, 42, 5]),
    ):
        done = rip.create(*arguments)
        assert (done.code, done.err) == (0, "")
        assert Envelope.from_json(done.out, "stdout").prompt_token_ids == ids


def test_equal_content_gets_an_equal_id_and_other_content_another(rip: Rip) -> None:
    first, again, other = (json.loads(rip.create("--prompt", text).out) for text in ("w9", "w9", "w10"))
    assert first == again
    assert first["request_id"] != other["request_id"]
    assert json.loads(rip.create("--prompt", "w9", "--id", "mine").out)["request_id"] == "mine"


def test_a_set_grows_by_whole_lines(rip: Rip, tmp_path: Path) -> None:
    assert rip.create("--prompt", "w9", "--id", "a", "-o", "set.jsonl").code == 0
    assert stat.S_IMODE(Path("set.jsonl").stat().st_mode) == 0o600
    written = Path("set.jsonl").read_text()
    Path("set.jsonl").write_text(written.rstrip("\n"))  # as an editor leaves it
    assert rip.create("--prompt", "w9", "--id", "b", "-o", "set.jsonl").code == 0
    assert [envelope.request_id for envelope in load_requests(Path("set.jsonl"))] == ["a", "b"]
    refused(
        rip.create("--prompt", "w9", "--id", "b", "-o", "set.jsonl"), "holds a request 'b' already", "--id"
    )
    assert len(load_requests(Path("set.jsonl"))) == 2


def test_a_set_that_cannot_grow_stays_as_it_was(rip: Rip) -> None:
    rip.create("--prompt", "w9", "--id", "a", "-o", "set.jsonl")
    before = Path("set.jsonl").read_bytes()

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, len(before) + 100))

    line = ["envelope", "create", "--model", str(rip.model), "--prompt", "w9 " * 50, "-o", "set.jsonl"]
    command = [sys.executable, "-c", "from rip.cli import main; main()", *line]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 2
    assert "set.jsonl could not be written" in done.stderr
    assert Path("set.jsonl").read_bytes() == before


def test_a_file_is_not_overwritten_unasked(rip: Rip) -> None:
    assert rip.create("--prompt", "w9", "-o", "r.json").code == 0
    refused(rip.create("--prompt", "w10", "-o", "r.json"), "r.json exists already", "--force")
    assert rip.create("--prompt", "w10", "-o", "r.json", "--force").code == 0
    assert load_envelope(Path("r.json")).prompt_token_ids == [10]


def test_many_prompts_of_a_file_become_a_set(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "w9"}\n\n{"chat": "w10"}\n')
    done = rip.create("--from", "p.jsonl", "-o", "many.jsonl")
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in (tmp_path / "many.jsonl").read_text().splitlines()]
    assert lines[0]["request_id"] == "a"
    assert lines[1]["messages"] == [{"role": "user", "content": "w10"}]
    assert "2 envelopes" in done.err
    refused(rip.create("--from", "p.jsonl"), "--from makes a request set", "-o SET.jsonl")
    (tmp_path / "p.jsonl").write_text('{"id": "a"}\n')
    refused(rip.create("--from", "p.jsonl", "-o", "more.jsonl"), "p.jsonl:1: no prompt that can be read")


def test_a_text_of_prompts_may_come_from_any_editor(rip: Rip, tmp_path: Path) -> None:
    text = "\ufeffw9\r\n\r\nw9 w10\u2028w11\r\n   \r\nw9\r\n"
    (tmp_path / "p.txt").write_bytes(text.encode())
    assert rip.create("--from", "p.txt", "-o", "many.jsonl").code == 0
    lines = [json.loads(line) for line in (tmp_path / "many.jsonl").read_bytes().decode().split("\n")[:-1]]
    assert [line["prompt_text"] for line in lines] == ["w9", "w9 w10\u2028w11", "w9"]
    first, _, again = (line["request_id"] for line in lines)
    assert again == f"{first}-2"


def test_a_broken_line_is_named_and_nothing_is_written(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text("")
    (tmp_path / "p.jsonl").write_bytes(b'{"id": "a", "prompt": "w9"}\r\n\r\n{"id": "b", "prompt": \r\n')
    refused(rip.create("--from", "p.jsonl", "-o", "set.jsonl"), "p.jsonl:3", "")
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "w9"}\n{"id": "b", "prompt": ""}\n')
    refused(rip.create("--from", "p.jsonl", "-o", "set.jsonl"), "p.jsonl:2 has no tokens", "not empty")
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "w9"}\n{"id": "a", "prompt": "w10"}\n')
    refused(rip.create("--from", "p.jsonl", "-o", "set.jsonl"), "holds a request 'a' already", "--id")
    assert (tmp_path / "set.jsonl").read_text() == ""


def test_many_prompts_take_no_memory_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(("w9 " * 400 + "\n") * 4_000)  # 5 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_prompts(tmp_path / "p.txt")) == 4_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_redaction_keeps_no_text_and_token_ids_as_asked(rip: Rip) -> None:
    asked = ("--chat", "w30 w31", "--sampling", "stop=w9", "--sampling", "temperature=0")
    kept = json.loads(rip.create(*asked, "--redact", "text").out)
    gone = json.loads(rip.create(*asked, "--redact", "ids").out)
    assert kept["prompt_token_ids"] == [4, 30, 31, 5]
    assert set(kept["redactions"]) == {"messages", "sampling.stop"}
    assert "prompt_token_ids" not in gone
    assert set(gone["redactions"]) == {"messages", "sampling.stop", "prompt_token_ids"}
    assert "w30" not in str(kept) + str(gone)
    refused(rip.create(*asked, "--redact", "all"), "--redact all", "text, ids")


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ([], "exactly one prompt is needed", "--prompt"),
        (["--prompt", "w9", "--chat", "w9"], "exactly one prompt is needed", "--chat"),
        (["--prompt", ""], "the prompt has no tokens", "not empty"),
        (["--prompt", "half \udcff"], "half a character", ""),
        (["--prompt-file", "none.txt"], "none.txt: cannot be read: No such file", ""),
        (["--prompt-file", "."], "cannot be read: a directory, not a file", ""),
        (["--prompt-file", "binary"], "not UTF-8 text", "encoding"),
        (["--messages", "text"], "text: not JSON", ""),
        (["--messages", "object"], "a list of messages was expected", "role"),
        (["--messages", "deep"], "nested too deeply", ""),
        (["--messages", "odd"], "the chat template refuses the messages", "roles"),
        (["--prompt", "w9", "--sampling", "temperature"], "not KEY=VALUE", "temperature=0"),
        (["--prompt", "w9", "--sampling", "heat=1"], "no such field", "temperature"),
        (["--prompt", "w9", "--sampling", "temperature=hot"], "temperature=hot: Input should be", ""),
        (["--prompt", "w9", "--sampling", "temperature=NaN"], "finite number", ""),
        (["--prompt", "w9", "--sampling", "top_p=0"], "greater than 0", ""),
        (["--prompt", "w9", "-o", "r.txt"], "neither the name of an envelope nor of a request set", ".jsonl"),
        (["--prompt", "w9", "-o", "nowhere/r.json"], "is not a folder", "mkdir"),
        (["--prompt", "w9", "-o", "nowhere/r.jsonl"], "is not a folder", "mkdir"),
        (["--prompt", "w9", "-o", "bad.jsonl"], "bad.jsonl:1", ""),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_become_an_envelope_is_refused(
    rip: Rip, tmp_path: Path, arguments: list[str], message: str, fix: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "object").write_text('{"role": "user"}')
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "odd").write_text('[{"role": {}, "content": "x"}]')
    (tmp_path / "bad.jsonl").write_text("oops\n")
    if "odd" in arguments:
        shutil.copytree(rip.model, tmp_path / "model")
        rip.model = tmp_path / "model"
        (rip.model / "chat_template.jinja").write_text("{{ messages[0].role + '' }}")
    refused(rip.create(*arguments), message, fix)


def test_a_model_without_tokenizer_or_template_is_refused(rip: Rip, tmp_path: Path) -> None:
    shutil.copytree(rip.model, tmp_path / "model")
    rip.model = tmp_path / "model"
    (rip.model / "chat_template.jinja").unlink()
    refused(rip.create("--chat", "w9"), "no chat template", "prompt_text")
    (rip.model / "tokenizer.json").unlink()
    refused(rip.create("--prompt", "w9"), "no tokenizer", "tokenizer.json")
    rip.model = tmp_path / "nowhere"
    refused(rip.create("--prompt", "w9"), "no such folder")


# show


def test_show_tells_identity_prompt_and_sampling(rip: Rip) -> None:
    path = rip.write(
        "r.json",
        prompt_text="Hello\nthere",
        sampling={"top_p": 0.5},
        oddity=1,
        expected={"token_ids": [1, 2, 3]},
    )
    done = rip("show", path)
    assert (done.code, done.err) == (0, "")
    assert load_envelope(path).sha256() in done.out
    for words in (
        "2 token ids",
        "Hello",
        "top_p=0.5",
        f"  {'runtime':22} not stated",
        "3 token ids",
        "oddity",
        "not stated",
    ):
        assert words in done.out


def test_show_prints_no_terminal_sequence_of_a_foreign_file(rip: Rip) -> None:
    path = rip.write(
        "r.json", request_id="r\x1b]0;x\x07", prompt_text="\x1b[2J", sampling={"stop": "\x9b31m"}
    )
    for command in ("show", "check"):
        out = rip(command, path).out
        assert not {"\x1b", "\x07", "\x9b"} & set(out)


def test_show_json_is_one_complete_document_a_line(rip: Rip, tmp_path: Path) -> None:
    lines = [{"request_id": name, "prompt_token_ids": [1], "unknown": {"kept": 2**60}} for name in "ab"]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
    shown = [json.loads(line) for line in rip("show", "set.jsonl", "--json").out.splitlines()]
    assert [line["request_id"] for line in shown] == ["a", "b"]
    assert shown[0]["schema"] == "rip.envelope/1"
    assert shown[0]["unknown"] == {"kept": str(2**60)}


def test_show_reads_line_by_line_and_names_the_bad_one(rip: Rip, tmp_path: Path) -> None:
    good = json.dumps({"request_id": "a", "prompt_token_ids": [1]})
    (tmp_path / "set.jsonl").write_text(f"{good}\n{{}}\n")
    done = rip("show", "set.jsonl")
    assert done.code == 2
    assert done.out.startswith("a ")
    assert "set.jsonl:2" in done.err
    (tmp_path / "empty.jsonl").write_text("")
    refused(rip("show", "empty.jsonl"), "an empty request set")


# check


def test_the_published_envelope_is_valid_and_says_what_it_leaves_out(rip: Rip) -> None:
    done = rip("check", PUBLISHED)
    assert done.code == 1
    assert "model_artifact_sha256, tokenizer_sha256, chat_template_sha256 not stated" in done.out
    assert "runtime placeholders not filled in" in done.out
    assert done.out.endswith("1 valid, 0 complete\n")


def test_check_compares_the_hashes_of_a_model(rip: Rip) -> None:
    rip.create("--chat", "w9", "--sampling", "temperature=0", "--sampling", "max_tokens=1", "-o", "r.json")
    raw = json.loads(Path("r.json").read_text())
    Path("other.json").write_text(json.dumps({**raw, "tokenizer_sha256": "e" * 64}))
    done = rip("check", "other.json", "--model", rip.model)
    assert done.code == 1
    assert "different tokenizer: tokenizer_sha256 is eeeeeeeeeeee…, here " in done.out
    assert "different model" not in done.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_token_ids": [5, 99_999_999]}, "token id 99999999 in the prompt is outside the vocabulary"),
        ({"sampling": {"temperature": 0, "max_tokens": 10**6}}, "exceed the context"),
    ],
)
def test_check_names_what_the_model_cannot_run(
    rip: Rip, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    rip.create("--prompt", "w40", "--sampling", "temperature=0", "--sampling", "max_tokens=4", "-o", "r.json")
    raw = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**raw, **change}))
    assert rip("check", "r.json").code == 0
    checked = rip("check", "r.json", "--model", rip.model)
    assert checked.code == 1
    assert said in checked.out


def test_a_recorded_answer_that_is_text_is_shown(rip: Rip) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    expected = {"text": "Hello\nthere", "tool_calls": [call], "samples": [{"text": "Hi"}]}
    out = rip("show", rip.write("r.json", expected=expected)).out
    assert 'no token ids, "Hello\\nthere", 1 tool call, 1 further sample' in out


def test_check_counts_apart_what_was_answered_with_an_error(rip: Rip, tmp_path: Path) -> None:
    rip.create("--chat", "w9", "--sampling", "temperature=0", "--sampling", "max_tokens=1", "-o", "r.json")
    whole = json.loads((tmp_path / "r.json").read_text())
    refused_one = {"request_id": "no", "prompt_text": "w9", "context": {"status": 404, "error": "no model"}}
    (tmp_path / "set.jsonl").write_text(f"{json.dumps(whole)}\n{json.dumps(refused_one)}\n")
    done = rip("check", "set.jsonl", "--model", rip.model)
    assert (done.code, done.out) == (
        0,
        "2 valid, 1 complete, 1 answered with an error: rip replay skips them\n",
    )
    (tmp_path / "all.jsonl").write_text(json.dumps(refused_one))
    assert rip("check", "all.jsonl").code == 1, "nothing is left to replay"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            json.dumps({"request_id": "a", "prompt_text": "b"}, indent=1),
            "one JSON document over several lines",
        ),
        (json.dumps([{"request_id": "a", "prompt_text": "b"}], indent=1), "one JSON array"),
        (json.dumps([{"request_id": "a", "prompt_text": "b"}]), "one JSON array"),
        ('{"request_id": "a", "prompt_text": "b"}\noops', "set.jsonl:2: not JSON"),
    ],
)
def test_json_that_is_no_request_set_is_said_to_be_what_it_is(
    rip: Rip, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "set.jsonl").write_text(text)
    refused(rip("check", "set.jsonl"), says)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (["max_tokens=0"], "nothing to generate"),
        (["min_tokens=5", "max_tokens=2"], "more than max_tokens"),
        (["allowed_token_ids=[]"], "no token may follow"),
        (["stop="], "an empty string"),
        (['bad_words=["a", ""]'], "an empty string"),
    ],
)
def test_sampling_that_cannot_run_is_refused(rip: Rip, sampling: list[str], says: str) -> None:
    options = [word for pair in sampling for word in ("--sampling", pair)]
    refused(rip.create("--prompt", "w9", *options), says)


def test_check_refuses_what_is_invalid(rip: Rip, tmp_path: Path) -> None:
    refused(rip("check", rip.write("r.json", sampling={"n": 0})), "sampling.n")
    refused(rip("check", "nowhere.json"), "No such file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_write_permission_is_refused(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(rip.create("--prompt", "w9", "-o", "locked/r.json"), "is not writable")
