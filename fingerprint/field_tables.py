"""Every field of a fingerprint, and the field tables of `docs/fingerprint.md`, which it writes.

Run `python -m rip.fingerprint.field_tables`. With `--check` it only says whether the document is in step.
What a field is stands in the tables of fields, what a change of it puts at risk in the rules.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..schemas.fingerprint import FLAT_KEYS, SECTIONS
from .fields import machine_fields, model_fields
from .fields.known_names import VARIABLES
from .rules import RULES, Rule, advice, rules_of


@dataclass(frozen=True)
class Field:
    """One field, or several of one kind."""

    name: str
    """In its section, with shell wildcards."""
    meaning: str
    source: str
    """Where it is read."""


_VARIABLES = (
    ("batch_invariance", "the switches that promise results independent of the batch", ""),
    ("engine_seed", "the engine's own seed", "command line; the server"),
    ("on_policy_target", "SGLang: whose kernels to equal", "command line; the server"),
    *((name, f"variable of {owner}", "") for owner, names in VARIABLES.items() for name in names),
)

FIELDS: dict[str, tuple[Field, ...]] = {
    section: tuple(Field(name, meaning, source or "the environment") for name, meaning, source in rows)
    for section, rows in {
        **model_fields.ROWS,
        **machine_fields.ROWS,
        "determinism": _VARIABLES,
    }.items()
}
"""Section → its fields, special names before wildcards."""


DOCUMENT = Path(__file__).parent.parent / "docs" / "fingerprint.md"
BEGIN = "<!-- The tables below are generated: make fields -->"
END = "<!-- End of the generated tables. -->"
_CODES = {text: name.lower().replace("_", "-") for name, text in vars(advice).items() if name.isupper()}
"""Advice → its short name in the tables."""


def tables() -> str:
    """The generated part: what to replay by its short name, a table of every section, the documents."""
    parts = ["| to know | what to replay |", "|---|---|"]
    parts += [f"| `{code}` | {text} |" for text, code in sorted(_CODES.items(), key=lambda item: item[1])]
    keys = {field: key for key, field in FLAT_KEYS.items()}
    for section in SECTIONS:
        parts += ["", f"### `{section}`", ""]
        parts += [
            "| field | what it is | read from | at risk, why, who says so | to know |",
            "|---|---|---|---|---|",
        ]
        parts += [_row(section, field, keys) for field in FIELDS[section]]
    documents = {source.title: source.url for rule in RULES for source in rule.sources if source.url}
    parts += ["", "### Who says so", ""]
    parts += [f"- [{title}]({url})" for title, url in sorted(documents.items())]
    return "\n".join(parts) + "\n"


def _row(section: str, field: Field, keys: dict[tuple[str, str], str]) -> str:
    key = keys.get((section, field.name))
    rules = rules_of(section, field.name)
    cells = (
        f"`{field.name}`" + (f" = `{key}`" if key else ""),
        field.meaning,
        field.source,
        "<br>".join(map(_rule, rules)) or "no rule, replay to know",
        ", ".join(dict.fromkeys(f"`{_CODES[rule.replay]}`" for rule in rules)),
    )
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _rule(rule: Rule) -> str:
    condition = f"*{rule.when.text}:* " if rule.when else ""
    return f"{condition}**{rule.risk or 'none'}**: {rule.text()}"


def with_tables(text: str) -> str:
    """The document with its generated part replaced.

    Raises:
        ValueError: The document has lost its marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name} needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the document, or with `--check` compare it. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m rip.fingerprint.field_tables [--check]", file=sys.stderr)
        return 2
    text = DOCUMENT.read_text("utf-8")
    made = with_tables(text)
    if arguments:
        if made != text:
            print(f"docs/{DOCUMENT.name} is not in step\n     fix: make fields", file=sys.stderr)
        return int(made != text)
    DOCUMENT.write_text(made, "utf-8")
    print(f"Wrote {DOCUMENT.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
