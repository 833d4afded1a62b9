"""Each cause on a small case of its own: planted, named first, with numbers, with a command that exists."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.traces import (
    NOT_COMPUTED,
    header,
    result,
    sequence,
    write_trace,
)
from fakes.verdicts import SITES, cause, change, flip, lane, pair, sampled, sentences, typed, verdict_of
from rip.diverge.causes.rank import TABLE
from rip.diverge.compare import diverge
from rip.schemas.change import Change
from rip.schemas.findings.execution import SettingDiffers, ShapeDiffers
from rip.schemas.lane import Lane, Setting
from rip.schemas.verdict import Cause, Verdict

COMMANDS = {"replay", "diverge", "query", "drift"}


def test_equal_traces_have_no_causes(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, *pair(), changes=[change("model", "sha256", "x", "y")]).causes == []


def test_batch_shape_explains_the_drift_and_a_near_tie_the_flip(tmp_path: Path) -> None:
    a, b = pair((7, 4), (8, 4))
    b.shapes["batch_size"][:] = 8
    for one in (a, b):
        one.topk_logits[8, :2] = [5.02, 5.0]
    flip(b, 3, 0.03)
    verdict = verdict_of(tmp_path, a, b, a_requests=sampled(temperature=0), b_requests=sampled(temperature=0))
    first = verdict.causes[0]
    assert (first.id, first.confidence) == ("batch-shape", "high")
    assert first.evidence[0] == ShapeDiffers(name="batch_size", a=1, b=8, text="batch_size: 1 in A, 8 in B")
    tie = cause(verdict, "near-tie")
    assert "0.02" in sentences(tie.evidence)[0]


def test_a_scoring_pass_against_a_free_run_is_told_as_such(tmp_path: Path) -> None:
    a, b = pair((2, 4))
    b.shapes["num_tokens"][:] = 14
    verdict = verdict_of(tmp_path, a, b, b_mode="golden-prefill")
    assert [item.id for item in verdict.causes] == ["prefill-decode"]
    assert "in one pass" in sentences(verdict.causes[0].evidence)[0]
    assert "--mode golden-decode --golden" in typed(verdict.causes[0])


def test_a_confirming_command_repeats_b_but_for_what_it_tests(tmp_path: Path) -> None:
    a, b = pair((7, 4))
    b.shapes["batch_size"][:] = 8
    settings = {
        "engine": Setting(resolved="hf", source="lane"),
        "dtype": Setting(resolved="bfloat16", source="lane"),
        "batch_size": Setting(resolved=8, source="lane"),
        "threads": Setting(resolved=2, source="engine default"),
        "repeat": Setting(resolved=3, source="lane"),
    }
    verdict = verdict_of(tmp_path, a, b, b_lane=Lane(name="l", engine="hf", model="m x", settings=settings))
    confirm = cause(verdict, "batch-shape").confirm
    assert confirm is not None
    words = confirm.argv
    assert words[:3] == ["rip", "replay", str(tmp_path / "b.parquet")]
    assert words[words.index("--model") + 1] == "m x"
    assert words[words.index("--repeat") + 1] == "3"
    given = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    assert sorted(given) == ["batch_size=1", "dtype=bfloat16"]


def test_a_wide_margin_is_no_tie(tmp_path: Path) -> None:
    a, b = pair((7, 4))
    for one in (a, b):
        one.topk_logits[8, :2] = [9.0, 5.0]
    flip(b, 3, 0.03)
    assert "near-tie" not in [item.id for item in verdict_of(tmp_path, a, b).causes]


def test_equal_logits_and_another_token_point_to_the_sampler(tmp_path: Path) -> None:
    a, b = pair()
    b.tokens[9] += 1
    found = verdict_of(tmp_path, a, b).causes[0]
    assert found.id == "sampler"
    assert any("draws were not recorded" in line for line in sentences(found.missing))


def test_another_draw_on_equal_logits_is_random_state(tmp_path: Path) -> None:
    a, b = pair()
    a.draws, b.draws = np.linspace(0, 0.5, 14), np.linspace(0.2, 0.9, 14)
    b.tokens[9] += 1
    verdict = verdict_of(tmp_path, a, b)
    assert verdict.causes[0].id == "rng"
    assert any("uniform draw" in line for line in sentences(verdict.causes[0].evidence))
    assert any("a different stream" in line for line in sentences(verdict.causes[0].evidence))
    assert verdict.first_site is None


def test_tokens_drawn_by_two_engines_are_no_wonder(tmp_path: Path) -> None:
    def verdict(folder: str, temperature: float, engine: str) -> Verdict:
        a, b = pair((7, 4))
        for one in (a, b):
            one.topk_logits[8, :2] = [9.0, 5.0]
        flip(b, 3, 0.03)
        (tmp_path / folder).mkdir()
        asked = sampled(temperature=temperature, seed=5)
        other = Lane(name="main", engine=engine, model="m")
        return verdict_of(tmp_path / folder, a, b, a_requests=asked, b_requests=asked, b_lane=other)

    found = cause(verdict("drawn", 1.0, "vllm"), "own-draws")
    assert found.confidence == "high"
    for same in (verdict("greedy", 0, "vllm"), verdict("one", 1.0, "hf")):
        assert "own-draws" not in [item.id for item in same.causes]


def test_a_stream_of_draws_that_is_ahead_is_told_by_how_many(tmp_path: Path) -> None:
    a, b = pair()
    stream = np.random.default_rng(3).random(20)
    a.draws, b.draws = stream[:14], stream[2:16]
    b.tokens[9] += 1
    found = cause(verdict_of(tmp_path, a, b), "rng")
    assert "it is the same random stream, and B is 2 numbers ahead in it" in sentences(found.evidence)


@pytest.mark.parametrize(
    ("reason", "name"), [("length", "length-limit"), ("stop", "stop-rule"), (None, "length")]
)
def test_the_reason_of_the_shorter_side_tells_limits_and_stop_rules_apart(
    tmp_path: Path, reason: str | None, name: str
) -> None:
    a, b = pair()
    b = b.rows(0, 11)
    results = [] if reason is None else [result(None, reason=reason)]
    found = verdict_of(tmp_path, a, b, b_results=results).causes
    assert [one.id for one in found] == [name]
    assert (reason is None) == bool(found[0].missing)


def prompts(tmp_path: Path, a_ids: list[int], b_ids: list[int], **about: Any) -> Cause:
    sides = []
    for ids in (a_ids, b_ids):
        one = sequence(1, len(SITES), prompt=len(ids), decode=4)
        one.tokens[: len(ids)] = ids
        sides.append(one)
    return verdict_of(tmp_path, *sides, **about).causes[0]


@pytest.mark.parametrize(
    ("b_ids", "name", "told"),
    [
        ([5, 6, 7, 99, 8, 9], "prompt-insertion", "has 1 more at position 3: token 99"),
        ([5, 6, 9], "prompt-insertion", "the prompt of A has 2 more at position 2: tokens 7, 8"),
        ([5, 6, 7], "prompt-truncated", "without its last 2 of 5 tokens"),
        ([8, 9], "prompt-truncated", "without its first 3 of 5 tokens"),
        ([5, 6, 70, 8, 9], "prompt", "part at position 2: token 7 in A, token 70 in B"),
    ],
)
def test_prompts_that_differ_are_told_apart(tmp_path: Path, b_ids: list[int], name: str, told: str) -> None:
    found = prompts(tmp_path, [5, 6, 7, 8, 9], b_ids)
    assert found.id == name
    assert told in sentences(found.evidence)[0]


def test_one_text_in_other_token_ids_is_the_tokenizer(tmp_path: Path) -> None:
    text = {"5": "re", "6": "port", "7": "report", "8": "s"}
    about = {"a_token_text": text, "b_token_text": text}
    assert prompts(tmp_path, [5, 6, 8], [7, 8], **about).id == "tokenizer"
    folder = tmp_path / "unknown"
    folder.mkdir()
    assert prompts(folder, [5, 6, 8], [7, 8]).id == "prompt"


def test_a_graph_against_an_eager_run_is_named(tmp_path: Path) -> None:
    found = verdict_of(tmp_path, *pair((3, 4)), a_channel="eager", b_channel="graph").causes[0]
    assert (found.id, found.confidence) == ("graph-path", "high")
    assert "observed as: eager in A, graph in B" in sentences(found.evidence)


def test_the_side_of_the_padding_is_padding_and_no_kernel(tmp_path: Path) -> None:
    lanes = lane(padding_side="left"), lane(padding_side="right")
    found = verdict_of(tmp_path, *pair((3, 4)), a_lane=lanes[0], b_lane=lanes[1]).causes
    assert [one.id for one in found] == ["padding"]
    assert "--set padding_side=left" in typed(found[0])


def test_changed_tensors_are_named_and_found_at_the_origin(tmp_path: Path) -> None:
    before, after = (
        {"model.layers.0.mlp.gate_proj.weight": {"blake3": one}, "x": {"blake3": "0"}} for one in "12"
    )
    found = verdict_of(tmp_path, *pair((0, 3)), changes=[change("model", "tensors", before, after)]).causes[0]
    assert found.id == "weights"
    assert "tensors that changed: model.layers.0.mlp.gate_proj.weight" in sentences(found.evidence)
    assert any(
        "belongs to the module where the difference begins" in line for line in sentences(found.evidence)
    )


def test_sampling_contract_names_both_values_and_their_source(tmp_path: Path) -> None:
    a, b = pair()
    b.tokens[9] += 1
    verdict = verdict_of(tmp_path, a, b, a_requests=sampled(top_p=1.0), b_requests=sampled(top_p=0.9))
    assert verdict.causes[0].id == "sampling-contract"
    assert (
        "1.0 (engine default) in A, 0.9 (engine default) in B (not stated"
        in sentences(verdict.causes[0].evidence)[0]
    )


@pytest.mark.parametrize(
    ("name", "about", "changes"),
    [
        ("attention-backend", {"attention": ("sdpa", "eager")}, []),
        ("threads", {"threads": (1, 2)}, []),
        ("dtype", {"dtype": ("bfloat16", "float32")}, []),
        ("parallel-topology", {"tensor_parallel_size": (1, 2)}, []),
        ("kernel", {"matmul_precision": ("highest", "high")}, []),
        ("weights", {}, [change("model", "sha256", "aa", "bb")]),
        ("kernel", {}, [change("frameworks", "torch", "2.12", "2.13")]),
    ],
)
def test_a_changed_setting_or_fact_is_named(
    tmp_path: Path, name: str, about: dict[str, tuple[Any, Any]], changes: list[Change]
) -> None:
    lanes = [lane(**{key: values[side] for key, values in about.items()}) for side in (0, 1)]
    verdict = verdict_of(tmp_path, *pair((3, 4)), changes=changes, a_lane=lanes[0], b_lane=lanes[1])
    assert verdict.causes[0].id == name
    assert verdict.causes[0].confidence == "high"


def test_several_differences_at_once_lower_the_confidence(tmp_path: Path) -> None:
    a, b = pair((3, 4))
    b.shapes["batch_size"][:] = 8
    verdict = verdict_of(tmp_path, a, b, a_lane=lane(threads=1), b_lane=lane(threads=2))
    assert cause(verdict, "batch-shape").confidence == "medium"
    assert cause(verdict, "threads").confidence == "medium"


def test_a_setting_that_the_fingerprint_repeats_counts_once(tmp_path: Path) -> None:
    repeated = [change("engine", "attention_backend", "sdpa", "eager")]
    verdict = verdict_of(
        tmp_path,
        *pair((3, 4)),
        changes=repeated,
        a_lane=lane(attention="sdpa"),
        b_lane=lane(attention="eager"),
    )
    assert cause(verdict, "attention-backend").confidence == "high"


def test_prefill_against_decode_and_chunk_boundaries(tmp_path: Path) -> None:
    a, b = pair((9, 3))
    b.shapes["num_tokens"][:], b.shapes["cached_tokens"][:] = 14, 0
    assert verdict_of(tmp_path, a, b).causes[0].id == "prefill-decode"
    a, b = pair((4, 3))
    b.shapes["num_tokens"][:6], b.shapes["cached_tokens"][:6] = [4, 4, 4, 4, 2, 2], [0, 0, 0, 0, 4, 4]
    folder = tmp_path / "chunk"
    folder.mkdir()
    found = verdict_of(folder, a, b)
    # All rows were computed: the prompt was cut, and nothing came from a cache.
    assert found.causes[0].id == "prefill-chunk"
    assert "cache-boundary" not in [one.id for one in found.causes]
    assert "--set prefill_chunk=0" in typed(found.causes[0])
    folder = tmp_path / "cache"
    folder.mkdir()
    b.shapes["num_tokens"][:4], b.shapes["cached_tokens"][:4] = NOT_COMPUTED, NOT_COMPUTED
    b.present[:4] = False
    warm = verdict_of(folder, a, b).causes[0]
    assert warm.id == "cache-boundary"
    assert any("exactly at a boundary: position 4" in line for line in sentences(warm.evidence))


def test_the_confirming_run_takes_the_chunk_of_a(tmp_path: Path) -> None:
    a, b = pair((4, 3))
    a.shapes["num_tokens"][:6], a.shapes["cached_tokens"][:6] = [5, 5, 5, 5, 5, 1], [0, 0, 0, 0, 0, 5]
    b.shapes["num_tokens"][:6], b.shapes["cached_tokens"][:6] = [4, 4, 4, 4, 2, 2], [0, 0, 0, 0, 4, 4]
    for engine, wanted in (("hf", "prefill_chunk=5"), ("vllm", "max_num_batched_tokens=5")):
        (tmp_path / engine).mkdir()
        lanes = {side: Lane(name="l", engine=engine, model="m") for side in ("a_lane", "b_lane")}
        found = verdict_of(tmp_path / engine, a, b, **lanes).causes[0]
        assert found.id == "prefill-chunk"
        assert f"--set {wanted}" in typed(found)


def test_one_setting_in_two_spellings_is_one(tmp_path: Path) -> None:
    def of(folder: str, **sizes: int) -> Verdict:
        (tmp_path / folder).mkdir()
        sides = [
            Lane(name="l", engine="vllm", model="m", settings={name: Setting(resolved=size, source="lane")})
            for name, size in sizes.items()
        ]
        return verdict_of(tmp_path / folder, *pair((3, 2)), a_lane=sides[0], b_lane=sides[1])

    same = of("same", **{"tensor-parallel-size": 2, "tensor_parallel_size": 2})
    assert "parallel-topology" not in [one.id for one in same.causes]
    found = cause(of("other", **{"tensor-parallel-size": 1, "tensor_parallel_size": 2}), "parallel-topology")
    [differ] = [one for one in found.evidence if isinstance(one, SettingDiffers)]
    assert (differ.a, differ.b, differ.stated_in) == (1, 2, "both")
    assert typed(found).count("--set") == 1
    assert "--set tensor_parallel_size=1" in typed(found)


def test_the_headline_is_the_sequence_that_says_most(tmp_path: Path) -> None:
    def traces(*parted: int | None) -> Verdict:
        a, b = ([sequence(i, 0, prompt=6, decode=8, request_id=f"r{i}") for i in range(4)] for _ in "ab")
        for one, at in zip(b, parted, strict=True):
            if at is not None:
                one.tokens[at] += 1
        b[0] = b[0].rows(0, 8)  # the first request merely ends early
        for name, side in (("a", a), ("b", b)):
            write_trace(tmp_path / f"{name}.parquet", side, header([], [f"r{i}" for i in range(4)]))
        return diverge(tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "out", force=True)

    first = traces(None, 11, 9, None).first_token
    assert first is not None
    assert (first.request_id, first.step) == ("r2", 3)
    ended = traces(None, None, None, None).first_token
    assert ended is not None
    assert ended.request_id == "r0"
    prompt = traces(None, 7, None, 3).first_token
    assert prompt is not None
    assert (prompt.request_id, prompt.step) == ("r3", None)


def test_weights_and_dtype_are_no_cause_where_no_number_differs(tmp_path: Path) -> None:
    a, b = pair()
    b.tokens[9] += 1
    changes = [change("model", "sha256", "x", "y"), change("model", "dtype", "F32", "float32")]
    verdict = verdict_of(tmp_path, a, b, changes=changes)
    assert [item.id for item in verdict.causes] == ["sampler"]


def test_another_prefill_chunking_is_named_before_the_kernel(tmp_path: Path) -> None:
    a, b = pair((1, 4))
    b.shapes["num_tokens"][:6] = 3
    changes = [change("frameworks", "torch", "2.12", "2.13")]
    found = [item.id for item in verdict_of(tmp_path, a, b, changes=changes).causes]
    assert found.index("prefill-chunk") < found.index("kernel")
    folder = tmp_path / "setting"
    folder.mkdir()
    lanes = lane(prefill_chunk=0), lane(prefill_chunk=3)
    verdict = verdict_of(folder, *pair((1, 4)), a_lane=lanes[0], b_lane=lanes[1])
    assert "kernel" not in [item.id for item in verdict.causes]
    assert "--set prefill_chunk=0" in typed(cause(verdict, "prefill-chunk"))


@pytest.mark.parametrize(("channel", "named"), [("eager", False), ("compiled", True)])
def test_a_cache_of_compiled_code_counts_only_where_compiled_code_ran(
    tmp_path: Path, channel: str, named: bool
) -> None:
    changes = [change("kernels", "inductor_cache", {"files": 4}, {"files": 5})]
    both = {"a_channel": channel, "b_channel": channel}
    verdict = verdict_of(tmp_path, *pair((3, 4)), changes=changes, **both)
    assert ("kernel" in [item.id for item in verdict.causes]) is named


def test_of_two_records_only_what_differs_is_told(tmp_path: Path) -> None:
    libraries = [{"libc": {"id": "93ac", "path": "/lib"}, "libm": {"id": one}} for one in ("1f", "2e")]
    changes = [change("libraries", "loaded", *libraries)]
    verdict = verdict_of(tmp_path, *pair((3, 4)), changes=changes)
    assert any(
        "libraries.loaded.libm.id: 1f → 2e" in line for line in sentences(cause(verdict, "kernel").evidence)
    )


@pytest.mark.parametrize("field", ["dtype", "attention_backend"])
def test_what_another_cause_tells_is_not_told_as_a_kernel_too(tmp_path: Path, field: str) -> None:
    verdict = verdict_of(tmp_path, *pair((3, 4)), changes=[change("engine", field, "x", "y")])
    assert "kernel" not in [item.id for item in verdict.causes]
    assert verdict.causes


def test_padding_of_the_prompt_counts_for_the_decode_steps_behind_it(tmp_path: Path) -> None:
    a, b = pair((9, 4))
    b.shapes["padded_tokens"][:4] = 3
    b.shapes["padded_tokens"][4:] = 0
    found = cause(verdict_of(tmp_path, a, b), "padding")
    assert "padded_tokens: 0 in A, 3 in B" in sentences(found.evidence)
    assert "padding_side" in typed(found)


def test_missing_evidence_is_named(tmp_path: Path) -> None:
    a, b = pair((5, 3))
    b.present[:2] = False
    b.shapes["batch_size"][:] = 8
    found = cause(verdict_of(tmp_path, a, b), "batch-shape")
    assert found.confidence == "medium"
    assert any("not an origin" in line for line in sentences(found.missing))


def test_every_confirming_command_is_one_that_exists(tmp_path: Path) -> None:
    a, b = pair((5, 3))
    for shape in ("batch_size", "padded_tokens", "cached_tokens"):
        b.shapes[shape][:] += 3
    b.absmax[5, 3] = np.inf
    flip(b, 3)
    lanes = (
        lane(threads=1, attention="sdpa", dtype="bfloat16"),
        lane(threads=2, attention="eager", dtype="float16"),
    )
    changes = [change("model", "sha256", "x", "y"), change("parallelism", "tensor_parallel_size", 1, 2)]
    verdict = verdict_of(tmp_path, a, b, changes=changes, a_lane=lanes[0], b_lane=lanes[1])
    assert len(verdict.causes) >= 7
    for item in verdict.causes:
        assert item.confirm
        for argv in filter(None, (item.confirm.argv, item.confirm.then)):
            assert argv[0] == "rip"
            assert argv[1] in COMMANDS
        assert typed(item).split("; ") == [
            shlex.join(argv) for argv in (item.confirm.argv, item.confirm.then) if argv
        ]
    assert len({entry.id for entry in TABLE}) == len(TABLE)


def test_a_changed_configuration_is_a_cause_and_no_tie(tmp_path: Path) -> None:
    a, b = pair((0, 3))
    for one in (a, b):
        one.topk_logits[8, :2] = [5.02, 5.0]
    flip(b, 3, 0.03)
    greedy = {"a_requests": sampled(temperature=0), "b_requests": sampled(temperature=0)}
    changes = [change("model", "config_sha256", "x", "y")]
    found = verdict_of(tmp_path, a, b, changes=changes, **greedy).causes
    assert [one.id for one in found] == ["model-config"]
    assert found[0].label.endswith("acting first in layers.0.mlp.gate_proj")
    assert typed(found[0]) == f"rip query {tmp_path / 'out'} 'SELECT * FROM changes'"
    weights = [*changes, change("model", "tensors", {"x": "1"}, {"x": "2"})]  # then the weights tell it
    assert [one.id for one in verdict_of(tmp_path, a, b, changes=weights, **greedy).causes] == ["weights"]
    # The control: with nothing changed the small drift is a tie that rounding breaks.
    assert "near-tie" in [one.id for one in verdict_of(tmp_path, a, b, **greedy).causes]


def test_a_name_with_a_leading_dash_is_no_option_in_a_command(tmp_path: Path) -> None:
    a, b = pair((0, 3))
    for name, one in (("a.parquet", a), ("-b.parquet", b)):
        write_trace(tmp_path / name, [one], header(SITES))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        found = diverge(Path("a.parquet"), Path("-b.parquet"), Path("out")).causes[0]
    assert found.confirm is not None
    assert found.confirm.argv[2] == "./-b.parquet"


def test_a_number_told_as_a_word_is_no_difference_and_a_hidden_variable_no_cause(tmp_path: Path) -> None:
    hidden = {"env.TOKEN": Setting(resolved="(not kept)", observed="(not kept)", source="lane")}
    told = lane(threads="2")
    b_lane = told.model_copy(update={"settings": {**told.settings, **hidden}})
    found = verdict_of(tmp_path, *pair((0, 3)), a_lane=lane(threads=2), b_lane=b_lane).causes
    assert [one.id for one in found] == ["module"]
    other = verdict_of(tmp_path, *pair((0, 3)), a_lane=lane(threads=2), b_lane=lane(threads=1)).causes
    assert other[0].id == "threads"
