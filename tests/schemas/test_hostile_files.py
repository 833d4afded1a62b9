"""Files under attack: two writers, planted links, kills, pipes, keys in lanes; and no second way to write."""

from __future__ import annotations

import ast
import os
import threading
from pathlib import Path

import pytest
import rip
from rip.experiments.lanes.request import read_server_key
from rip.replay.engines.bounded_call import OutOfBounds, call_bounded
from rip.schemas import open_files
from rip.schemas.errors import BadInput, OutputFailed, stated_setting
from rip.schemas.files import NewFolder, replace_file, report_disk_errors
from rip.schemas.lane import load_lane, may_be_secret
from rip.schemas.open_files import open_regular, open_stream
from rip.schemas.redact import HIDDEN, without_secrets


def test_of_two_writers_one_wins_whole_and_the_other_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("earlier")

    def write_while_another_does() -> None:
        with report_disk_errors(path), replace_file(path) as slow:
            slow.write_text("slow")
            with replace_file(path) as fast:
                fast.write_text("fast and whole")

    with pytest.raises(OutputFailed, match="another program"):
        write_while_another_does()
    assert path.read_text() == "fast and whole"
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_no_planted_link_is_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".rows.csv.unfinished").symlink_to(victim)
    with replace_file(tmp_path / "rows.csv") as unfinished:
        unfinished.write_text("new")
    assert victim.read_text() == "precious"
    assert (tmp_path / "rows.csv").read_text() == "new"


def test_a_name_of_250_bytes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("\N{LATIN SMALL LETTER E WITH ACUTE}" * 125)
    with replace_file(path) as unfinished:
        unfinished.write_text("new")
    assert path.read_text() == "new"


def test_a_kill_while_a_folder_is_replaced_loses_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "summary.json").write_text("earlier")
    child = os.fork()
    if child == 0:
        new = NewFolder(folder)
        (new.path / "summary.json").write_text("new")
        Path.rename = lambda self, target, rename=Path.rename: (rename(self, target), os._exit(0))  # type: ignore
        new.publish()  # ends after the first of its two renames
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not folder.exists()
    new = NewFolder(folder)
    assert (folder / "summary.json").read_text() == "earlier"
    (new.path / "summary.json").write_text("newest")
    new.publish()
    assert (folder / "summary.json").read_text() == "newest"


def test_a_pipe_is_read_where_somebody_writes_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "PIPE_WAIT_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no program writes"):
        open_stream(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        open_stream(Path("/dev/zero"))
    monkeypatch.setattr(open_files, "PIPE_WAIT_S", 10.0)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"a line\n" * 3))
    writer.start()
    with open_stream(pipe) as file:
        assert file.readall() == b"a line\n" * 3
    writer.join()


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "9" * 6000,
        f"a = {1 << 64}",
        "a = " + "[" * 4000 + "]" * 4000,
        "a = " + "{x=" * 300 + "1" + "}" * 300,
        "#" * (2 << 20),
    ],
    ids=["digits", "65 bits", "lists", "tables", "long"],
)
def test_a_lane_beyond_bounds_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lane.toml"
    path.write_text(f'engine = "hf"\n[set]\n{text}\n')
    with pytest.raises(BadInput) as refused:
        load_lane(path)
    assert len(refused.value.message) < 500


def test_secrets_are_hidden_by_name_whatever_their_type_and_by_form() -> None:
    hidden = without_secrets({"secrets": ["a"], "credentials": {"v": "b"}, "password": 123, "max_tokens": 7})
    assert hidden == {"secrets": HIDDEN, "credentials": HIDDEN, "password": HIDDEN, "max_tokens": 7}
    assert may_be_secret("env.DATABASE", "postgres://me:planted@host/x")
    assert may_be_secret("env.PLAIN", "Bearer planted0123456789")
    assert may_be_secret("env.http_proxy", "user:planted@proxy:3128")
    assert not may_be_secret("env.OMP_NUM_THREADS", "4")
    assert "planted" not in stated_setting("api-key=planted").text


def test_a_key_in_place_of_a_variable_is_not_echoed() -> None:
    for key in ("sk-planted0123456789abc", "planted key", "hf_planted0123456789planted"):
        with pytest.raises(BadInput) as refused:
            read_server_key("http://127.0.0.1:1", key)
        assert "planted" not in str(refused.value)


def test_what_a_template_computes_is_bounded() -> None:
    assert call_bounded(lambda: "x" * 3_000_000) == "x" * 3_000_000

    def loop() -> str:
        while True:
            pass

    with pytest.raises(OutOfBounds, match="1 s of computing"):
        call_bounded(loop, cpu_s=1)
    with pytest.raises(OutOfBounds, match="memory"):
        call_bounded(lambda: "x" * (1 << 30), memory_bytes=64 << 20)
    with pytest.raises(ValueError, match="roles must alternate"):
        call_bounded(lambda: _raise("roles must alternate"))


def _raise(message: str) -> str:
    raise RuntimeError(message)


_WRITES = {
    "schemas/files.py": "the way to write",
    "schemas/generate.py": "a developer's tool",
    "fingerprint/field_tables.py": "a developer's tool",
    "fingerprint/model/digest_cache.py": "appends to a journal, whole lines with a check sum",
    "fingerprint/libraries/version_child.py": "the null device",
    "commands/console.py": "the null device",
    "experiments/acceptance/inputs.py": "streams requests into what replace_file gives",
    "experiments/acceptance/samples.py": "one sample of a trace, for a comparison, removed after it",
    "experiments/acceptance/store.py": "cuts a torn line off into what replace_file gives",
    "experiments/bundle.py": "copies, created exclusively in a folder that is renamed when it is whole",
    "replay/vllm_tap/worker/rank_writer.py": "a state file of fixed size, created exclusively",
    "replay/proxy/store.py": "recordings, created exclusively and appended to",
    "replay/engines/http/server_process.py": "a server's log, which the server writes",
    "replay/engines/http/vllm_start.py": "a folder for a server",
    "replay/engines/model_files.py": "a folder in the cache, renamed whole",
    "diverge/result_folder.py": "in a NewFolder",
    "replay/trace_writer.py": "through replace_file and create_file",
    "diverge/views/query.py": "to a file that it is handed",
}


def test_there_is_one_way_to_write_a_file() -> None:
    package = Path(rip.__file__).parent
    folders = ("commands", "diverge", "experiments", "fingerprint", "replay", "schemas")
    found = {
        str(path.relative_to(package))
        for folder in folders
        for path in (package / folder).rglob("*.py")
        if any(_opens_for_writing(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }
    assert found - _WRITES.keys() == set(), "write through rip.schemas.files.replace_file"


def _opens_for_writing(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("O_WRONLY", "O_RDWR", "O_CREAT", "mkstemp", "mkdtemp", "NamedTemporaryFile")
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    target = called.value if isinstance(called, ast.Attribute) else None
    if isinstance(target, ast.Name) and target.id == "unfinished":  # what replace_file hands out
        return False
    if name in ("write_text", "write_bytes"):
        return True
    modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    if name == "ParquetWriter":
        return not (isinstance(node.args[0], ast.Name) and node.args[0].id == "unfinished")
    return name == "open" and any(str(mode)[:1] in ("w", "a", "x") and len(str(mode)) < 4 for mode in modes)
