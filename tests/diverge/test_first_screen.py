"""The first screen: what the terminal, the page and the Markdown say before anything else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.traces import disturb, header, sequence, write_trace
from fakes.verdicts import SITES, flip, pair
from rip.diverge.compare import Context, diverge
from rip.diverge.present.first_screen.causes import own_evidence
from rip.diverge.present.first_screen.compose import Scene, first_screen
from rip.diverge.present.first_screen.lines import screen_lines, sparkline
from rip.diverge.present.first_screen.places import site_course
from rip.diverge.present.first_screen.screen import Course, FirstScreen
from rip.diverge.present.prompt_words import prompt_words
from rip.diverge.present.report.build import write_report
from rip.diverge.reading.load import read_header
from rip.schemas.change import Change
from rip.schemas.findings.execution import ShapeDiffers
from rip.schemas.findings.experiments import Confirmation
from rip.schemas.fingerprint import Fact, Fingerprint, Section, fact, unavailable
from rip.schemas.trace import Request, TraceHeader
from rip.schemas.verdict import Verdict

LABELS = [site.label() for site in SITES]
UP, DOWN = LABELS.index("layers.0.self_attn.q_proj"), LABELS.index("layers.1.mlp.gate_proj")
PROMPT = "List the steps of photosynthesis <b>and</b> say | for `each` where in the [cell] it happens"
HOSTILE = "<img src=x onerror=alert(1)> | `x` [y](z)"


def request(name: str, text: str = PROMPT) -> Request:
    envelope = {"request_id": name, "messages": [{"role": "user", "content": text}]}
    return Request(request_id=name, envelope_sha256="0" * 64, envelope=envelope)


def about(*names: str, text: str = PROMPT, **more: object) -> TraceHeader:
    requests = [request(name, text) for name in names]
    said: dict[str, object] = {"requests": requests, "seconds": {"load": 2.0, "replay": 20.0}} | more
    return header(SITES, **said)


def fingerprint(section: str, **facts: Fact) -> Fingerprint:
    return Fingerprint.build("0", "2026-01-01T00:00:00Z", {section: Section(facts=facts)})


def two_causes(folder: Path) -> Verdict:
    """A variable that rounds differently, and a changed weight that is no rounding."""
    a, b = pair()
    for site in range(UP, len(SITES)):
        disturb(b, 2, site, 1e-4 if site < DOWN else 0.5)
    flip(b, 3, 0.4)
    texts = {str(token): f" w{token}" for token in range(1100)}
    values = unavailable("not set", "environ"), fact("default", "environ")
    for side, one, value in zip("ab", (a, b), values, strict=True):
        seen = fingerprint("determinism", ATEN_CPU_CAPABILITY=value)
        write_trace(folder / f"{side}.parquet", [one], about("r0", token_text=texts, fingerprint=seen))
    name = f"model.{LABELS[DOWN]}.weight"
    changes = [
        Change(section="model", field="tensors", before=fact({name: "a"}, "t"), after=fact({name: "b"}, "t")),
        Change(
            section="determinism",
            field="ATEN_CPU_CAPABILITY",
            before=values[0],
            after=values[1],
        ),
    ]
    return diverge(folder / "a.parquet", folder / "b.parquet", folder / "result", Context(changes))


def equal(folder: Path, requests: int) -> Verdict:
    """Equal answers in an environment of which six fields changed."""
    sequences = [sequence(at, len(SITES), request_id=f"r{at}") for at in range(requests)]
    names = [one.request_id for one in sequences]
    for name, cores in (("a", "2"), ("b", "4")):
        seen = fingerprint("cpu", cores=fact(cores, "t"))
        write_trace(folder / f"{name}.parquet", sequences, about(*names, fingerprint=seen))
    changes = [
        Change(section="cpu", field=f"f{at}", before=fact(1, "t"), after=fact(2, "t")) for at in range(6)
    ]
    return diverge(folder / "a.parquet", folder / "b.parquet", folder / "result", Context(changes))


def screen_of(folder: Path, verdict: Verdict, result: str = "result") -> FirstScreen:
    headers = read_header(folder / "a.parquet"), read_header(folder / "b.parquet")
    return first_screen(verdict, Scene(result, headers, site_course(folder / "result")))


def lines(screen: FirstScreen, width: int) -> list[str]:
    return [line.plain for line in screen_lines(screen, width)]


def row(screen: FirstScreen, name: str) -> tuple[str, str]:
    return next((one.text, one.aside) for one in (*screen.rows, *screen.next) if one.name == name)


def test_two_causes_have_each_its_place_and_the_leading_one_comes_first(tmp_path: Path) -> None:
    verdict = two_causes(tmp_path)
    screen = screen_of(tmp_path, verdict)
    assert row(screen, "cause") == (f"Different weights: model.{LABELS[DOWN]}.weight", "likely, not proven")
    assert row(screen, "also") == ("2. ATEN_CPU_CAPABILITY: not set → default", "possible, not proven")
    begins, size = row(screen, "begins")
    assert begins == f"{LABELS[UP]}, token 2"
    assert re.fullmatch(r"rounding-sized \(0\.01\d* ULP\)", size)
    grows, whose = row(screen, "grows")
    assert re.fullmatch(rf"×\d{{4}} at {re.escape(LABELS[DOWN])}, token 2", grows)
    assert whose.endswith(", cause 1")
    assert row(screen, "next") == ("rip confirm result 2", "about 55 s")  # a control and the changed run
    whole = "\n".join(lines(screen, 140))
    assert "rip replay" not in whole
    assert "no jump" not in whole
    assert '" w' in lines(screen, 80)[0]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_it_fits_its_width_and_breaks_no_command(tmp_path: Path, width: int) -> None:
    name = "results/" + "a-very-long-name-of-a-folder-" * 3
    screen = screen_of(tmp_path, two_causes(tmp_path), name)
    shown = lines(screen, width)
    for command in (f"rip confirm {name} 2", f"rip report {name} -o report.html"):
        assert sum(command in line for line in shown) == 1
    assert [line for line in shown if len(line) > width and "rip " not in line] == []
    assert all(line == line.rstrip() for line in shown)


def test_an_equal_result_says_what_it_achieved_and_how_little_it_proves(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, equal(tmp_path, 2))
    assert screen.state == "equal"
    assert row(screen, "effect")[0] == (
        "6 fields of the environment changed; none had an effect on these 2 requests"
    )
    assert row(screen, "proves")[0] == "2 equal answers: up to 78 % may still differ (95 % confidence)"
    assert screen.safe == "safe under: token, numeric, bitwise"
    assert row(screen, "next")[0].startswith("nothing to do")


def test_what_an_experiment_decided_is_shown_and_leads(tmp_path: Path) -> None:
    verdict = two_causes(tmp_path)
    decided = Confirmation(state="confirmed", evidence=[], created="2026-01-01T00:00:00Z")
    weights, variable = verdict.causes
    proven = variable.model_copy(update={"confirmation": decided})
    screen = screen_of(tmp_path, verdict.model_copy(update={"causes": [weights, proven]}))
    assert row(screen, "cause") == ("2. ATEN_CPU_CAPABILITY: not set → default", "proven by experiment")
    assert row(screen, "also")[0].startswith("1. Different weights")
    assert row(screen, "next")[0] == "fix what is proven, and replay B"


def test_unlikely_causes_share_a_row_and_repeat_no_evidence(tmp_path: Path) -> None:
    verdict = two_causes(tmp_path)
    weights, variable = verdict.causes
    new = ShapeDiffers(name="batch_size", a=1, b=2)
    low = variable.model_copy(update={"confidence": "low", "evidence": [weights.evidence[0], new]})
    causes = [weights, low, low]
    screen = screen_of(tmp_path, verdict.model_copy(update={"causes": causes}))
    assert row(screen, "also") == ("2 unlikely causes", "more: --verbose")
    assert own_evidence(causes, 0) == weights.evidence
    assert own_evidence(causes, 1) == [new]
    assert own_evidence(causes, 2) == []


def test_a_sparkline_tells_equal_unseen_and_not_finite_from_each_other() -> None:
    drifts = (0.0, None, 1e-6, 1e-3, float("inf"))
    assert sparkline(Course(drifts, ""), 9) == "·?▁█!"
    assert sparkline(Course((0.0,) * 6 + (1e-3,) * 3, ""), 3) == "··█"


def test_the_first_words_of_a_prompt_are_the_users(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}]
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}]
    long = {"prompt_text": "once\nupon " + "a time " * 40}
    for envelope, said in (
        ({"messages": chat}, "What is this?"),
        (long, "once upon" + " a time" * 7 + "…"),
        ({"prompt_token_ids": [1]}, None),
    ):
        one = Request(request_id="r", envelope_sha256="0" * 64, envelope={"request_id": "r", **envelope})
        assert prompt_words(header(SITES, requests=[one])).get("r") == said
    assert prompt_words(None) == {}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The two causes as a page and as Markdown."""
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    two_causes(tmp_path)
    write_report(tmp_path / "result", tmp_path / "r.html")
    write_report(tmp_path / "result", tmp_path / "r.md", form="markdown")
    return (tmp_path / "r.html").read_text(), (tmp_path / "r.md").read_text()


