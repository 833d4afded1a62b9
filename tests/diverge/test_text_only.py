"""Engines that tell no token ids: texts are compared, and the verdict says what that proves and what not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.traces import header, llama_sites, result, sequence, write_trace
from fakes.verdicts import sentences
from hypothesis import given
from hypothesis import strategies as st
from rip import cli
from rip.diverge.compare import diverge
from rip.diverge.comparison.pairing import first_difference
from rip.diverge.present.findings.sentences import where, why
from rip.diverge.views.open_views import open_views
from rip.diverge.views.query import run as ask
from rip.schemas.errors import BadInput, NothingCompared
from rip.schemas.lane import Lane
from rip.schemas.trace import EngineAbilities, Request
from rip.schemas.verdict import Verdict

TEXT_ONLY = EngineAbilities(modes=["free"], seed=True, token_ids=False, logprobs="none")
SITES = llama_sites(1)


def text_trace(path: Path, texts: dict[str, str | None], **about: Any) -> Path:
    """A trace without rows: request id → text."""
    results = [
        result(text, name, sequence=index, latency_s=0.5 * (index + 1), answered_by={"model": "m"})
        for index, (name, text) in enumerate(texts.items())
    ]
    said = {"abilities": TEXT_ONLY, "lane": Lane(name="main", engine="ollama", model="m"), **about}
    return write_trace(path, [], header([], texts, results=results, **said))


def compared(tmp_path: Path, a: dict[str, str | None], b: dict[str, str | None], **about: Any) -> Verdict:
    one = text_trace(tmp_path / "a.parquet", a)
    other = text_trace(tmp_path / "b.parquet", b, **about)
    return diverge(one, other, tmp_path / "out")


def states(verdict: Verdict) -> dict[str, str]:
    return {level: judged.state for level, judged in verdict.levels.items()}


def rip(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["rip", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_equal_texts_hold_semantic_and_do_not_prove_tokens(tmp_path: Path) -> None:
    verdict = compared(tmp_path, {"r0": "Blue.", "r1": "Red."}, {"r0": "Blue.", "r1": "Red."})
    assert states(verdict) == {
        "bitwise": "not comparable",
        "numeric": "not comparable",
        "token": "not comparable",
        "semantic": "holds",
    }
    assert "do not prove equal tokens" in why(verdict.levels["token"])
    assert verdict.level == "semantic"
    assert (verdict.compared.texts, verdict.compared.texts_differing, verdict.compared.sequences) == (2, 0, 0)
    assert (verdict.first_text, verdict.first_token, verdict.causes) == (None, None, [])


def test_texts_that_differ_fail_the_tokens_and_name_the_character(tmp_path: Path) -> None:
    long = "x" * 100
    verdict = compared(tmp_path, {"r0": "same", "r1": f"{long}ab"}, {"r0": "same", "r1": f"{long}cd"})
    token = verdict.levels["token"]
    assert (token.state, where(token)) == ("fails", "request r1, character 100")
    assert verdict.levels["semantic"].state == "not comparable"
    first = verdict.first_text
    assert first is not None
    assert (first.request_id, first.character, first.a, first.b) == ("r1", 100, "ab", "cd")
    assert first.before == "x" * 40
    assert (verdict.compared.texts, verdict.compared.texts_differing) == (2, 1)


def test_a_text_that_only_ends_earlier_differs_where_it_ends(tmp_path: Path) -> None:
    first = compared(tmp_path, {"r0": "Blue"}, {"r0": "Blue."}).first_text
    assert first is not None
    assert (first.character, first.before, first.a, first.b) == (4, "Blue", "", ".")


@pytest.mark.parametrize(
    ("envelope", "state"),
    [
        ({"prompt_text": "why?"}, "fails"),
        ({"prompt_text": "who?"}, "not comparable"),
        ({"messages": [{"role": "user", "content": "why?"}]}, "not comparable"),
        (None, "not comparable"),
    ],
)
def test_texts_say_something_of_tokens_only_where_the_same_was_asked(
    tmp_path: Path, envelope: dict[str, Any] | None, state: str
) -> None:
    asked = [Request(request_id="r0", envelope_sha256="1" * 64, envelope=envelope)]
    about = [Request(request_id="r0", envelope_sha256="2" * 64, envelope={"prompt_text": "why?"})]
    one = text_trace(tmp_path / "a.parquet", {"r0": "a"}, requests=about)
    other = text_trace(tmp_path / "b.parquet", {"r0": "b"}, requests=asked)
    assert diverge(one, other, tmp_path / "out").levels["token"].state == state


def test_a_side_with_tokens_is_compared_by_its_text(tmp_path: Path) -> None:
    tokens = sequence(1, len(SITES))
    write_trace(tmp_path / "a.parquet", [tokens], header(SITES, results=[result("Blue.")]))
    text_trace(tmp_path / "b.parquet", {"r0": "Blue!"})
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")
    assert states(verdict)["token"] == "fails"
    assert verdict.first_text is not None
    assert verdict.first_text.character == 4
    assert any("b.parquet holds no token ids" in line for line in sentences(verdict.not_seen))


def test_sequences_with_and_without_tokens_in_one_comparison(tmp_path: Path) -> None:
    tokens, results = sequence(1, len(SITES)), [result("one"), result("two", "r1", sequence=1)]
    about = header(SITES, ["r0", "r1"], results=results)
    write_trace(tmp_path / "a.parquet", [tokens], about)
    write_trace(tmp_path / "b.parquet", [tokens], about)
    verdict = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")
    assert (verdict.compared.sequences, verdict.compared.texts) == (1, 1)
    # The rows that are there are equal; of r1 nobody knows.
    assert states(verdict) == {
        "bitwise": "not comparable",
        "numeric": "not comparable",
        "token": "not comparable",
        "semantic": "holds",
    }


def test_other_tokens_of_the_same_text_hold_semantic(tmp_path: Path) -> None:
    one, other = sequence(1, len(SITES)), sequence(1, len(SITES))
    other.tokens[7] += 1
    for name, tokens, text in (("a", one, "same"), ("b", other, "same"), ("c", other, "else")):
        write_trace(tmp_path / f"{name}.parquet", [tokens], header(SITES, results=[result(text)]))
    same = diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "ab")
    assert (states(same)["token"], states(same)["semantic"]) == ("fails", "holds")
    unlike = diverge(tmp_path / "a.parquet", tmp_path / "c.parquet", tmp_path / "ac")
    assert states(unlike)["semantic"] == "not comparable"


def test_a_forced_text_is_not_compared(tmp_path: Path) -> None:
    tokens = sequence(1, len(SITES))
    write_trace(
        tmp_path / "a.parquet", [tokens], header(SITES, mode="golden-decode", results=[result("Blue.")])
    )
    text_trace(tmp_path / "b.parquet", {"r0": "Blue."})
    with pytest.raises(NothingCompared, match="forced"):
        diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_in_common_and_nothing_at_all_are_errors(tmp_path: Path) -> None:
    text_trace(tmp_path / "a.parquet", {"r0": "x"})
    text_trace(tmp_path / "b.parquet", {"other": "x"})
    with pytest.raises(NothingCompared, match="other"):
        diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")
    write_trace(tmp_path / "empty.parquet", [], header([]))
    with pytest.raises(BadInput, match="has no rows"):
        diverge(tmp_path / "a.parquet", tmp_path / "empty.parquet", tmp_path / "out")


def test_one_sequence_told_twice_is_refused(tmp_path: Path) -> None:
    twice = [result("x"), result("y", sequence=1)]
    write_trace(tmp_path / "a.parquet", [], header([], results=twice))
    text_trace(tmp_path / "b.parquet", {"r0": "x"})
    with pytest.raises(BadInput, match="is recorded twice"):
        diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out")


@pytest.mark.parametrize(
    ("b", "require", "code", "said"),
    [
        ("Blue.", "token", 3, "--require semantic"),
        ("Blue.", "bitwise", 3, "--require semantic"),
        ("Blue.", "semantic", 0, "The answer is equal as text"),
        ("Red.", "token", 1, "The answer differs as text: r0 character 0"),
        ("Red.", "semantic", 1, "nothing scored them"),
    ],
)
def test_exit_codes_and_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    b: str,
    require: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text_trace(tmp_path / "a.parquet", {"r0": "Blue."})
    text_trace(tmp_path / "b.parquet", {"r0": b})
    assert rip(monkeypatch, "diverge", "a.parquet", "b.parquet", "--require", require) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert "Traceback" not in err
    summary = json.loads((tmp_path / "a-vs-b" / "summary.json").read_text())
    assert ("first_text" in summary) == (b == "Red.")


def test_the_terminal_and_the_report_show_both_texts_and_no_markup_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    text_trace(tmp_path / "a.parquet", {"r0": "The sky is blue\x1b[31m"})
    text_trace(tmp_path / "b.parquet", {"r0": "The sky is <script>"})
    assert rip(monkeypatch, "diverge", "a.parquet", "b.parquet", "--html", "r.html", "--verbose") == 1
    out = capsys.readouterr().out
    assert "A  The sky is blue\\x1b[31m" in out
    assert "B  The sky is <script>" in out
    html = (tmp_path / "r.html").read_text()
    assert "<mark>&lt;script&gt;</mark>" in html
    assert "<mark>blue" in html


def test_causes_are_sought_where_only_texts_differ(tmp_path: Path) -> None:
    lane = Lane(name="main", engine="tgi", model="m")
    verdict = compared(tmp_path, {"r0": "a"}, {"r0": "b"}, lane=lane)
    assert [cause.id for cause in verdict.causes] == ["kernel"]
    assert "engines: ollama in A, tgi in B" in sentences(verdict.causes[0].evidence)


def test_a_trace_without_rows_can_be_queried(tmp_path: Path) -> None:
    path = text_trace(tmp_path / "a.parquet", {"r0": 'Blue "x"', "r1": None})
    with open_views(path) as views:

        def rows(sql: str) -> list[dict[str, Any]]:
            found = ask(views, sql)
            return [row for batch in found.batches for row in batch.to_pylist()]

        told = rows("SELECT * FROM results ORDER BY sequence")
        assert [(row["request_id"], row["text"], row["latency_s"]) for row in told] == [
            ("r0", 'Blue "x"', 0.5),
            ("r1", None, 1.0),
        ]
        assert (told[0]["model"], told[0]["answered_by"]) == ("m", '{"model": "m"}')
        assert rows("SELECT count(*) AS n FROM tokens") == [{"n": 0}]
        assert rows("SELECT value FROM header WHERE key = 'lane.engine'") == [{"value": "ollama"}]
        assert rows("SELECT * FROM sites") == rows("SELECT * FROM topk") == []


def test_every_document_of_a_text_comparison_can_be_queried(tmp_path: Path) -> None:
    compared(tmp_path, {"r0": "a"}, {"r0": "b"})
    with open_views(tmp_path / "out") as views:
        for name in views.names:
            assert list(ask(views, f"SELECT * FROM {name}").batches) == []


@given(st.text(max_size=8), st.text(max_size=8))
def test_the_first_difference_splits_both_texts_at_their_common_prefix(a: str, b: str) -> None:
    at = first_difference(a, b)
    if at is None:
        assert a == b
    else:
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]
