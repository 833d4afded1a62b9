"""`rip replay` as a user meets it: exit codes, messages, what is on disk when it ends early."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.command_line import Done
from rip.commands import replay as command
from rip.schemas.files import OutputLock
from rip.schemas.trace import HEADER_KEY, TraceHeader


@dataclass
class Rip:
    """Runs `rip replay REQUESTS --model MODEL -o t.parquet …` in this process."""

    model: Path
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path, requests: str = "r.json", out: str = "t.parquet") -> Done:
        from rip.cli import main

        # One thread: two would wait for each other on a busy machine.
        line = ["rip", "replay", requests, "--model", self.model, "-o", out, "--set", "threads=1", *arguments]
        self.monkeypatch.setattr(sys, "argv", [str(word) for word in line])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(stopped.value.code or 0), said.out, said.err)

    def write(self, name: str = "r.json", *names: str, **fields: Any) -> None:
        """An envelope, or with several names a request set."""
        base = {
            "prompt_token_ids": [10, 20, 30, 40],
            "sampling": {"temperature": 0, "max_tokens": 5, "ignore_eos": True},
        }
        lines = [json.dumps({"request_id": one, **base, **fields}) for one in names or ("r0",)]
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def header(self, out: str = "t.parquet") -> TraceHeader:
        return TraceHeader.from_json(pq.read_metadata(self.folder / out).metadata[HEADER_KEY], out)


@pytest.fixture
def rip(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Rip:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    runner = Rip(tiny_model, tmp_path, monkeypatch, capsys)
    runner.write()
    return runner


@pytest.fixture
def broken_model(rip: Rip, tmp_path: Path) -> Callable[[Callable[[Path], object]], None]:
    """Runs the next commands on a copy of the model that a function has damaged."""

    def damage(how: Callable[[Path], object]) -> None:
        folder = tmp_path / "broken"
        shutil.copytree(rip.model, folder)
        how(folder)
        rip.model = folder

    return damage


def refused(done: Done, message: str, fix: str = "") -> None:
    """Exit 2; one line that says what is wrong, one that says how to mend it; nothing on stdout."""
    assert (done.code, done.out) == (2, ""), done.err
    first, second, *rest = done.err.splitlines()
    assert message in first
    assert second.startswith("     fix: ")
    assert fix in second
    assert rest == []


# It works


def test_a_replay_writes_a_private_trace_and_says_what_it_saw(rip: Rip) -> None:
    done = rip()
    assert (done.code, done.out) == (0, "")
    assert "1 sequence, 5 tokens generated (free), captured: " in done.err
    assert "sites (the default)" in done.err
    assert "observer check: equal (logits hashes of 5 rows of r0" in done.err
    assert done.err.endswith("Wrote t.parquet\n")
    assert stat.S_IMODE(Path("t.parquet").stat().st_mode) == 0o600
    assert sorted(path.name for path in rip.folder.glob("*t.parquet*")) == ["t.parquet"]
    engine = rip.header().fingerprint
    assert engine is not None
    assert engine.flat()["attention_backend"] == "sdpa"
    assert engine.flat()["tensor_parallel_size"] == 1


def test_two_replays_are_equal_and_another_seed_is_not(rip: Rip) -> None:
    rip.write(sampling={"temperature": 1.0, "seed": 1, "max_tokens": 9, "ignore_eos": True})
    rip.write("other.json", sampling={"temperature": 1.0, "seed": 2, "max_tokens": 9, "ignore_eos": True})
    runs = [rip(out="a.parquet"), rip(out="b.parquet"), rip(out="c.parquet", requests="other.json")]
    assert [done.code for done in runs] == [0, 0, 0]
    columns = ["token_id", "logits_hash", "site_hash"]
    a, b, c = (pq.read_table(f"{name}.parquet", columns=columns) for name in "abc")
    assert a.equals(b)
    assert not a.equals(c)


def test_a_stated_sampling_field_applies_in_place_of_the_envelopes(rip: Rip) -> None:
    rip.write(sampling={"temperature": 0, "max_tokens": 9, "ignore_eos": True})
    rip.write("other.json", sampling={"temperature": 1.0, "seed": 5, "max_tokens": 4, "ignore_eos": True})
    assert rip(out="a.parquet", requests="other.json").code == 0
    assert rip("--sampling", "temperature=1", "--sampling", "seed=5", "--sampling", "max_tokens=4").code == 0
    tokens, stated = (pq.read_table(name)["token_id"].to_pylist() for name in ("a.parquet", "t.parquet"))
    assert stated == tokens
    request = rip.header().requests[0]
    assert request.overrides == {"temperature": 1.0, "seed": 5, "max_tokens": 4}
    assert request.sampling["ignore_eos"].source == "envelope"
    assert request.envelope is not None
    assert request.envelope["sampling"]["temperature"] == 0  # what was recorded stays what it is
    rip(out="again.parquet", requests="r.json")
    assert pq.read_table("again.parquet")["token_id"].to_pylist() != tokens


def test_expected_tokens_decide_the_exit_code_and_the_trace_is_written_either_way(rip: Rip) -> None:
    rip("--capture", "tokens")
    came = pq.read_table("t.parquet")["token_id"].to_pylist()[4:]
    rip.write(expected={"token_ids": came})
    met = rip(out="met.parquet")
    assert met.code == 0
    assert "recorded tokens reproduced: 1 of 1" in met.err
    rip.write(expected={"token_ids": [*came[:2], 127 - came[2], *came[3:]]})
    missed = rip(out="missed.parquet")
    assert missed.code == 1
    assert "r0, sample 0: tokens differ from the recorded answer at step 2" in missed.err
    assert "recorded tokens reproduced: 0 of 1" in missed.err
    assert Path("missed.parquet").is_file()


def test_an_expected_text_decides_as_well_and_what_cannot_be_compared_is_no_pass(rip: Rip) -> None:
    rip.write()
    rip()
    [text] = [result.text for result in rip.header().results]
    assert text
    rip.write(expected={"text": text})
    met = rip(out="met.parquet")
    assert met.code == 0
    assert "recorded text reproduced: 1 of 1" in met.err
    rip.write(expected={"text": f"{text[:2]}another"})
    missed = rip(out="missed.parquet")
    assert missed.code == 1
    assert "r0, sample 0: text differs from the recorded answer at character 2" in missed.err
    assert "recorded text reproduced: 0 of 1" in missed.err
    rip.write(expected={"finish_reason": "stop"})
    unknown = rip(out="unknown.parquet")
    assert unknown.code == 3
    assert "1 could not be compared: the recorded answer has neither token ids nor text" in unknown.err
    assert "reproduced" not in unknown.err


def test_golden_tokens_of_a_trace_are_forced(rip: Rip) -> None:
    rip("--repeat", "2")
    done = rip("--mode", "golden-decode", "--golden", "t.parquet", "--repeat", "2", out="g.parquet")
    assert done.code == 0
    assert "2 sequences, 10 tokens forced (golden-decode)" in done.err
    forced, free = (pq.read_table(name) for name in ("g.parquet", "t.parquet"))
    assert forced["token_id"].equals(free["token_id"])
    assert rip.header("g.parquet").mode == "golden-decode"


def test_neighbours_from_a_set_or_a_number(rip: Rip) -> None:
    rip.write("set.jsonl", "x", "y", "r0", prompt_token_ids=[9, 8, 7])
    assert rip("--neighbours", "set.jsonl", out="set.parquet").code == 0
    assert rip("--neighbours", "4", out="number.parquet").code == 0
    for name, size in (("set.parquet", 3), ("number.parquet", 5)):
        table = pq.read_table(name)
        assert set(table["batch_size"].to_pylist()) == {size, None}
        assert set(table["request_id"].to_pylist()) == {"r0"}


def test_settings_are_kept_with_their_source(rip: Rip) -> None:
    assert rip("--set", "attention=eager", "--set", "threads=1", "--set", "dtype=bfloat16").code == 0
    settings = rip.header().lane.settings
    for name, value in (("attention", "eager"), ("threads", 1), ("dtype", "bfloat16")):
        found = settings[name]
        assert (found.requested, found.resolved, found.observed, found.source) == (
            value,
            value,
            value,
            "lane",
        )
    assert settings["padding_side"].source == "engine default"


def test_sites_positions_and_topk_choose_what_is_kept(rip: Rip) -> None:
    wanted = ("--sites", r"^layers\.1\.mlp$", "--capture", "tensors", "--positions", "2:4", "--topk", "9999")
    done = rip(*wanted)
    assert done.code == 0
    assert "captured: 1 sites (those that match --sites), rows kept" in done.err
    assert [site.name for site in rip.header().sites] == ["layers.1.mlp"]
    rows = pq.read_table("t.parquet").to_pylist()
    assert [row["position"] for row in rows if row["tensors"]] == [2, 3]
    assert len(rows[4]["topk_ids"]) == 128, "no more than the vocabulary"


def test_positions_beyond_every_sequence_are_said(rip: Rip) -> None:
    done = rip("--capture", "tensors", "--positions", "90:91")
    assert done.code == 0
    assert "not observed: no row was kept" in done.err


def test_findings_are_said_once_and_without_terminal_sequences(rip: Rip) -> None:
    rip.write("set.jsonl", "a\x1b[31m[red]", "b", "c", sampling={"max_tokens": 2}, oddity=1)
    done = rip(requests="set.jsonl")
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(set(notes)) == 3
    assert all("and 2 more" in note for note in notes[1:])
    assert "[31m[red]" in done.err
    assert "\x1b" not in done.err


def test_a_model_without_tokenizer_runs_token_ids_and_refuses_text(
    rip: Rip, broken_model: Callable[[Any], None]
) -> None:
    def remove_tokenizer(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()

    broken_model(remove_tokenizer)
    assert rip().code == 0
    rip.write("text.json", prompt_token_ids=None, prompt_text="w9 w10")
    refused(
        rip(requests="text.json", out="x.parquet"),
        "r0: the model folder holds no tokenizer",
        "tokenizer.json",
    )
    rip.write("stop.json", sampling={"stop": "w9"})
    refused(rip(requests="stop.json", out="x.parquet"), "sampling.stop needs a tokenizer", "stop_token_ids")


# Bad requests


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"prompt_token_ids": "10 20"}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids.0"),
        ({"prompt_token_ids": None}, "one of prompt_token_ids, prompt_text or messages"),
        ({"prompt_token_ids": [128]}, "token id 128 in the prompt is outside the vocabulary of 128"),
        ({"prompt_token_ids": [5] * 300}, "exceed the context of 256"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens is 0"),
        ({"schema": "rip.envelope/7"}, "written by a newer rip"),
        ({"schema": "rip.verdict/1"}, "not a rip.envelope/1 document"),
    ],
)
def test_bad_envelopes_are_refused(rip: Rip, fields: dict[str, Any], message: str) -> None:
    rip.write(**fields)
    refused(rip(), message)
    assert not Path("t.parquet").exists()


def test_files_that_are_no_envelope_are_refused(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "cut.json").write_text('{"request_id": "r0", "prompt_tok')
    (tmp_path / "binary.json").write_bytes(b"\x00\xff\xfe")
    rip.write("bad.jsonl", "a", "b")
    with (tmp_path / "bad.jsonl").open("a") as file:
        file.write('{"request_id": "c"}\n')
    rip.write("twice.jsonl", "a", "a")
    for name, message in (
        ("nowhere.json", "No such file"),
        (".", "a directory, not a file"),
        ("empty.jsonl", "empty request set"),
        ("cut.json", "not JSON"),
        ("binary.json", "binary.json"),
        ("bad.jsonl", "bad.jsonl:3"),
        ("twice.jsonl", "'a' stands twice"),
    ):
        refused(rip(requests=name), message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_refused(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "r.json").chmod(0)
    refused(rip(), "Permission denied")


# Bad models


def test_another_model_is_refused_and_recorded_when_allowed(rip: Rip) -> None:
    rip.write(model_artifact_sha256="d" * 64, tokenizer_sha256="...")
    refused(rip(), "r0: recorded with a different model (dddddddddddd…, here ", "--allow-drift")
    done = rip("--allow-drift")
    assert done.code == 0
    assert "note: r0: drift allowed: recorded with a different model" in done.err
    assert any("drift allowed" in finding for finding in rip.header().findings)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


GENERATION = "generation_config.json"
WEIGHT = "model.layers.1.mlp.down_proj.weight"


def cut_short(weights: dict[str, Any]) -> None:
    weights[WEIGHT] = weights[WEIGHT][:3].clone()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 100), "transformers cannot load"),
        (lambda f: os.truncate(f / "model.safetensors", 5000), "transformers cannot load"),
        (lambda f: os.truncate(f / "model.safetensors", 0), "transformers cannot load"),
        (lambda f: rewrite(f, lambda w: w.pop(WEIGHT)), f"not in its files: 1, first {WEIGHT}"),
        (lambda f: rewrite(f, cut_short), f"a different shape in its files: 1, first {WEIGHT}"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
        (lambda f: (f / "config.json").write_text('{"model_type": "nosuch"}'), "nosuch"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "its tokenizer cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text('{"version": "1.0"}'), "its tokenizer cannot be read"),
        (lambda f: (f / GENERATION).write_text("{"), "generation_config.json: not JSON"),
        (lambda f: (f / GENERATION).write_text('{"top_p": 7}'), "of the model: top_p cannot apply"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_damaged_models_are_refused(
    rip: Rip, broken_model: Callable[[Any], None], damage: Callable[[Path], object], message: str
) -> None:
    broken_model(damage)
    rip.write(sampling={"max_tokens": 3})
    refused(rip(), message)
    assert not list(rip.folder.glob("*t.parquet*"))


def test_what_is_no_model_is_refused(rip: Rip, tmp_path: Path) -> None:
    for name, message in (
        (tmp_path, "no config.json"),
        (tmp_path / "r.json", "GGUF"),
        (tmp_path / "no", "no such"),
    ):
        rip.model = name
        refused(rip(), message)


# Bad options


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        (["--mode", "fast"], "--mode fast", "golden-decode"),
        (["--capture", "all"], "--capture all", "tensors"),
        (["--engine", "vlm"], "unknown engine 'vlm'", "hf"),
        (["--set", "speed=9"], "--set speed=9: no such setting", "dtype, device, attention, threads"),
        (["--set", "threads"], "--set threads: no such setting", "KEY=VALUE"),
        (["--set", "threads=0"], "not a whole number from 1 to 1024", "threads=2"),
        (["--set", "threads=100000"], "not a whole number from 1 to 1024", ""),
        (["--set", "threads=²"], "not a whole number", ""),
        (["--set", "prefill_chunk=-1"], "not a whole number from 0", ""),
        (["--set", "batch_size=0"], "not a whole number from 1", ""),
        (["--set", "dtype=int8"], "not a value of dtype", "bfloat16"),
        (["--set", "attention="], "not a value of attention", "sdpa"),
        (["--set", "attention=fastest"], "no such attention implementation", "eager"),
        (["--set", "device=banana"], "torch does not know this device", "cpu"),
        (["--set", "device=meta"], "it does not compute", "cpu"),
        (["--set", "padding_side=up"], "not a value of padding_side", "left"),
        (["--sites", "("], "not a regular expression", "layers"),
        (["--sites", "nothing_of_the_kind"], "matches no site", ""),
        (["--sites", "mlp", "--capture", "tokens"], "observes no sites", ""),
        (["--positions", "1:2"], "only --capture tensors", "--capture tensors"),
        (["--capture", "tensors", "--positions=-1:2"], "not a range", "A:B"),
        (["--capture", "tensors", "--positions", "5:5"], "not a range", "smaller"),
        (["--capture", "tensors", "--positions", "x"], "not a range", ""),
        (["--sampling", "heat=1"], "no such sampling field", "temperature"),
        (["--sampling", "temperature"], "no such sampling field", "KEY=VALUE"),
        (["--sampling", "temperature=-1"], "greater than or equal to 0", "envelope"),
        (["--sampling", "temperature=NaN"], "a valid number", "envelope"),
        (["--sampling", "top_p=null"], "a valid number", "envelope"),
        (["--sampling", 'seed=1, "x": 2'], "a valid integer", "envelope"),
        (["--sampling", "structured_outputs={}"], "a program or a grammar", "envelope"),
        (["--sampling", "max_tokens=99999"], "exceed the context", ""),
        (["--golden", "g.parquet"], "free mode forces no tokens", "golden-decode"),
        (["--mode", "golden-decode"], "is missing or empty", "--golden"),
        (["--mode", "golden-decode", "--golden", "none.parquet"], "none.parquet: no such file", ""),
        (["--mode", "golden-decode", "--golden", "r.json"], "cannot be read as a trace", ""),
        (["--neighbours=-3"], "--neighbours -3", "for example 7"),
        (["--neighbours", "none.jsonl"], "none.jsonl: cannot be read", ""),
        (["--neighbours", "r.json"], "none would run beside", "number"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_options_are_refused(rip: Rip, arguments: list[str], message: str, fix: str) -> None:
    refused(rip(*arguments), message, fix)
    assert not list(rip.folder.glob("*t.parquet*"))


@pytest.mark.parametrize(
    "arguments", [["--repeat", "0"], ["--topk", "0"], ["--topk", "many"], ["--nonsense"]]
)
def test_numbers_out_of_range_and_unknown_options_are_usage_errors(rip: Rip, arguments: list[str]) -> None:
    done = rip(*arguments)
    assert done.code == 2
    assert "Usage: rip replay" in done.err


@pytest.mark.skipif(sys.platform == "darwin", reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused(rip: Rip) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    refused(rip("--set", "device=cuda:0"), "--set device=cuda:0: ", "choose one that torch finds here: cpu")


def test_the_help_lists_every_setting() -> None:
    from rip.replay.engines.hf.settings import SETTINGS

    listed = command.EXAMPLES.split("docs/engines.md:")[1].split("\n\n")[0]
    said = dict(line.split(maxsplit=1) for line in listed.strip().splitlines())
    assert said == {
        name: known.meaning + (": " + ", ".join(known.choices) if known.choices else "")
        for name, known in SETTINGS.items()
    }


# Outputs


def test_outputs_that_cannot_be_written_are_refused_before_any_work(rip: Rip, tmp_path: Path) -> None:
    rip.model = tmp_path / "never looked for"
    (tmp_path / "there.parquet").write_text("precious")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "rest.parquet.parts").mkdir()
    refused(rip(out="there.parquet"), "there.parquet exists already", "--force")
    refused(rip(out="rest.parquet"), "rest.parquet.parts holds what an unfinished run recorded", "--force")
    refused(rip(out="nowhere/t.parquet"), "is not a folder", "mkdir -p")
    for force in ([], ["--force"]):
        refused(rip(*force, out="folder.parquet"), "exists and is not a file", "another name")
        refused(rip(*force, out="/dev/null"), "exists and is not a file", "another name")
    assert (tmp_path / "there.parquet").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_write_permission_is_refused(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(rip(out="locked/t.parquet"), "is not writable")


def test_an_output_that_another_run_writes_is_refused_before_any_work(rip: Rip, tmp_path: Path) -> None:
    rip.model = tmp_path / "never looked for"
    with OutputLock(tmp_path / "t.parquet", force=False):
        for force in ([], ["--force"]):
            refused(rip(*force), "another rip is writing t.parquet", "another name")


def test_force_overwrites_a_trace_and_the_rest_of_an_unfinished_one(rip: Rip, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("old")
    (tmp_path / "t.parquet.parts").mkdir()
    assert rip("--force").code == 0
    assert rip.header().tool_version
    assert not (tmp_path / "t.parquet.parts").exists()


# Ending early, in a process of its own

EARLY = """
import os, signal, sys
from rip.replay import trace_writer as writer
writer.FLUSH_SECONDS = 0  # every block of rows is a part at once
plain, wanted = writer.TraceWriter.append, getattr(signal, sys.argv[1])
def append(self, info, rows):
    plain(self, info, rows)
    if info.request_id == "b":
        os.kill(os.getpid(), wanted)