def test_the_report_opens_with_the_same_rows_and_folds_the_rest(
    tmp_path: Path, reports: tuple[str, str]
) -> None:
    html, markdown = reports
    first = html.split("<section", 1)[0]
    for text in ("likely, not proven", "rounding-sized", "rip confirm result 2", "Safe under no level"):
        assert text in first
        assert text in markdown.split("## Causes")[0]
    assert "rip replay" not in first
    assert "rip replay" in html  # in the details of its cause
    assert html.count("<section") == html.count('<details class="print fold">')
    # The first difference and the jump have a box each: in the thumbnail, by layer, by site, in depth.
    for kind in ("first", "jump"):
        assert first.count(f'class="mark {kind}"') == 1
        assert html.count(f'class="mark {kind}"') >= 3
    assert "grows beyond rounding" in html


def test_words_of_a_prompt_are_escaped_in_both_forms(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    a, b = pair()
    flip(b, 2)
    for name, one in (("a", a), ("b", b)):
        write_trace(tmp_path / f"{name}.parquet", [one], about("r0", text=HOSTILE))
    diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "result")
    for name, form in (("r.html", "html"), ("r.md", "markdown")):
        write_report(tmp_path / "result", tmp_path / name, form="html" if form == "html" else "markdown")
        text = (tmp_path / name).read_text()
        assert "<img" not in text
        assert "&lt;img src=x" in text
    assert "&#124; &#96;x&#96; &#91;y&#93;(z)" in text


def rip_diverge(folder: Path, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m rip diverge a.parquet b.parquet --force {shell}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_reader_that_stops_and_a_locale_without_its_marks_change_no_exit_code(tmp_path: Path) -> None:
    two_causes(tmp_path)
    cut = rip_diverge(tmp_path, "| head -1; exit ${PIPESTATUS[0]}")
    assert (cut.returncode, cut.stdout[:1], cut.stdout.count("\n")) == (1, "✗", 1)
    plain = rip_diverge(tmp_path, "", PYTHONIOENCODING="ascii")
    assert plain.returncode == 1
    assert plain.stdout.startswith("\\u2717 The answer differs")
    assert "Traceback" not in plain.stderr
