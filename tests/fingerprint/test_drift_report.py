"""The reports of a drift: foreign text stays text, and only changes are marked."""

from __future__ import annotations

from rip.fingerprint.drift import compare
from rip.fingerprint.present.drift_report import to_html, to_markdown
from rip.schemas.change import Change, Drift
from rip.schemas.fingerprint import FLAT_KEYS, Fact, Fingerprint, Section, fact, unavailable


def document(**sections: dict[str, Fact]) -> Fingerprint:
    built = {name: Section(facts=facts) for name, facts in sections.items()}
    return Fingerprint.build("0.1.0", "2026-07-14T09:30:00+00:00", built)


def one(
    before: Fact | None, after: Fact | None, section: str = "cpu", field: str = "model"
) -> tuple[Fingerprint, Fingerprint]:
    sides = [
        document(**{section: {} if reading is None else {field: reading}}) for reading in (before, after)
    ]
    return sides[0], sides[1]


HOSTILE = "<script>alert(1)</script> | `x` [a](javascript:b) *c*\n# d"


def hostile_drift() -> tuple[Drift, Fingerprint, Fingerprint]:
    base = document(zoo={HOSTILE: fact(HOSTILE, HOSTILE)}, engine={"version": fact(HOSTILE, "s")})
    now = document(zoo={HOSTILE: unavailable(HOSTILE, "s")}, engine={"version": fact("1", "s")})
    return compare(base, now), base, now


def test_markdown_shows_hostile_text_as_text() -> None:
    found, base, now = hostile_drift()
    made = to_markdown(found, base, now, (HOSTILE, "now.json"))
    rows = [line for line in made.splitlines() if "zoo" in line and line.startswith("|")]
    assert len(rows) == 1, "a line break in a value does not end its row"
    assert rows[0].replace("\\|", "").count("|") == 5, "four cells"
    for markup in ("<script", "`x`", "[a](javascript", "*c*"):
        assert markup not in made.replace("\\" + markup[0], "")


def test_html_shows_hostile_text_as_text_and_loads_nothing() -> None:
    found, base, now = hostile_drift()
    made = to_html(found, base, now, (HOSTILE, "now.json"))
    assert "<script" not in made
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
    assert "default-src 'none'" in made
    assert "src=" not in made
    assert 'href="javascript' not in made
    for key in FLAT_KEYS:
        assert f"<th>{key}</th>" in made.replace("<wbr>", "")


def test_of_the_thirteen_keys_only_changes_are_marked() -> None:
    base = document(
        frameworks={"torch": fact("2.12", "s")},
        engine={"version": fact("1", "s")},
        model={"sha256": unavailable("not read", "strength:sampled")},
    )
    now = document(
        frameworks={"torch": fact("2.13", "s")},
        engine={"version": fact("1", "s")},
        model={"sha256": fact("ab" * 32, "s")},
    )
    found = compare(base, now)
    made = to_html(found, base, now, ("a", "b")).replace("<wbr>", "")
    kinds = (
        ("torch_version", "changed"),
        ("engine_version", "equal"),
        ("model_sha256", "unknown"),
        ("cuda_version", "unknown"),  # neither has it
    )
    for key, kind in kinds:
        assert f'<tr class="{kind}"><th>{key}</th>' in made
    assert "among them model_sha256" in to_markdown(found, base, now, ("a", "b")).replace("\\", "")


def test_a_foreign_address_becomes_no_link() -> None:
    change = Change(
        section="cpu", field="model", rule="why (who)", sources=["javascript:alert(1)", 'https://a"b']
    )
    found = Drift(base_root_digest="", now_root_digest="", changes=[change])
    base, now = one(fact(1, "s"), fact(2, "s"))
    for made in (to_markdown(found, base, now, ("a", "b")), to_html(found, base, now, ("a", "b"))):
        assert "javascript:" not in made
        assert 'https://a"b' not in made
