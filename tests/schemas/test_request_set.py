"""Request sets: loaded line by line, a bad line named by number, foreign files refused early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rip.schemas import envelope
from rip.schemas.envelope import iter_request_set, load_envelope, load_requests
from rip.schemas.errors import BadInput


def line(request_id: str) -> str:
    return json.dumps({"request_id": request_id, "prompt_token_ids": [1]})


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_good_lines_before_a_bad_one_are_yielded_and_the_bad_one_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", line("a"), "", line("b"), '{"request_id": "c"', line("d"))
    requests = iter_request_set(path)
    assert [next(requests).request_id, next(requests).request_id] == ["a", "b"]
    with pytest.raises(BadInput, match=r"set\.jsonl:4: not JSON: .* \(column 19\)"):
        next(requests)


def test_a_wrong_field_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", line("a"), '{"request_id": "b", "prompt_token_ids": ["1"]}')
    with pytest.raises(BadInput, match=r"set\.jsonl:2: prompt_token_ids\.0: "):
        load_requests(path)


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", line("a"), line("b"))
    requests = iter_request_set(path)
    next(requests)
    with path.open("a", encoding="utf-8") as more:
        more.write(" " * 10_000_000 + line("c"))  # read only if the file was not swallowed whole
    assert [request.request_id for request in requests] == ["b", "c"]


def test_windows_line_ends_byte_order_mark_and_unicode_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    text = '{"request_id": "b", "prompt_text": "one\u2028two\u0085three"}'
    path.write_bytes(b"\xef\xbb\xbf" + f"{line('a')}\r\n\r\n{text}\r\n".encode())
    assert [request.prompt_text for request in load_requests(path)] == [None, "one\u2028two\u0085three"]


def test_a_json_file_is_one_envelope_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "one.JSON"
    path.write_text(json.dumps(json.loads(line("a")), indent=2))
    assert [request.request_id for request in iter_request_set(path)] == ["a"]
    path.write_text(line("a") + "\n" + line("b"))
    with pytest.raises(BadInput) as caught:
        load_requests(path)
    assert ".jsonl" in caught.value.fix


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_set_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match="an empty request set"):
        load_requests(path)


def test_a_request_id_may_stand_once(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", line("a"), line("b"), line("a"))
    with pytest.raises(BadInput, match="the request id 'a' stands twice"):
        load_requests(path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    for read in (load_envelope, load_requests):
        with pytest.raises(BadInput, match="cannot be read: No such file"):
            read(tmp_path / "absent.json")
        with pytest.raises(BadInput, match="cannot be read: a directory, not a file"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_file_without_end_is_not_read_whole(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelope, "MAX_ENVELOPE_BYTES", 1 << 20)
    path = tmp_path / name
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)  # a terabyte that takes no room
    with pytest.raises(BadInput, match="longer than 1 MiB, so not an envelope"):
        load_requests(path)
