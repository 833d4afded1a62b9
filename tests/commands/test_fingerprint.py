"""`rip fingerprint` and `rip drift` as a user meets them: output, exit codes, errors, files."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import servers
from fakes.command_line import Rip
from fakes.processes import SLEEP, starting
from rip.schemas.fingerprint import FLAT_KEYS, Fingerprint


@pytest.fixture
def rip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Rip:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Rip(monkeypatch, capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_document_goes_to_stdout_and_nothing_else(rip: Rip) -> None:
    done = rip("fingerprint")
    assert (done.code, done.err) == (0, "")
    assert Fingerprint.from_json(done.out, "stdout").flat()["sampling_contract_version"] == "rip.sampling/1"


def test_the_command_imports_nothing_heavy() -> None:
    script = (
        "import contextlib, sys; sys.argv = ['rip', 'fingerprint']; from rip.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'duckdb', 'numba', 'huggingface_hub', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["schema"] == "rip.fingerprint/1"


def test_flat_has_the_thirteen_keys(rip: Rip, model: Path) -> None:
    done = rip("fingerprint", "--flat", "--model", model)
    assert list(json.loads(done.out)) == list(FLAT_KEYS)
    assert len(json.loads(done.out)["model_sha256"]) == 64


def test_a_file_is_written_privately_and_not_overwritten_unasked(rip: Rip, tmp_path: Path) -> None:
    target = tmp_path / "base.json"
    done = rip("fingerprint", "-o", target)
    assert (done.code, done.out) == (0, "")
    assert f"Wrote {target}" in done.err
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    again = rip("fingerprint", "-o", target)
    assert again.code == 2
    assert "exists already" in again.err
    assert "--force" in again.err
    assert rip("fingerprint", "-o", target, "--force").code == 0


def test_against_says_nothing_changed_or_what_did(
    rip: Rip, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base.json"
    rip("fingerprint", "--model", model, "-o", base)
    same = rip("fingerprint", "--model", model, "--against", base)
    assert same.code == 0
    assert "no change" in same.err
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (model / "model.safetensors").write_bytes(b"Weights")
    now = tmp_path / "now.json"
    changed = rip("fingerprint", "--model", model, "--against", base, "-o", now)
    assert changed.code == 1
    assert changed.out == "", "a check in CI is one line, or the changes"
    assert Fingerprint.from_json(now.read_bytes(), "now.json")
    lines = changed.err.splitlines()
    assert any(line.startswith("model.sha256") for line in lines)
    assert any(line.startswith("determinism.OMP_NUM_THREADS") and "bitwise" in line for line in lines)


def test_show_says_in_short_what_a_kept_fingerprint_holds(rip: Rip, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    rip("fingerprint", "-o", base)
    done = rip("fingerprint", "show", base)
    assert done.code == 0, done.err
    assert 5 < len(done.out.splitlines()) <= 18
    kept = Fingerprint.from_json(base.read_bytes(), "base.json")
    assert kept.root_digest in done.out
    assert "not read" in done.out
    assert rip("fingerprint", "show", base, "--json").out == base.read_text()
    assert rip("fingerprint", "show", tmp_path / "none.json").code == 2


def test_drift_compares_two_files(rip: Rip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, now = tmp_path / "base.json", tmp_path / "now.json"
    rip("fingerprint", "-o", base)
    monkeypatch.setenv("NCCL_ALGO", "[red]Ring")
    rip("fingerprint", "-o", now)
    same = rip("drift", base, base)
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("no change\n")
    assert "attention_backend" in same.out, "no engine ran on either side: nothing is known of it"
    table = rip("drift", base, now)
    assert table.code == 1
    assert "determinism.NCCL_ALGO" in table.out
    assert "[red]Ring" in table.out
    assert "1 change (bitwise 1)." in table.out
    document = json.loads(rip("drift", base, now, "--json").out)
    assert document["schema"] == "rip.drift/1"
    change = document["changes"][0]
    assert (change["field"], change["risk"]) == ("NCCL_ALGO", "bitwise")
    assert (change["before"]["unavailable"], change["after"]["value"]) == ("not set", "[red]Ring")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"\x00\xff", "UTF-8"),
        (b"[]", "JSON object"),
        (b'{"schema": "rip.envelope/1"}', "not a fingerprint"),
        (b'{"schema": "rip.fingerprint/99"}', "newer rip"),
        (b'{"schema": "rip.fingerprint/1"}', "Field required"),
    ],
)
def test_a_base_that_is_no_fingerprint_is_refused(
    rip: Rip, tmp_path: Path, content: bytes | None, message: str
) -> None:
    base = tmp_path / "base.json"
    if content is not None:
        base.write_bytes(content)
    for done in (rip("drift", base, base), rip("fingerprint", "--against", base)):
        assert (done.code, done.out) == (2, "")
        assert message in done.err
        assert "fix: " in done.err


def test_a_fingerprint_that_was_edited_is_refused(rip: Rip, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    rip("fingerprint", "-o", base)
    base.write_text(base.read_text().replace("rip.sampling/1", "rip.sampling/2"))
    done = rip("drift", base, base)
    assert done.code == 2
    assert "changed after" in done.err


def test_a_model_that_cannot_be_used_is_an_error_and_leaves_no_file(
    rip: Rip, tmp_path: Path, model: Path
) -> None:
    target = tmp_path / "out.json"
    (model / "model.safetensors").unlink()
    for name, message in (
        (tmp_path / "nowhere", "no such folder"),
        (model, "no weights"),
        (model / "config.json", "GGUF"),
    ):
        done = rip("fingerprint", "--model", name, "-o", target)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
        assert "fix: " in done.err
    assert not target.exists()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps while a test looks at it."""
    with starting() as begin:
        process = begin(sys.executable, "-c", SLEEP, environ={"OMP_NUM_THREADS": "3"})
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def test_a_running_process_is_read_by_its_pid(rip: Rip, sleeper: int, tmp_path: Path) -> None:
    done = rip("fingerprint", "--pid", str(sleeper))
    assert (done.code, done.err) == (0, "")
    found = Fingerprint.from_json(done.out, "it")
    assert found.sections["process"].volatile["pid"].value == sleeper
    reading = found.get("determinism", "OMP_NUM_THREADS")
    assert reading is not None
    assert reading.value == "3"
    base = tmp_path / "base.json"
    base.write_text(done.out)
    assert "no change" in rip("fingerprint", "--pid", str(sleeper), "--against", base).err


