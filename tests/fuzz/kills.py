"""Kills commands at random moments; what they leave is neither lost nor torn nor in the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import psutil
import pyarrow.parquet as pq
from fakes import checkpoints, traces
from fakes.upstream import CHAT, fake_upstream
from fuzz.files import ggufs
from rip.diverge.reading.load import open_trace
from rip.diverge.result_folder import read_verdict
from rip.fingerprint.load import read_fingerprint
from rip.schemas.envelope import load_requests
from rip.schemas.errors import BadInput

TESTS = Path(__file__).parents[1]
_PATIENCE_S = 600
_ENGINE = ("--engine", "fakes.offline_engines:PlainEngine", "--model", "m.gguf")


class Lost(Exception):
    """What a killed command must not leave behind, in words."""


@dataclass(frozen=True)
class Command:
    """A command to kill.

    Attributes:
        name: As the table calls it.
        share: Of the kills, relative to the other commands.
        arguments: What follows `rip`; it runs in a folder of its own.
        prepare: Makes that folder's inputs.
        check: Raises `Lost` where something is torn or lost. It is told whether the command has ended well.
    """

    name: str
    share: float
    arguments: tuple[str, ...]
    prepare: Callable[[Path], None]
    check: Callable[[Path, bool], None]


@dataclass(frozen=True)
class KillRow:
    """What the kills of a command came to."""

    command: str
    kills: int
    in_the_middle: int
    """It had begun to write, and had not ended."""
    findings: int


def _requests(folder: Path) -> None:
    lines = [
        {
            "request_id": f"r{number}",
            "prompt_token_ids": [10, 20, 30 + number],
            "sampling": {"temperature": 0, "max_tokens": 20, "ignore_eos": True},
        }
        for number in range(60)
    ]
    (folder / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "m.gguf").write_bytes(ggufs(folder)[0])


def _tiny_model(folder: Path) -> None:
    from fakes.models import save_tiny_model

    shared = Path(tempfile.gettempdir()) / "rip-fuzz-tiny-model"
    if not shared.exists():
        making = Path(tempfile.mkdtemp())
        save_tiny_model("llama", making)
        making.rename(shared)
    shutil.copytree(shared, folder / "model")
    request = {
        "request_id": "r",
        "prompt_token_ids": [0, 5, 6, 7],
        "sampling": {"temperature": 0, "max_tokens": 20},
    }
    (folder / "r.jsonl").write_text(json.dumps(request) + "\n")


def _large_model(folder: Path) -> None:
    model = folder / "model"
    tensors = {
        f"layers.{number}.weight": ("F32", [1024, 1024], bytes([number]) * (4 << 20)) for number in range(24)
    }
    checkpoints.reshard(tensors, model, 4)
    (model / "config.json").write_text('{"architectures": ["X"]}')


def _traces(folder: Path) -> None:
    sites = traces.llama_sites(8)
    for name, seed in (("a", 0), ("b", 1)):
        rows = [traces.sequence(3, len(sites), prompt=40, decode=40, request_id=f"r{n}") for n in range(12)]
        if seed:
            for row in rows:
                traces.disturb(row, 30, 5)
                traces.disturb_logits(row, 60)
        about = traces.header(sites, [row.request_id for row in rows])
        traces.write_trace(folder / f"{name}.parquet", rows, about)


def _with_earlier_result(folder: Path) -> None:
    _traces(folder)
    done = _run(folder, ("diverge", "a.parquet", "b.parquet", "-o", "result"))
    if done.returncode not in (0, 1):
        raise AssertionError(done.stderr)
    shutil.copytree(folder / "result", folder / "kept")


def _check_trace(folder: Path, ended: bool) -> None:
    path, parts = folder / "t.parquet", folder / "t.parquet.parts"
    if path.exists():
        _read_whole(path)
    elif ended:
        raise Lost("there is no trace")
    if ended and parts.exists():
        raise Lost("the parts are still there")
    if not ended and parts.is_dir() and (parts / "header.json").is_file():
        try:
            open_trace(parts)
        except BadInput as error:
            if "neither" not in str(error) and "no rows" not in str(error):
                raise Lost(f"what was flushed cannot be read: {error}") from None


def _read_whole(path: Path) -> None:
    open_trace(path)
    pq.read_table(path)


def _check_fingerprint(folder: Path, ended: bool) -> None:
    if (folder / "fp.json").exists():
        found = read_fingerprint(folder / "fp.json")
        root = found.get("model", "tensors_root")
        known = folder.parent / "root"
        if root is None or root.value is None:
            raise Lost("a fingerprint without the weights that it was to hash")
        if known.exists() and known.read_text() != root.value:
            raise Lost("another digest of the same weights")
        known.write_text(str(root.value))
    elif ended:
        raise Lost("there is no fingerprint")


def _check_result(folder: Path, ended: bool) -> None:
    where = folder / "result"
    if where.exists():
        read_verdict(where)
        for table in where.glob("*.parquet"):
            pq.read_table(table)
    elif ended:
        raise Lost("there is no result")


def _check_earlier_result(folder: Path, ended: bool) -> None:
    if not (folder / "result").exists():
        aside = folder / ".result.before"
        if not aside.exists():
            raise Lost("the earlier result is lost")
        read_verdict(aside)
    _check_result(folder, ended)


_DIVERGE = ("diverge", "a.parquet", "b.parquet", "-o", "result")
_FINGERPRINT = ("fingerprint", "--model", "model", "-o", "fp.json")
_TINY = ("replay", "r.jsonl", "--model", "model", "-o", "t.parquet")
COMMANDS = (
    Command("replay", 5, ("replay", "r.jsonl", *_ENGINE, "-o", "t.parquet"), _requests, _check_trace),
    Command("replay, engine hf", 1, _TINY, _tiny_model, _check_trace),
    Command("fingerprint", 4, _FINGERPRINT, _large_model, _check_fingerprint),
    Command("diverge", 4, _DIVERGE, _traces, _check_result),
    Command("diverge --force", 4, (*_DIVERGE, "--force"), _with_earlier_result, _check_earlier_result),
)
_RECORD = "record"
_RECORD_SHARE = 2.0


def kill_all(kills: int, seed: int, found: Path, words: Sequence[str] = ()) -> list[KillRow]:
    """Kill each command with one of the words in its name its share of times.

    What is found stays in `found` with its folder.
    """

    def is_chosen(name: str) -> bool:
        return not words or any(word in name for word in words)

    chosen = [command for command in COMMANDS if is_chosen(command.name)]
    total = sum(command.share for command in chosen) + _RECORD_SHARE * is_chosen(_RECORD)
    rows = [
        _kill_command(command, max(1, round(kills * command.share / total)), seed, found)
        for command in chosen
    ]
    if is_chosen(_RECORD):
        rows.append(_kill_record(max(1, kills - sum(row.kills for row in rows)), seed, found))
    return rows


def _kill_command(command: Command, kills: int, seed: int, found: Path) -> KillRow:
    with tempfile.TemporaryDirectory(prefix="rip-kills-") as base:
        first = Path(base) / "first"
        first.mkdir()
        command.prepare(first)
        shutil.copytree(first, Path(base) / "clean")
        began = time.perf_counter()
        done = _run(first, command.arguments)
        duration = time.perf_counter() - began
        if done.returncode not in (0, 1, 3):
            raise AssertionError(f"{command.name}: {done.stderr}")
        command.check(first, True)

        def one(number: int) -> tuple[bool, bool]:
            random = Random(f"{seed}/{command.name}/{number}")
            folder = Path(base) / str(number)
            shutil.copytree(Path(base) / "clean", folder)
            before = _listing(folder)
            try:
                was_alive = _killed(folder, command.arguments, random.uniform(0, duration))
                in_the_middle = was_alive and _listing(folder) != before
                command.check(folder, False)
                _again(folder, command)
            except (Lost, BadInput, OSError) as error:
                kept = found / f"kill-{command.name.replace(' ', '-')}-{number}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                (kept / "WHY.txt").write_text(repr(error))
                return False, True
            shutil.rmtree(folder)
            return in_the_middle, False

        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(one, range(kills)))
    row = KillRow(command.name, kills, sum(m for m, _ in outcomes), sum(f for _, f in outcomes))
    print(row, file=sys.stderr, flush=True)
    return row


def _again(folder: Path, command: Command) -> None:
    """The same command, with --force where its message says so, does its work and leaves nothing else."""
    done = _run(folder, command.arguments)
    if done.returncode == 2 and "--force" in done.stderr:
        done = _run(folder, (*command.arguments, "--force"))
    if done.returncode not in (0, 1, 3) or "unexpected" in done.stderr:
        raise Lost(f"the next run fails: {done.stderr}")
    command.check(folder, True)
    if locks := list(folder.glob(".*.lock")):
        raise Lost(f"a lock is left: {locks}")


def _listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def _environment(folder: Path) -> dict[str, str]:
    more = {"PYTHONPATH": str(TESTS), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **more, "OMP_NUM_THREADS": "1"}


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rip", *arguments]


def _run(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(arguments), cwd=folder, env=_environment(folder), capture_output=True, text=True,
        timeout=_PATIENCE_S, check=False,
    )  # fmt: skip


def _killed(folder: Path, arguments: Sequence[str], after: float) -> bool:
    """Run a command and kill it after so many seconds; whether it still ran. Raises Lost for orphans."""
    with subprocess.Popen(
        _command(arguments),
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.communicate()
        else:
            return False
    _, alive = psutil.wait_procs(children, timeout=15)
    if alive:
        raise Lost(f"processes go on: {[child.cmdline() for child in alive]}")
    return True


# The recording proxy


def _kill_record(kills: int, seed: int, found: Path) -> KillRow:
    findings = in_the_middle = 0
    body = {"model": "plain", "messages": [{"role": "user", "content": "Hi"}]}
    with tempfile.TemporaryDirectory(prefix="rip-kills-") as base, fake_upstream() as upstream:
        folder = Path(base)
        answered: list[str] = []
        for number in range(kills):
            random = Random(f"{seed}/{_RECORD}/{number}")
            try:
                in_the_middle += _killed_record(folder, upstream.url, body, random, answered)
                _check_recording(folder / "kept", answered)
            except (Lost, BadInput, OSError) as error:
                findings += 1
                (found / f"kill-record-{number}.txt").write_text(repr(error))
    return KillRow(_RECORD, kills, in_the_middle, findings)


def _killed_record(
    folder: Path, upstream: str, body: dict[str, object], random: Random, answered: list[str]
) -> bool:
    """Record into one folder, again and again, and kill while requests are forwarded."""
    arguments = ("record", "--upstream", upstream, "--listen", "127.0.0.1:0", "-o", "kept")
    with subprocess.Popen(
        _command(arguments), cwd=folder, env=_environment(folder), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = ""
        for line in process.stderr:
            if "listening on" in line:
                break
        if "listening on" not in line:
            raise Lost(f"the next recording does not begin: {line}")
        [url] = re.findall(r"http://\S+", line)
        ends = time.perf_counter() + random.uniform(0, 0.5)
        killer = ThreadPoolExecutor(1).submit(
            lambda: (time.sleep(ends - time.perf_counter()), process.kill())
        )
        count = 0
        try:
            while True:
                name = f"kill-{len(answered)}-{random.getrandbits(32):08x}"
                stream = random.random() < 0.5
                headers = {"x-request-id": name}
                answer = httpx.post(
                    url + CHAT, json={**body, "stream": stream}, headers=headers, trust_env=False
                )
                if answer.status_code == 200:
                    answered.append(name)
                    count += 1
        except httpx.HTTPError:
            pass
        killer.result()
        process.wait()
    return count > 0


def _check_recording(kept: Path, answered: Sequence[str]) -> None:
    """Every file is whole but perhaps for its last line; all but the last answers of each run are there."""
    names: set[str] = set()
    for path in sorted(kept.glob("*.jsonl")):
        content = path.read_bytes()
        whole, _, rest = content.rpartition(b"\n")
        if rest:
            raise Lost(f"{path.name} ends in the middle of a line")
        if whole:
            names |= {one.request_id for one in load_requests(path)}
    if len(names) < len(answered) - len(list(kept.glob("*.jsonl"))):
        raise Lost(f"{len(answered)} were answered, {len(names)} are kept")
