"""Sentences are made at the end: every kind has one, rewording changes no cause, no code reads them back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from fakes.findings import EXAMPLES, KINDS, everything
from faults.corpus import NO_FAULT, by_kind
from faults.lab import Lab
from faults.reworded import WORDS, data_of, reworded, with_rewording
from rip.diverge import compare
from rip.diverge.causes.rank import TABLE
from rip.diverge.present.findings import labels, sentences
from rip.schemas.base import Record
from rip.schemas.findings.statement import Statement
from rip.schemas.verdict import Cause, Interpretation, Verdict

GOLDEN = Path(__file__).parent.parent / "golden"
PACKAGE = Path(__file__).parents[2]


def test_every_kind_of_finding_has_a_sentence() -> None:
    assert set(sentences.SENTENCES) == KINDS
    for example in EXAMPLES:
        said = sentences.sentence(example)
        assert said
        assert "None" not in said or type(example).__name__ == "NotJudged"


def test_every_cause_has_a_label_and_every_command_a_reading() -> None:
    assert set(labels.LABELS) == {entry.id for entry in TABLE}
    assert set(sentences.INTERPRETATIONS) == {*get_args(Interpretation)}


def statements(record: Record) -> Iterator[Record]:
    """Every finding and cause in a record, at any depth."""
    if isinstance(record, Statement | Cause):
        yield record
    for name in type(record).model_fields:
        value = getattr(record, name)
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, Record):
                yield from statements(one)


def test_a_written_verdict_has_a_sentence_beside_each_finding() -> None:
    verdict = sentences.with_sentences(everything(GOLDEN / "verdict-v1.json"))
    found = list(statements(verdict))
    assert len(found) > len(EXAMPLES) / 2
    for one in found:
        if isinstance(one, Cause):
            assert one.label
            assert one.interpretation_text
        else:
            assert isinstance(one, Statement)
            assert one.text == sentences.sentence(one)


# ------------------------------------------------------------------------------- rewording changes no cause


CASES = by_kind()
REPRESENTATIVE = (
    "whole output negated",
    "silent top_k",
    "stop string ignored",
    "prefix cache warm",
    "one expert flipped",
    "one token more in the prompt",
    NO_FAULT,
)


@pytest.mark.parametrize("kind", REPRESENTATIVE)
def test_replacing_all_sentences_changes_nothing_else(kind: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    seen = lab.judge(CASES[kind][0])
    nonsense = reworded(lab, seen)
    assert data_of(nonsense) == data_of(seen.verdict)
    if seen.verdict.causes:
        assert nonsense.causes[0].label == WORDS
        assert nonsense.causes[0].label != seen.verdict.causes[0].label


def test_a_verdict_that_depends_on_a_sentence_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path)
    seen = lab.judge(CASES["whole output negated"][0])

    def reads_a_label(verdict: Verdict) -> Verdict:
        worded = sentences.with_sentences(verdict)
        return worded.model_copy(
            update={"causes": [cause for cause in worded.causes if cause.label != WORDS]}
        )

    monkeypatch.setattr(compare, "with_sentences", reads_a_label)
    assert with_rewording(lab, seen).rewording_changes


# --------------------------------------------------------------------------------- no code reads them back

SEARCHED = ("diverge", "experiments", "commands", "replay")
"""Packages that are looked through."""
WORDED = "diverge/present"
"""Where sentences of a diagnosis are made: it is not looked through."""
FOREIGN_WORDS = {
    "commands/query.py": (1, "which views the user's SQL names"),
    "commands/record.py": (1, "the value of --listen"),
    "experiments/replay_plan/options.py": (4, "the values of --positions, --neighbours and --sampling"),
    "experiments/replay_plan/zoom.py": (1, "the value of --zoom"),
    "experiments/settings_search/two_lanes.py": (1, "the value of --vary"),
    "replay/engines/base.py": (1, "the value of a setting"),
    "replay/engines/hf/model.py": (1, "torch has no class for a CPU that is out of memory, only words"),
    "replay/engines/hf/sampling.py": (1, "stop strings in the generated text"),
    "replay/engines/http/server_process.py": (2, "the log of a server"),
    "replay/engines/http/tgi.py": (1, "what TGI generated"),
    "replay/engines/http/vllm_start.py": (1, "what vLLM's parser says of a server's arguments"),
    "replay/engines/offline/deepinfer.py": (1, "the value of a setting"),
    "replay/proxy/engine_log.py": (7, "the request logs of vLLM and SGLang"),
    "replay/proxy/exchange.py": (1, "the prompt that a server repeats in front of its answer"),
    "replay/proxy/imported.py": (10, "fields of a JSON line of another program's log"),
    "replay/request/expected_answer.py": (2, "the recorded and the generated text"),
    "replay/sse.py": (2, "lines of a stream of server-sent events"),
}
"""File → how many reads of text it has, and whose text it is: of users and of other programs, never rip's."""
READS = {"startswith", "endswith", "partition", "rpartition", "split", "find", "index", "removeprefix"}
SEARCHES = {"search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
TEXTS = {
    "text",
    "interpretation_text",
    "sentence",
    "note",
    "evidence",
    "missing",
    "where",
    "why",
    "line",
}
"""Names of what holds composed text of findings."""


def reads_of_sentences(source: str) -> list[int]:
    """Lines on which composed text of findings is compared, searched or split."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, of = node.func.attr, node.func.value
            if (method in READS and _is_text(of)) or (
                method in SEARCHES and any(_is_text(argument) for argument in node.args)
            ):
                found.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_is_text(side) for side in sides) and any(_is_words(side) for side in sides):
                found.append(node.lineno)
    return sorted(found)


def _is_text(node: ast.AST) -> bool:
    """It is named like composed text of a finding, or is composed right there."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.Subscript):
        return _is_text(node.value)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {
            "sentence",
            "in_shell",
            "label",
            "in_words",
        }
    if isinstance(node, ast.Attribute):
        # A plain name `label` is that of a site, a plain `message` one of a protocol.
        return node.attr in {*TEXTS, "label", "message", "fix"}
    return isinstance(node, ast.Name) and node.id in TEXTS


def _is_words(node: ast.AST) -> bool:
    """A literal text, or several; kinds are compared by `.kind`."""
    texts = [node] if isinstance(node, ast.Constant) else getattr(node, "elts", [])
    return any(isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value for one in texts)


def modules() -> list[Path]:
    """Source files in which a sentence may not be read back."""
    return sorted(path for package in SEARCHED for path in (PACKAGE / package).rglob("*.py"))


def test_no_code_outside_the_places_of_sentences_reads_them() -> None:
    found = {}
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        lines = [] if name.startswith(WORDED) else reads_of_sentences(path.read_text("utf-8"))
        if len(lines) != FOREIGN_WORDS.get(name, (0, ""))[0]:
            found[name] = lines
    assert found == {}
    assert {path.relative_to(PACKAGE).as_posix() for path in modules()} >= FOREIGN_WORDS.keys()


@pytest.mark.parametrize(
    "planted",
    [
        "found = seen.text.endswith('times')",
        "names = [line.partition(':')[0] for line in lines]",
        "shows = cause.confirm.text.startswith('rip query')",
        "size = re.search('drift is', cause.evidence[0])",
        "cached = 'cached' in unseen.text",
        "negative = cause.label == 'the negative'",
        "taken = finding.sentence.partition(',')[0]",
        "first = sentence(one).split(';')[0]",
        "newer = error.fix.startswith('upgrade rip')",
        "name = exchange.where.rpartition('/')[2]",
        "failed = 'out of memory' in run.failure.message",
    ],
)
def test_code_that_reads_a_sentence_is_found(planted: str) -> None:
    assert reads_of_sentences(planted) == [1]


def test_no_rule_imports_what_makes_sentences() -> None:
    for path in (PACKAGE / "diverge" / "causes").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert "present" not in (node.module or "").split("."), path
