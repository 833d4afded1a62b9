"""A run that dies or a disk that fills: whole parts stay, and nothing half-written under the final name."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.rows import SITES, in_order, interleave, parts_of, places, start
from fakes.traces import header
from rip.replay import trace_writer as writer_module
from rip.schemas.errors import OutputFailed
from rip.schemas.trace import HEADER_KEY, TraceHeader


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "t.parquet"


def read_parts(folder):
    """What a reader finds in a parts folder, and the header that describes it."""
    about = TraceHeader.from_json((folder / "header.json").read_bytes(), "header.json")
    tables = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    for path in folder.glob("part-*.parquet"):
        assert TraceHeader.from_json(pq.read_metadata(path).metadata[HEADER_KEY], str(path)) == about
    return about, pa.concat_tables(tables).unify_dictionaries()


def test_abandoning_keeps_everything_in_parts(trace):
    writer = start(trace)
    assert writer.abandon() is None
    interleave(writer)
    kept = writer.abandon()
    about, table = read_parts(kept)
    assert about.sites == SITES
    assert sorted(places(table)) == in_order()
    assert writer.rows_written == 30
    assert not trace.exists()


def test_a_killed_process_leaves_whole_parts(trace):
    program = f"""
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from fakes.rows import interleave, start
        from rip.replay import trace_writer as writer_module
        writer_module.FLUSH_BYTES = 3000
        writer = start(Path({str(trace)!r}))
        interleave(writer, blocks=20)
        print(writer.rows_written, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    _, table = read_parts(trace.with_name("t.parquet.parts"))
    assert table.num_rows == int(killed.stdout) > 60
    assert len(set(places(table))) == table.num_rows
    assert not trace.exists()
    assert trace.with_name(".t.parquet.lock").exists()
    start(trace, force=True).close()  # the lock itself died with the process
    assert list(trace.parent.iterdir()) == []


# A disk that fills


class Failing:
    """Lets some writes of rows through and then raises what a full disk raises."""

    def __init__(self, monkeypatch, at):
        self.left = at
        real = pq.ParquetWriter.write_table
        outer = self

        def write_table(self, *arguments, **options):
            outer.left -= 1
            if outer.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(self, *arguments, **options)

        monkeypatch.setattr(pq.ParquetWriter, "write_table", write_table)


def whole_run(writer):
    interleave(writer, blocks=12)
    writer.finish(header(SITES))


@pytest.mark.parametrize("at", range(12))
def test_a_full_disk_leaves_whole_parts_and_nothing_under_the_final_name(trace, monkeypatch, at):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 3000)
    Failing(monkeypatch, at)
    writer = start(trace)
    with pytest.raises(OutputFailed, match="No space left on device") as caught:
        whole_run(writer)
    assert "free disk space" in caught.value.fix
    flushed = writer.rows_written
    kept = writer.abandon()
    assert [path.name for path in trace.parent.iterdir()] == (["t.parquet.parts"] if kept else [])
    if kept:
        _, table = read_parts(kept)
        assert table.num_rows == flushed == writer.rows_written
        assert not [path for path in kept.iterdir() if path.name.endswith(".unfinished")]
        assert f"{len(parts_of(trace))} whole parts are kept" in caught.value.message
    else:
        assert flushed == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_is_really_full_is_reported(trace, monkeypatch):
    real_open = os.open

    def open_full(path, *arguments):
        if str(path).endswith(".unfinished"):
            os.symlink("/dev/full", path)
            return real_open("/dev/null", os.O_WRONLY)
        return real_open(path, *arguments)

    monkeypatch.setattr(os, "open", open_full)
    writer = start(trace)
    interleave(writer)
    with pytest.raises(OutputFailed, match="No space left on device"):
        writer.finish(header(SITES))
    writer.close()
    assert list(trace.parent.iterdir()) == []


def test_a_folder_that_vanished_is_an_error_for_people(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    writer = start(folder / "t.parquet")
    shutil.rmtree(folder)
    interleave(writer)
    with pytest.raises(OutputFailed):
        writer.finish(header(SITES))


def test_an_interruption_in_the_last_write_leaves_the_rows_in_parts(trace, monkeypatch):
    writer = start(trace)
    interleave(writer)

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.finish(header(SITES))
    assert [path.name for path in trace.parent.iterdir()] == [".t.parquet.lock"]
    _, table = read_parts(writer.abandon())
    assert [path.name for path in trace.parent.iterdir()] == ["t.parquet.parts"]
    assert table.num_rows == 30


def test_a_failed_rewrite_leaves_the_earlier_trace_alone(trace, monkeypatch):
    first = start(trace)
    interleave(first)
    first.finish(header(SITES))
    before = trace.read_bytes()
    Failing(monkeypatch, 0)
    second = start(trace)
    interleave(second)
    with pytest.raises(OutputFailed):
        second.finish(header(SITES))
    assert trace.read_bytes() == before


# Two writers


@pytest.mark.parametrize("force", [False, True])
def test_a_second_writer_is_refused_and_does_the_first_no_harm(trace, monkeypatch, force):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    first = start(trace)
    interleave(first)
    before = parts_of(trace)
    with pytest.raises(OutputFailed, match=r"another rip is writing .*t.parquet"):
        start(trace, force=force)
    assert parts_of(trace) == before
    first.finish(header(SITES))
    assert places(pq.read_table(trace)) == in_order()
    assert [path.name for path in trace.parent.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appeared_meanwhile_is_left_alone_and_the_rows_are_kept(trace, monkeypatch, links):
    def no_links(*_arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    writer = start(trace)
    interleave(writer)
    trace.write_text("precious")
    with pytest.raises(OutputFailed, match=r"appeared while .* 30 rows are kept in"):
        writer.finish(header(SITES))
    assert trace.read_text() == "precious"
    _, table = read_parts(writer.parts)
    assert table.num_rows == 30
    other = start(trace.with_name("other.parquet"))
    interleave(other)
    other.finish(header(SITES))
    assert places(pq.read_table(trace.with_name("other.parquet"))) == in_order()


def test_parts_that_vanished_are_not_said_to_be_kept(trace, monkeypatch):
    monkeypatch.setattr(writer_module, "FLUSH_BYTES", 1)
    writer = start(trace)
    interleave(writer)
    shutil.rmtree(writer.parts)
    with pytest.raises(OutputFailed, match="10 parts vanished") as caught:
        writer.finish(header(SITES))
    assert "kept" not in caught.value.message
    assert writer.abandon() is None
