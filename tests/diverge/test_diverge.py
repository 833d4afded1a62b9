"""`diverge` on synthetic traces with planted differences: what is found, where, and whether as an origin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import traces
from fakes.traces import Sequence, disturb, disturb_logits, header, llama_sites, sequence, write_trace
from fakes.verdicts import sentences
from rip.diverge.compare import Context, diverge
from rip.diverge.present.findings.sentences import unseen_before, where, why
from rip.schemas.errors import BadInput, NothingCompared
from rip.schemas.lane import Setting
from rip.schemas.trace import Site
from rip.schemas.verdict import Verdict

SITES = llama_sites(2)
S = len(SITES)


def made(seed: int = 1, **about: object) -> Sequence:
    return sequence(seed, S, **about)  # type: ignore[arg-type]


def compared(tmp_path: Path, a: list[Sequence], b: list[Sequence], **options: object) -> Verdict:
    """Write two traces and compare them; `a_*`, `b_*` options go to the headers, others to `diverge`."""
    about = {side: {k[2:]: v for k, v in options.items() if k.startswith(side + "_")} for side in "ab"}
    rows = options.get("rows_per_group", 1024)
    for side, sequences in (("a", a), ("b", b)):
        sites = about[side].pop("sites", SITES)
        name = tmp_path / f"{side}.parquet"
        write_trace(name, sequences, header(sites, [s.request_id for s in sequences], **about[side]), rows)  # type: ignore[arg-type]
    tolerance = options.get("tolerance")
    return diverge(
        tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out", Context(tolerance=tolerance)
    )  # type: ignore[arg-type]


def table(tmp_path: Path, name: str) -> list[dict[str, object]]:
    return pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist()


def states(verdict: Verdict) -> dict[str, str]:
    return {level: judged.state for level, judged in verdict.levels.items()}


def test_equal_traces_are_bitwise_equal(tmp_path: Path) -> None:
    verdict = compared(tmp_path, [made()], [made()])
    assert set(states(verdict).values()) == {"holds"}
    assert (verdict.level, verdict.first_token, verdict.first_site, verdict.causes) == (
        "bitwise",
        None,
        None,
        [],
    )
    assert verdict.compared.rows == 9 * S  # the last generated token was never fed to the model
    assert not table(tmp_path, "sites")
    assert verdict.max_abs_logit_diff == 0


def test_equal_nan_rows_are_equal(tmp_path: Path) -> None:
    pair = [made(), made()]
    for one in pair:
        one.sketch[3, 2], one.l2[3, 2] = np.nan, np.nan
        one.topk_logits[3, 1] = np.nan
    assert compared(tmp_path, [pair[0]], [pair[1]]).level == "bitwise"


@pytest.mark.parametrize("position", [0, 3, 4, 8])
@pytest.mark.parametrize("site", [0, 5, S - 1])
@pytest.mark.parametrize("rows_per_group", [1024, 4, 3])
def test_one_planted_row_is_named_as_origin(
    tmp_path: Path, position: int, site: int, rows_per_group: int
) -> None:
    other = made()
    disturb(other, position, site, 1e-3)
    verdict = compared(tmp_path, [made()], [other], rows_per_group=rows_per_group)
    first = verdict.first_site
    assert first is not None
    assert (first.position, first.site, first.is_origin) == (position, SITES[site].name, True)
    assert first.rel_drift == pytest.approx(1e-3, rel=0.02)
    assert states(verdict) == {
        "bitwise": "fails",
        "numeric": "not stated",
        "token": "holds",
        "semantic": "holds",
    }
    assert verdict.compared.rows_differing == 1
    [row] = table(tmp_path, "sites")
    assert (row["position"], row["site"]) == (position, site)
    totals = table(tmp_path, "site_totals")[site]
    assert totals["differing"] == 1
    assert totals["drift_p50"] == pytest.approx(first.rel_drift, rel=0.03)
    assert totals["drift_max"] == pytest.approx(first.rel_drift)
    tokens = table(tmp_path, "tokens")
    assert [row["sites_differing"] for row in tokens] == [int(p == position) for p in range(10)]


def test_causal_order_is_position_then_site(tmp_path: Path) -> None:
    other = made()
    disturb(other, 6, 0)
    disturb(other, 5, 7)
    disturb(other, 5, 3)
    verdict = compared(tmp_path, [made()], [other])
    assert verdict.first_site is not None
    assert (verdict.first_site.position, verdict.first_site.site) == (5, SITES[3].name)


def test_logits_are_the_last_site_of_a_position(tmp_path: Path) -> None:
    other = made()
    disturb_logits(other, 5, 0.02)
    disturb(other, 6, 0)
    verdict = compared(tmp_path, [made()], [other])
    assert verdict.first_site is not None
    assert (verdict.first_site.position, verdict.first_site.site, verdict.first_site.is_origin) == (
        5,
        "lm_head",
        True,
    )
    assert verdict.max_abs_logit_diff == pytest.approx(0.02, rel=1e-3)
    rows = table(tmp_path, "tokens")
    assert [row["position"] for row in rows if row["logits_equal"] is False] == [6]  # it chose the token at 6


def test_first_divergent_token_with_margins_and_drift(tmp_path: Path) -> None:
    one, other = made(), made()
    one.topk_logits[6, :2], other.topk_logits[6, :2] = [9.0, 8.75], [8.75, 9.0]
    other.logits_hash[6] += np.uint64(1)
    other.tokens[7:] += 1
    disturb(other, 8, 0)  # after the divergence: not comparable
    verdict = compared(tmp_path, [one], [other])
    first = verdict.first_token
    assert first is not None
    assert (first.position, first.step, first.token_a, first.token_b) == (
        7,
        3,
        one.tokens[7],
        other.tokens[7],
    )
    assert (first.margin_a, first.margin_b) == (0.25, -0.25)
    assert first.max_abs_logit_diff == 0.25
    assert verdict.compared.rows_differing == 0
    assert verdict.compared.positions == 7
    assert states(verdict) == {
        "bitwise": "fails", "numeric": "not stated", "token": "fails", "semantic": "not comparable"
    }  # fmt: skip
    rows = table(tmp_path, "tokens")
    assert [row["comparable"] for row in rows] == [True] * 7 + [False] * 3
    assert [row["max_abs_logit_diff"] is None for row in rows] == [True] + [False] * 7 + [True] * 2
    candidates = table(tmp_path, "topk")
    assert {row["position"] for row in candidates} == {5, 6, 7}
    chosen = [row for row in candidates if row["position"] == 7 and row["chosen"]]
    assert [(row["side"], row["step"], row["rank"]) for row in chosen] == [("a", 3, 0)]


def test_prompts_that_differ_at_the_first_position_fail_and_do_not_count_as_nothing(tmp_path: Path) -> None:
    other = made()
    other.tokens[0] += 1
    verdict = compared(tmp_path, [made()], [other])
    assert verdict.first_token is not None
    assert (verdict.first_token.position, verdict.first_token.step) == (0, None)
    assert verdict.levels["token"].state == "fails"
    assert verdict.causes[0].id == "prompt"
    assert verdict.compared.positions == 0


def test_a_strict_prefix_diverges_at_its_end(tmp_path: Path) -> None:
    verdict = compared(tmp_path, [made()], [made().rows(0, 8)])
    first = verdict.first_token
    assert first is not None
    assert (first.position, first.step, first.token_b) == (8, 4, None)
    assert first.margin_a is not None
    assert verdict.causes[0].id == "length"
    rows = table(tmp_path, "tokens")
    assert [row["token_b"] is None for row in rows] == [False] * 8 + [True] * 2
    assert states(verdict)["token"] == "fails"


def test_sequences_pair_by_request_and_sample_in_any_order(tmp_path: Path) -> None:
    a = [made(n, request_id=f"r{n}", sample=k) for n in range(3) for k in range(2)]
    b = [made(n, request_id=f"r{n}", sample=k) for n in (2, 0, 1) for k in (1, 0)]
    disturb(b[0], 4, 2)  # r2 sample 1
    verdict = compared(tmp_path, a, b, rows_per_group=7)
    assert verdict.compared.sequences == 6
    assert verdict.first_site is not None
    assert (verdict.first_site.request_id, verdict.first_site.sample) == ("r2", 1)
    assert verdict.compared.rows_differing == 1


def test_the_first_differing_sequence_is_the_first_in_the_order_of_a(tmp_path: Path) -> None:
    a = [made(n, request_id=f"r{n}") for n in range(3)]
    b = [made(n, request_id=f"r{n}") for n in range(3)]
    disturb(b[1], 2, 2)
    disturb(b[2], 1, 4)
    b[2].tokens[8] += 1
    verdict = compared(tmp_path, a, b)
    assert verdict.first_token is not None
    assert verdict.first_site is not None
    assert verdict.first_token.request_id == "r2"
    assert verdict.first_site.request_id == "r2"  # of the sequence whose tokens part, not of r1
    assert verdict.compared.sequences_diverging == 1


def test_sequences_in_one_trace_only_are_reported(tmp_path: Path) -> None:
    verdict = compared(
        tmp_path, [made(), made(2, request_id="only-a")], [made(), made(3, request_id="only-b")]
    )
    assert verdict.level == "bitwise"
    assert any("only-a" in line for line in sentences(verdict.not_seen))
    assert any("only-b" in line for line in sentences(verdict.not_seen))


def test_nothing_in_common_is_never_a_pass(tmp_path: Path) -> None:
    with pytest.raises(NothingCompared) as failure:
        compared(tmp_path, [made()], [made(request_id="other")])
    assert failure.value.exit_code == 3
    assert not (tmp_path / "out").exists()


def test_a_sequence_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is recorded twice"):
        compared(tmp_path, [made(), made()], [made()])


def test_cells_are_part_of_the_key_where_both_traces_have_them(tmp_path: Path) -> None:
    a, b = [made(), made(2)], [made(2), made()]
    for one, cell in zip(a + b, ("x", "y", "y", "x"), strict=True):
        one.cell = cell
    assert compared(tmp_path, a, b).level == "bitwise"


def test_sites_align_by_name_whatever_their_order_and_number(tmp_path: Path) -> None:
    order = [4, 0, 7, 2]
    other = made()
    disturb(other, 5, 7)
    for name in ("hashes", "present", "l2", "absmax", "sketch"):
        setattr(other, name, getattr(other, name)[:, order])
    verdict = compared(tmp_path, [made()], [other], b_sites=[SITES[i] for i in order])
    assert verdict.compared.sites == 4
    assert verdict.first_site is not None
    assert verdict.first_site.site == SITES[7].name
    assert not verdict.first_site.is_origin
    assert "only one of the traces" in unseen_before(verdict.first_site)
    assert [row["name"] for row in table(tmp_path, "site_totals")] == [SITES[i].name for i in sorted(order)]


def test_a_cached_prefix_hides_the_origin(tmp_path: Path) -> None:
    other = made()
    other.present[:3] = False
    disturb(other, 3, 2)
    verdict = compared(tmp_path, [made()], [other])
    assert verdict.first_site is not None
    assert not verdict.first_site.is_origin
    assert "position 0" in unseen_before(verdict.first_site)
    assert [row["sites_compared"] for row in table(tmp_path, "tokens")] == [0] * 3 + [S] * 6 + [0]


def test_sites_behind_all_others_that_were_skipped_do_not_hide_an_origin(tmp_path: Path) -> None:
    pair = [made(), made()]
    for one in pair:
        one.present[:3, -1] = False  # a head that is computed for the last prompt token only
    disturb(pair[1], 4, 2)
    verdict = compared(tmp_path, [pair[0]], [pair[1]])
    assert verdict.first_site is not None
    assert verdict.first_site.is_origin


def test_a_missing_site_in_the_middle_of_a_row_hides_the_origin(tmp_path: Path) -> None:
    other = made()
    other.present[4, 1] = False
    disturb(other, 4, 3)
    verdict = compared(tmp_path, [made()], [other])
    assert verdict.first_site is not None
    assert not verdict.first_site.is_origin
    assert SITES[1].label() in unseen_before(verdict.first_site)


def test_a_site_filter_in_the_header_hides_the_origin(tmp_path: Path) -> None:
    other = made()
    disturb(other, 4, 3)
    verdict = compared(tmp_path, [made()], [other], a_site_filter=r"mlp", b_site_filter=r"mlp")
    assert verdict.first_site is not None
    assert not verdict.first_site.is_origin


def test_traces_without_sites_fall_back_to_the_logits(tmp_path: Path) -> None:
    other = made()
    disturb_logits(other, 5)
    verdict = compared(tmp_path, [made()], [other], b_sites=[], a_sites=[])
    assert verdict.first_site is not None
    assert (verdict.first_site.site, verdict.first_site.is_origin) == ("lm_head", False)
    assert verdict.compared.sites == 0


def test_without_any_hash_bitwise_is_not_comparable(tmp_path: Path) -> None:
    pair = [made(), made()]
    for one in pair:
        one.has_logits[:] = False
    verdict = compared(tmp_path, [pair[0]], [pair[1]], a_sites=[], b_sites=[])
    assert states(verdict) == {
        "bitwise": "not comparable", "numeric": "not comparable", "token": "holds", "semantic": "holds"
    }  # fmt: skip
    assert verdict.level == "token"


@pytest.mark.parametrize(
    ("sizes", "rows"), [((1, 1), 9 * S), ((1, 2), 9 * (S - 1)), ((None, None), 9 * (S - 1))]
)
def test_sharded_sites_need_equal_tensor_parallel_size(
    tmp_path: Path, sizes: tuple[int | None, ...], rows: int
) -> None:
    sites = [Site(**{**site.model_dump(), "sharded": index == 4}) for index, site in enumerate(SITES)]
    options: dict[str, object] = {}
    for side, size in zip("ab", sizes, strict=True):
        known = {} if size is None else {"tensor_parallel_size": Setting(resolved=size, source="lane")}
        options[f"{side}_sites"] = sites
        options[f"{side}_lane"] = traces.Lane(name="main", engine="hf", settings=known)
    verdict = compared(tmp_path, [made()], [made()], **options)
    assert verdict.compared.rows == rows
    assert any("shard" in line for line in sentences(verdict.not_seen)) == (rows < 9 * S)


def test_another_dtype_is_compared_by_sketch_and_never_bitwise(tmp_path: Path) -> None:
    other = made()
    other.hashes += np.uint64(1)  # every hash differs, as between dtypes
    other.sketch[4, 2] *= np.float32(1.01)
    verdict = compared(tmp_path, [made()], [other], b_sites=llama_sites(2, "float32"))
    assert verdict.compared.rows == 0
    assert verdict.levels["bitwise"].state == "fails"
    assert verdict.first_site is not None
    assert (verdict.first_site.position, verdict.first_site.site) == (4, SITES[2].name)
    assert not verdict.first_site.is_origin
    assert "sketch" in unseen_before(verdict.first_site)
    totals = table(tmp_path, "site_totals")[2]
    assert (totals["by_sketch"], totals["compared"], totals["differing"]) == (True, 0, 0)
    assert totals["drift_max"] == pytest.approx(0.01, rel=0.05)
    assert verdict.causes[0].id == "dtype"


def test_numeric_is_judged_against_a_tolerance_only(tmp_path: Path) -> None:
    other = made()
    disturb_logits(other, 5, 0.03)
    for tolerance, state in ((0.05, "holds"), (0.01, "fails"), (None, "not stated")):
        folder = tmp_path / str(tolerance)
        folder.mkdir()
        verdict = compared(folder, [made()], [other], tolerance=tolerance)
        assert verdict.levels["numeric"].state == state
    assert "0.03" in why(verdict.levels["numeric"])


def test_a_logit_that_became_infinite_is_no_small_difference(tmp_path: Path) -> None:
    other = made()
    disturb_logits(other, 5)
    other.topk_logits[5, 1] = np.inf
    verdict = compared(tmp_path, [made()], [other], tolerance=1e9)
    assert verdict.levels["numeric"].state == "fails"
    assert verdict.max_abs_logit_diff == float("inf")
    assert Verdict.from_json((tmp_path / "out" / "summary.json").read_bytes(), "summary") == verdict


def test_forced_tokens_prove_nothing_and_own_choices_are_compared(tmp_path: Path) -> None:
    pair = [made(), made()]
    pair[1].forced[4:] = True
    verdict = compared(tmp_path, [pair[0]], [pair[1]])
    assert verdict.levels["token"].state == "holds"
    assert "forced" in why(verdict.levels["token"])
    assert verdict.levels["semantic"].state == "not comparable"

    disturb_logits(pair[1], 5)
    pair[1].topk_ids[5, :2] = pair[1].topk_ids[5, 1::-1].copy()
    folder = tmp_path / "flip"
    folder.mkdir()
    verdict = compared(folder, [pair[0]], [pair[1]])
    assert verdict.first_token is None
    assert verdict.levels["token"].state == "fails"
    assert "position 6" in where(verdict.levels["token"])