def test_a_server_is_asked_by_its_address(rip: Rip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THE_KEY", servers.API_KEY)
    base = tmp_path / "base.json"
    with servers.serve(servers.SGLANG) as served:
        done = rip("fingerprint", "--url", f"{served.url}/v1", "--api-key-env", "THE_KEY", "-o", base)
    assert done.code == 0
    assert servers.API_KEY not in base.read_text()
    assert set(served.keys) == {f"Bearer {servers.API_KEY}"}
    info = {**servers.SGLANG["GET /server_info"], "disable_radix_cache": False, "port": 31000}
    with servers.serve({**servers.SGLANG, "GET /server_info": info}) as other:
        changed = rip("fingerprint", "--url", other.url, "--against", base)
    assert changed.code == 1
    assert "cache.prefix_cache" in changed.err
    assert "31000" not in changed.err


def test_a_server_that_does_not_answer_is_exit_2(rip: Rip) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    done = rip("fingerprint", "--url", url)
    assert (done.code, done.out) == (2, "")
    assert "Connection refused" in done.err
    assert "fix: start the server" in done.err


def test_a_server_that_cannot_be_read_is_exit_2_and_writes_nothing(rip: Rip, tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    with servers.serve({"*": 401}) as served:
        done = rip("fingerprint", "--url", served.url, "-o", base)
    assert (done.code, done.out) == (2, "")
    assert "it wants an API key" in done.err
    assert "--api-key-env NAME" in done.err
    assert not base.exists()


def test_a_server_that_refuses_some_questions_is_said_in_one_line(rip: Rip) -> None:
    with servers.serve({**servers.VLLM, "GET /v1/models": 401, "POST /tokenize": 401}) as served:
        done = rip("fingerprint", "--url", served.url)
    assert done.code == 0
    lines = [line for line in done.err.splitlines() if "refuses" in line]
    assert len(lines) == 1
    assert "/tokenize, /v1/models: it wants an API key: put the key into a variable" in lines[0]
    assert "--api-key-env" in lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pid", "4194305"), "there is no process 4194305"),
        (("--pid", "x"), "valid integer"),
        (("--pid", "1", "--url", "http://h"), "name two things"),
        (("--url", "localhost:8000"), "not an http or https URL"),
        (("--url", "http://u:secret@h"), "holds a user name or password"),
        (("--api-key-env", "X"), "no server is named that needs a key"),
        (("--url", "http://h", "--api-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (("--read", "a.json", "--pid", "1"), "leave out one"),
    ],
)
def test_options_that_cannot_be_used(rip: Rip, options: tuple[str, ...], message: str) -> None:
    done = rip("fingerprint", *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "secret" not in done.err
