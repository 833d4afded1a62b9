"""What counts as a change between two fingerprints, in which order, and what of it fails a check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.fingerprint.drift import GROUPS, by_risk, compare, drift, failing, source_changes
from rip.fingerprint.present.drift_report import to_html, to_markdown
from rip.fingerprint.present.drift_sentences import before_and_after, headline, list_replays, permission_note
from rip.fingerprint.process.proc import NO_PERMISSION
from rip.schemas.change import NO_RULE, Change, Drift, SourceChange
from rip.schemas.claim import LEVELS, Level
from rip.schemas.fingerprint import (
    FLAT_KEYS,
    NOT_SET,
    SECTIONS,
    Fact,
    Fingerprint,
    Section,
    fact,
    unavailable,
)


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


def changes_of_every_risk() -> list[Change]:
    rules: list[tuple[Level | None, str]] = [*((level, "why (who)") for level in LEVELS), (None, "why (who)")]
    made = [Change(section="cpu", field=str(risk), risk=risk, rule=rule) for risk, rule in rules]
    return [*made, Change(section="cpu", field="unruled")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (fact("a", "s"), fact("b", "s")),
        (fact(1, "s"), fact(2, "s")),
        (fact(True, "s"), fact(1, "s")),
        (fact("1", "s"), fact(1, "s")),
        (fact({"a": [1]}, "s"), fact({"a": [2]}, "s")),
        (fact("a", "s"), unavailable("gone", "s")),
        (unavailable("not installed", "s"), unavailable("not loaded", "s")),
        (None, fact("a", "s")),
        (fact("a", "s"), None),
    ],
)
def test_a_change(before: Fact | None, after: Fact | None) -> None:
    changes = drift(*one(before, after))
    assert [(change.before, change.after) for change in changes] == [(before, after)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (fact("a", "s"), fact("a", "s")),
        (fact({"a": 1, "b": 2}, "s"), fact({"b": 2, "a": 1}, "s")),
        (fact(1, "s"), fact(1.0, "s")),
        (unavailable("not set", "s"), unavailable("not set", "s")),
        (fact(2**60, "s"), fact(str(2**60), "s")),  # as a stored document keeps it
    ],
)
def test_no_change(before: Fact, after: Fact) -> None:
    assert drift(*one(before, after)) == []


def test_another_source_is_a_note_and_no_change() -> None:
    base, now = one(fact("a", "importlib.metadata"), fact("a", "torch"))
    assert drift(base, now) == []
    assert source_changes(base, now) == [
        SourceChange(section="cpu", field="model", before="importlib.metadata", after="torch")
    ]
    assert compare(base, now).source_changes == ["cpu.model: importlib.metadata → torch"]
    assert base.root_digest != now.root_digest


def test_what_another_strength_of_hashing_leaves_out_is_not_compared() -> None:
    left_out = unavailable("all bytes were not read", "strength:claimed")
    base, now = one(fact("ab" * 32, "tensor-blake3:verified"), left_out, "model", "tensors_root")
    found = compare(base, now)
    assert (found.changes, found.not_compared) == ([], ["model.tensors_root"])
    gone, now = one(
        fact("ab" * 32, "s"), unavailable("no model was given", "argument"), "model", "tensors_root"
    )
    assert len(compare(gone, now).changes) == 1, "other reasons are changes"


@pytest.mark.parametrize(
    "untold",
    [
        unavailable("not in the pasted text", "pasted:torch.collect_env"),
        unavailable("the server does not tell", "untold:server"),
        unavailable("all bytes were not read", "strength:claimed"),
    ],
)
def test_what_neither_side_tells_is_not_compared(untold: Fact) -> None:
    found = compare(*one(untold, untold, "model", "sha256"))
    assert (found.changes, found.compared, found.not_compared) == ([], 0, ["model.sha256"])
    told = unavailable("not installed", "importlib.metadata")
    found = compare(*one(told, told, "model", "sha256"))
    assert (found.changes, found.compared, found.not_compared) == ([], 1, None), "that says something"


def test_tables_of_pasted_text_without_a_common_entry_are_not_compared() -> None:
    def side(name: str, source: str) -> Fact:
        return fact({name: "1.0"}, source)

    pasted = side("nvidia-nccl-cu12", "pasted:torch.collect_env")
    found = compare(*one(pasted, side("nvidia-cudnn-cu12", "s"), "libraries", "installed_packages"))
    assert (found.compared, found.not_compared) == (0, ["libraries.installed_packages"])
    found = compare(*one(pasted, side("nvidia-nccl-cu12", "s"), "libraries", "installed_packages"))
    assert (found.compared, found.not_compared) == (1, None)


def test_only_fields_that_both_tell_are_counted() -> None:
    observed = {"observed": fact("a server, by what it answers", "rip")}
    base = document(process=observed, engine={"version": fact("1", "s"), "name": fact("vllm", "s")})
    now = document(process=observed, engine={"version": fact("1", "s")})
    found = compare(base, now)
    assert (found.compared, found.not_compared) == (1, ["engine.name"])
    assert "1 field could not be compared: one or both sides do not report it (1 compared)" in to_markdown(
        found, base, now, ("a", "b")
    )


def of_process(**libraries: Fact) -> Fingerprint:
    observed = {"observed": fact("another process, from outside", "rip")}
    return document(process=observed, libraries=libraries, cpu={"model": fact("m", "s")})


def test_what_permission_was_missing_for_is_not_compared_and_said_with_the_mend() -> None:
    closed = unavailable(NO_PERMISSION, "proc-maps")
    base = of_process(
        loaded=fact({"a": {}}, "s"), installed_packages=fact({"a": "1"}, "s"), curand=fact(1, "s")
    )
    now = of_process(loaded=closed, installed_packages=closed)
    found = compare(base, now)
    assert (found.changes, found.compared) == ([], 1)
    assert set(found.not_compared or ()) == {
        f"libraries.{name}" for name in ("loaded", "installed_packages", "curand")
    }
    note = permission_note(base, now, ("base.json", "process 7"))
    assert note is not None
    assert "2 of process 7" in note
    assert "as root" in note
    assert permission_note(base, base, ("a", "b")) is None


def test_a_field_that_another_release_of_rip_did_not_read_is_not_compared() -> None:
    facts = {"model": fact("a", "s")}
    older = Fingerprint.build("0.0.9", "then", {"cpu": Section(facts=facts)})
    now = document(cpu={**facts, "blas": fact("b", "s")})
    assert drift(older, now) == []
    assert compare(older, now).not_compared == ["cpu.blas"]
    assert [change.name for change in drift(document(cpu=facts), now)] == ["cpu.blas"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_variable_that_was_set_or_taken_out_reads_so(turned: bool) -> None:
    sides = (unavailable(NOT_SET, "environment"), fact("false", "environment"))
    before, after = reversed(sides) if turned else sides
    [change] = drift(*one(before, after, "determinism", "VLLM_ROCM_USE_AITER"))
    assert before_and_after(change) == (("false", "not set") if turned else ("not set", "false"))


def test_why_another_kind_of_reading_has_no_value_is_no_change() -> None:
    here, there = unavailable("no copy was found", "s"), unavailable("the process has not loaded it", "s")
    self_ = document(process={"observed": fact("the process of rip itself", "rip")}, libraries={"nccl": here})
    assert "libraries.nccl" in (compare(self_, of_process(nccl=there)).not_compared or ())
    assert [change.name for change in drift(of_process(nccl=here), of_process(nccl=there))] == [
        "libraries.nccl"
    ]


@pytest.mark.parametrize(
    ("place", "build", "state", "risk", "why"),
    [
        ("b", "00", "the loaded file is at its path", None, "only from a different path"),
        ("a", "00", "replaced on disk since it was loaded", None, "what is loaded did not change"),
        ("a", "11", "the loaded file is at its path", "bitwise", "a different build"),
        ("b", "11", "replaced on disk since it was loaded", "bitwise", "a different build"),
    ],
)
def test_only_another_build_is_called_one(
    place: str, build: str, state: str, risk: Level | None, why: str
) -> None:
    entry = {"family": "nccl", "build_id": "00", "state": "the loaded file is at its path"}
    after = fact({place: {**entry, "build_id": build, "state": state}}, "s")
    [change] = drift(*one(fact({"a": entry}, "s"), after, "libraries", "loaded"))
    assert change.risk == risk
    assert why in change.rule


def test_a_loaded_copy_of_the_same_build_in_another_place_puts_nothing_at_risk() -> None:
    def copies(place: str, build: str) -> Fact:
        return fact({place: {"loaded": True, "build_id": build}}, "s")

    [change] = drift(*one(copies("a", "00"), copies("b", "00"), "libraries", "nccl_copies"))
    assert change.risk is None
    assert "only its path" in change.rule
    [change] = drift(*one(copies("a", "00"), copies("b", "11"), "libraries", "cublas_copies"))
    assert change.risk == "bitwise"


def test_readings_that_neither_source_could_make_are_no_other_evidence() -> None:
    base, now = one(unavailable("not installed", "nvml"), unavailable("not installed", "procfs"))
    assert (drift(base, now), source_changes(base, now)) == ([], [])


def test_a_long_field_name_breaks_after_dots_and_underscores() -> None:
    base, now = one(fact("1", "s"), fact("2", "s"), "determinism", "OMP_NUM_THREADS")
    made = to_html(compare(base, now), base, now, ("a", "b"))
    assert "<th>determinism.<wbr>OMP_<wbr>NUM_<wbr>THREADS</th>" in made


def test_volatile_readings_are_not_compared() -> None:
    sides = [
        Fingerprint.build("0", "now", {"process": Section(volatile={"pid": fact(pid, "getpid")})})
        for pid in (1, 2)
    ]
    assert drift(*sides) == []
    assert sides[0].root_digest == sides[1].root_digest


def test_flat_keys_come_first_then_sections_in_their_order() -> None:
    fields = [*FLAT_KEYS.values(), *((section, "another") for section in SECTIONS), ("zoo", "unknown")]
    sections: dict[str, dict[str, Fact]] = {}
    for section, field in reversed(fields):
        sections.setdefault(section, {})[field] = fact("x", "s")
    found = [(change.section, change.field) for change in drift(document(), document(**sections))]
    assert found == fields


def test_a_change_says_level_reason_source_and_what_to_replay() -> None:
    change = drift(*one(fact("12.8", "s"), fact("13.0", "s"), "libraries", "cublas"))[0]
    assert change.risk == "bitwise"
    assert change.rule.endswith("(cuBLAS, Results reproducibility)")
    assert change.sources == ["https://docs.nvidia.com/cuda/cublas/#results-reproducibility"]
    assert "rip replay" in str(change.replay)


def test_a_field_without_a_rule_says_so() -> None:
    change = drift(*one(fact(1, "s"), fact(2, "s"), "zoo", "animals"))[0]
    assert (change.risk, change.rule, change.has_rule) == (None, NO_RULE, False)


def test_groups_go_from_the_gravest_to_none_and_keep_the_order_within() -> None:
    changes = changes_of_every_risk()
    grouped = by_risk([*changes, *changes])
    assert [group for group, _ in grouped] == list(GROUPS)
    assert all(len(members) == 2 for _, members in grouped)


@pytest.mark.parametrize(
    ("level", "counted"),
    [
        (None, {"bitwise", "numeric", "token", "semantic", "None", "unruled"}),
        ("bitwise", {"bitwise", "numeric", "token", "semantic", "unruled"}),
        ("numeric", {"numeric", "token", "semantic", "unruled"}),
        ("token", {"token", "semantic", "unruled"}),
        ("semantic", {"semantic", "unruled"}),
    ],
)
def test_a_check_fails_on_this_level_and_weaker_promises_and_on_the_unknown(
    level: Level | None, counted: set[str]
) -> None:
    assert {change.field for change in failing(changes_of_every_risk(), level)} == counted


def test_a_cache_that_others_fill_breaks_no_check_where_it_puts_nothing_at_risk() -> None:
    def sides(engine: str) -> list[Fingerprint]:
        return [
            document(
                engine={"name": fact(engine, "s")},
                gpus={"count": fact(0, "s")},
                kernels={"inductor_cache": fact({"files": files}, "s")},
            )
            for files in (1, 2)
        ]

    idle, used = drift(*sides("hf")), drift(*sides("vllm"))
    assert [change.name for change in (*idle, *used)] == ["kernels.inductor_cache"] * 2
    assert (failing(idle), failing(used)) == ([], used)


def test_ignored_changes_are_listed_apart() -> None:
    base = document(cpu={"model": fact("a", "s"), "blas": fact("a", "s")}, os={"kernel": fact("6.1", "s")})
    now = document(cpu={"model": fact("b", "s"), "blas": fact("b", "s")}, os={"kernel": fact("6.2", "s")})
    found = compare(base, now, ["cpu.b*", "os.*", "gpus.*"])
    assert [change.name for change in found.changes] == ["cpu.model"]
    assert [change.name for change in found.ignored] == ["cpu.blas", "os.kernel"]
    assert found.compared == 3


def test_of_two_tables_only_the_differing_entries_are_shown() -> None:
    digest = "ab" * 32
    before = fact({"same": 1, "w.safetensors": {"sha256": digest, "size": 3}}, "s")
    after = fact({"same": 1, "w.safetensors": {"sha256": "cd" * 32, "size": 3}, "more": 1}, "s")
    change = drift(*one(before, after))[0]
    assert before_and_after(change) == (
        "more=absent, w.safetensors: (sha256=abababababab…)",
        "more=1, w.safetensors: (sha256=cdcdcdcdcdcd…)",
    )


def test_of_many_tensors_the_first_are_named_and_the_others_counted() -> None:
    before = {f"layers.{index}.weight": "ab" * 32 for index in range(30)}
    after = {**before, **{f"layers.{index}.weight": "cd" * 32 for index in range(10, 20)}}
    change = drift(*one(fact(before, "s"), fact(after, "s"), "model", "tensors"))[0]
    shown = before_and_after(change)[1]
    assert shown.startswith("layers.10.weight=cdcdcdcdcdcd…, layers.11.weight=")
    assert "layers.16" not in shown
    assert shown.endswith("; 10 of 30 entries differ")


def test_of_two_lists_only_what_one_has_more_is_shown() -> None:
    change = drift(*one(fact(["avx", "avx2", "fma"], "s"), fact(["avx", "avx2", "amx_bf16"], "s")))[0]
    assert before_and_after(change) == ("2 in common and fma", "2 in common and amx_bf16")
    order = drift(*one(fact(["a", "b"], "s"), fact(["b", "a"], "s")))[0]
    assert before_and_after(order) == ("a, b", "b, a")


def test_an_empty_value_can_be_seen() -> None:
    change = drift(*one(fact([], "s"), fact(["two copies at once"], "s"), "libraries", "warnings"))[0]
    assert before_and_after(change) == ("[]", "two copies at once")
    assert before_and_after(drift(*one(fact("", "s"), fact({}, "s")))[0]) == ("''", "{}")


def test_a_long_value_is_cut_for_people_and_kept_in_the_document() -> None:
    base, now = one(fact("x" * 5000, "s"), fact("y" * 5000, "s"))
    found = compare(base, now)
    assert before_and_after(found.changes[0])[0] == "x" * 200 + "… (5000 characters)"
    assert "y" * 5000 in found.to_json()


def test_control_characters_of_a_foreign_document_stay_visible() -> None:
    change = drift(*one(fact("a\x1b[2Jb", "s"), unavailable("x\x07", "s")))[0]
    assert before_and_after(change) == ("a\\x1b[2Jb", "unavailable: x\\x07")


def test_advice_is_given_once_with_the_fields_that_ask_for_it() -> None:
    base = document(cpu={"torch_threads": fact(1, "s"), "openmp": fact("a", "s"), "model": fact("a", "s")})
    now = document(cpu={"torch_threads": fact(2, "s"), "openmp": fact("b", "s"), "model": fact("b", "s")})
    advised = list_replays(drift(base, now))
    assert [fields for _, fields in advised] == [["cpu.model"], ["cpu.openmp", "cpu.torch_threads"]]
    assert "--set threads=" in advised[1][0]


def test_the_headline_counts_by_risk() -> None:
    found = Drift(base_root_digest="", now_root_digest="", changes=changes_of_every_risk())
    assert headline(found) == "6 changes (semantic 1, token 1, numeric 1, bitwise 1, no rule 1, none 1)"


json_values = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=json_values)
def test_a_stored_fingerprint_equals_the_one_that_was_read(value: Any) -> None:
    now = document(cpu={"model": fact(value, "s")})
    stored = Fingerprint.from_json(now.to_json(), "it")
    assert compare(stored, now).changes == []
    assert stored.root_digest == now.root_digest


@given(before=json_values, after=json_values)
def test_any_change_can_be_shown(before: Any, after: Any) -> None:
    base, now = one(fact(before, "s"), fact(after, "s"))
    found = compare(base, now)
    for change in found.changes:
        assert all("\n" not in side and "\x1b" not in side for side in before_and_after(change))
    to_markdown(found, base, now, ("a", "b"))