writer.TraceWriter.append = append
sys.argv = ["rip", *sys.argv[2:]]
from rip.cli import main
main()
"""


def end_early(rip: Rip, signal: str) -> subprocess.CompletedProcess[str]:
    """A run of the requests a, b, c that gets a signal as soon as rows of b have come."""
    rip.write("set.jsonl", "a", "b", "c")
    line = ["replay", "set.jsonl", "--model", str(rip.model), "-o", "t.parquet", "--set", "threads=1"]
    command = [sys.executable, "-c", EARLY, signal, *line]
    return subprocess.run(command, cwd=rip.folder, capture_output=True, text=True)


def readable(rip: Rip) -> dict[str, int]:
    """Rows per request that `rip query` reads in the parts."""
    from rip.cli import main

    sql = "SELECT request_id, count(*) FROM tokens GROUP BY 1"
    line = ["rip", "query", "t.parquet.parts", sql, "--format", "csv"]
    rip.monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as stopped:
        main()
    said = rip.capsys.readouterr()
    assert not stopped.value.code, said.err
    return {name: int(count) for name, count in (row.split(",") for row in said.out.splitlines()[1:])}


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_ctrl_c_and_what_supervisors_send_keep_what_was_recorded(rip: Rip, signal: str) -> None:
    done = end_early(rip, signal)
    assert done.returncode == 130
    first, second = done.stderr.splitlines()[-2:]  # a slow machine says before how far it is
    assert first.startswith("rip: interrupted; ")
    assert first.endswith("rows are kept in t.parquet.parts")
    assert second.startswith("     fix: rip query t.parquet.parts")
    assert not list(rip.folder.glob("*t.parquet"))
    assert not list(rip.folder.glob(".t.parquet*"))
    rows = readable(rip)
    assert rows["a"] == 9
    assert rows["b"] >= 1
    assert "c" not in rows


def test_a_killed_run_leaves_readable_parts(rip: Rip) -> None:
    done = end_early(rip, "SIGKILL")
    assert done.returncode == -9
    assert not list(rip.folder.glob("*t.parquet"))
    assert readable(rip)["a"] == 9


def test_a_full_disk_is_said_and_leaves_nothing_under_the_final_name(rip: Rip) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    line = ["replay", "r.json", "--model", str(rip.model), "-o", "t.parquet", "--set", "threads=1"]
    command = [sys.executable, "-c", "from rip.cli import main; main()", *line]
    done = subprocess.run(command, cwd=rip.folder, capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 2, done.stderr
    first, second = done.stderr.splitlines()[-2:]  # a slow machine says before how far it is
    assert first.startswith("rip: t.parquet could not be written: ")
    assert "File too large" in first
    assert second.startswith("     fix: free disk space")
    assert not list(rip.folder.glob("*t.parquet"))


def test_requests_that_were_answered_with_an_error_are_passed_over(rip: Rip) -> None:
    rip.write("set.jsonl", "a", "b")
    lines = (rip.folder / "set.jsonl").read_text().splitlines()
    refused = {**json.loads(lines[1]), "context": {"status": 404, "error": "no such model"}}
    (rip.folder / "set.jsonl").write_text(f"{lines[0]}\n{json.dumps(refused)}\n")
    done = rip(requests="set.jsonl")
    assert done.code == 0
    assert "not replayed: 1 request recorded with an error" in done.err
    assert [request.request_id for request in rip.header().requests] == ["a"]
    (rip.folder / "all.jsonl").write_text(json.dumps(refused))
    done = rip(requests="all.jsonl", out="u.parquet")
    assert done.code == 2
    assert "every request was answered with an error" in done.err


def test_a_lane_file_says_what_runs_beside_and_the_command_line_wins(rip: Rip) -> None:
    (rip.folder / "busy.toml").write_text("neighbours = 3\n")
    assert rip("--lane", "busy.toml", "--capture", "tokens").code == 0
    assert set(pq.read_table("t.parquet")["batch_size"].to_pylist()) == {4, None}
    assert rip("--lane", "busy.toml", "--neighbours", "0", "--capture", "tokens", out="u.parquet").code == 0
    assert set(pq.read_table("u.parquet")["batch_size"].to_pylist()) == {1, None}
