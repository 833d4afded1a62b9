"""Every field that is read is in the tables, has a rule, and stands in the document."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from fakes import servers
from rip.fingerprint import field_tables
from rip.fingerprint.collect import collect
from rip.fingerprint.engine_arguments.meaning import EXPECTED, SETTINGS
from rip.fingerprint.field_tables import FIELDS
from rip.fingerprint.model.ref import resolve
from rip.fingerprint.probes.pasted_text import from_text
from rip.fingerprint.remote.address import Server
from rip.fingerprint.rules import rules_of
from rip.schemas.fingerprint import FLAT_KEYS, SECTIONS, Fingerprint

PASTED = Path(__file__).parent / "pasted"


def strangers(fingerprint: Fingerprint) -> list[str]:
    """The fields of a fingerprint that no table lists, or that have no rule."""
    return [
        f"{section}.{field}"
        for section, content in fingerprint.sections.items()
        for field in content.facts
        if not is_listed(section, field) or not rules_of(section, field)
    ]


def is_listed(section: str, field: str) -> bool:
    return any(fnmatchcase(field, known.name) for known in FIELDS[section])


def test_every_section_has_its_fields_and_every_flat_key_is_one() -> None:
    assert set(FIELDS) == set(SECTIONS)
    for section, field in FLAT_KEYS.values():
        assert any(known.name == field for known in FIELDS[section]), (section, field)


def test_no_field_is_hidden_behind_an_earlier_row() -> None:
    for section, fields in FIELDS.items():
        for place, known in enumerate(fields):
            hiding = [earlier.name for earlier in fields[:place] if fnmatchcase(known.name, earlier.name)]
            assert hiding == [], (section, known.name)


def test_what_is_read_of_this_machine_and_a_model(model_folder: Path) -> None:
    read = collect(resolve(str(model_folder)))
    assert strangers(read) == []
    assert len([name for content in read.sections.values() for name in content.facts]) > 200


def test_what_is_read_of_a_gguf(write_gguf: object) -> None:
    assert callable(write_gguf)
    assert strangers(collect(resolve(str(write_gguf())))) == []


def test_what_is_read_of_a_process() -> None:
    assert strangers(collect(pid=os.getpid())) == []


@pytest.mark.parametrize("engine", [*servers.BY_ENGINE, "vllm in development mode"])
def test_what_a_server_tells(engine: str) -> None:
    answers = servers.BY_ENGINE.get(engine, servers.VLLM_DEVELOPMENT)
    with servers.serve(answers) as served:
        assert strangers(collect(server=Server(served.url))) == []


@pytest.mark.parametrize("text", sorted(path.name for path in PASTED.iterdir()))
def test_what_a_pasted_text_tells(text: str) -> None:
    made = from_text((PASTED / text).read_bytes())
    assert made is not None
    assert strangers(made) == []


def engine_fields() -> Iterator[tuple[str, str]]:
    yield from EXPECTED
    for table in SETTINGS.values():
        for place in table.values():
            section, _, field = place.removeprefix("!").partition(".")
            yield section, field


def test_every_setting_of_an_engine() -> None:
    unknown = [place for place in engine_fields() if not is_listed(*place) or not rules_of(*place)]
    assert unknown == []


def test_the_document_is_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert field_tables.main(["--check"]) == 0, "make fields"
    assert "frameworks.torch" not in capsys.readouterr().err


def test_a_document_out_of_step_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "fingerprint.md"
    stale.write_text(f"Text.\n\n{field_tables.BEGIN}\n\nold\n\n{field_tables.END}\nMore.\n")
    monkeypatch.setattr(field_tables, "DOCUMENT", stale)
    assert field_tables.main(["--check"]) == 1
    assert "make fields" in capsys.readouterr().err
    assert field_tables.main([]) == 0
    assert field_tables.main(["--check"]) == 0
    made = stale.read_text()
    assert made.startswith("Text.\n")
    assert made.endswith("More.\n")
    assert "| `sm_count` |" in made


def test_every_variable_stands_in_the_document_with_its_rule() -> None:
    rows = [
        line for line in field_tables.tables().splitlines() if line.startswith("| `CUBLAS_WORKSPACE_CONFIG`")
    ]
    assert len(rows) == 1
    assert "**bitwise**" in rows[0]
    assert "cuBLAS, Results reproducibility" in rows[0]
