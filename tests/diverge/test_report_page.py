"""The postmortem's page in a real browser: no error, no overflow, keyboard, theme, copying, paper."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes import results
from rip.diverge.present.report.build import write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}\u202e\x00"

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not on PATH")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=2000"
)


def made(tmp_path: Path, scene: results.Scene) -> Path:
    """The page of a scene."""
    results.write_result(tmp_path / "result", scene)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, side in zip(paths, "ab", strict=True):
        results.write_trace(path, scene, side)
    write_report(tmp_path / "result", tmp_path / "r.html", *paths)
    return tmp_path / "r.html"


def browse(page: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Open a page; `stdout` holds the document where `--dump-dom` is asked for."""
    command = [
        "chromium",
        *FLAGS.split(),
        f"--user-data-dir={page.parent / 'profile'}",
        *more,
        f"file://{page}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def opened(page: Path) -> str:
    """What the console of a browser says about a page."""
    done = browse(page, "--dump-dom")
    assert "rip · postmortem" in done.stdout
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def with_script(page: Path, script: str) -> Path:
    """The page without its policy and with one more script: what a reader does, and what they then see."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    changed = page.with_name("acted.html")
    changed.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    return changed


@pytest.mark.parametrize("equal", [False, True])
def test_it_opens_without_an_error(tmp_path: Path, equal: bool) -> None:
    scene = results.Scene(request_ids=(HOSTILE, "req-2"), bitwise_equal=equal, words={25: HOSTILE})
    assert opened(made(tmp_path, scene)) == ""


def test_any_other_script_is_refused(tmp_path: Path) -> None:
    page = made(tmp_path, results.Scene())
    page.write_text(page.read_text().replace("</body>", "<script>alert(1)</script></body>"))
    assert "Content Security Policy" in opened(page)


ACTIONS = """
const pressed = (name) => new KeyboardEvent("keydown", { key: name, bubbles: true });
const key = (target, name) => target.dispatchEvent(pressed(name));
const tip = () => document.getElementById("tip").textContent;
const seen = [];
const theme = document.getElementById("theme");
seen.push(theme.textContent);
theme.click();
seen.push(document.documentElement.dataset.theme, theme.textContent);
document.querySelector("nav a").click();
location.hash = document.querySelector(".map").hash;
dispatchEvent(new HashChangeEvent("hashchange"));
seen.push(document.querySelector(".heat").closest("details").open);
for (const item of document.querySelectorAll("details.fold")) item.open = true;
const map = document.querySelector(".heat");
key(map, "ArrowRight"); key(map, "ArrowRight");
seen.push(tip());
const text = document.querySelector(".output .text");
key(text, "ArrowRight");
seen.push(tip());
key(text, "Escape");
seen.push(document.getElementById("tip").hidden);
const copy = document.querySelector(".copy");
seen.push(copy.hidden);
navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
copy.click();
setTimeout(() => { seen.push(getSelection().toString()); document.title = JSON.stringify(seen); }, 300);
"""


def test_a_reader_without_a_mouse_reads_cells_and_tokens_and_copies_a_command(tmp_path: Path) -> None:
    page = with_script(made(tmp_path, results.Scene()), ACTIONS)
    done = browse(page, "--dump-dom", "--blink-settings=preferredColorScheme=1")
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found
    # The button names what it does, and a link unfolds what it leads to.
    assert found[1].startswith('["dark theme","dark","light theme",true,')
    assert '"input_layernormlayer 1relative driftequal","step 0, position' in found[1]
    assert "probability" in found[1]
    # The tip is hidden, the button shown, and the command is selected where the clipboard refuses.
    assert 'true,false,"rip confirm result 1"]' in found[1]


OVERFLOW = """
for (const item of document.querySelectorAll("details")) item.open = true;
const wide = [...document.querySelectorAll(".scroll")].filter((item) => item.scrollWidth > item.clientWidth);
document.title = JSON.stringify([document.documentElement.scrollWidth <= innerWidth, innerWidth,
  wide.map((item) => item.textContent.slice(0, 60))]);
"""


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_overflows(tmp_path: Path, width: int) -> None:
    long = "a-request-id-that-somebody-made-of-a-trace-id-and-a-span-id-0123456789abcdef0123456789abcdef"
    page = with_script(made(tmp_path, results.Scene(request_ids=(long, "req-2"))), OVERFLOW)
    done = browse(page, "--dump-dom", f"--window-size={width},2000")
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found
    assert found[1] == f"[true,{width},[]]"


def test_on_a_narrow_screen_tables_scroll_inside_themselves(tmp_path: Path) -> None:
    page = with_script(made(tmp_path, results.Scene()), OVERFLOW)
    done = browse(page, "--dump-dom", "--window-size=420,2000")
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found
    assert re.match(r"\[true,\d+,\[.+\]\]", found[1])


def test_it_prints(tmp_path: Path) -> None:
    page = made(tmp_path, results.Scene())
    browse(page, f"--print-to-pdf={tmp_path / 'r.pdf'}", "--no-pdf-header-footer")
    pdf = (tmp_path / "r.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    # What is folded on the screen is unfolded on paper, which makes it longer.
    page.write_text(page.read_text().replace('class="print"', 'class="folded"'))
    browse(page, f"--print-to-pdf={tmp_path / 'folded.pdf'}", "--no-pdf-header-footer")
    folded = (tmp_path / "folded.pdf").read_bytes()
    assert pages >= 2
    assert len(folded) < len(pdf)
