"""Seven public reports, each made into a small case from real runs, and what rip says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fakes.verdicts import sentences
from faults import plants
from faults.case import PROMPTS, Case, Side, prompt
from faults.kinds import first_linear
from faults.kinds_cache import BLOCK, scale_block, stale_in_decode, warm
from faults.kinds_modules import split_reduction
from faults.kinds_sampling import HOT, by_probability
from faults.lab import Lab, Seen, Verdict
from rip.replay.engines.hf.engine import HfEngine
from rip.schemas.findings.tokens import SameLogits
from rip.schemas.lane import Setting
from rip.schemas.trace import HEADER_KEY, parquet_options
from rip.schemas.verdict import Cause
from torch import nn

CHUNKED = {"prefill_chunk": BLOCK}
OTHERWISE = plants.rounding(first_linear("llama"))
"""Another rounding in every pass."""
LATER_CHUNKS = plants.rounding(first_linear("llama"), plants.in_later_chunks)
"""Another rounding of what is computed behind a cached prefix."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("reports"))


def judge(lab: Lab, model: str, a: Side, b: Side) -> Verdict:
    return lab.judge(Case("report", "", model, a, b, ())).verdict


def cause(verdict: Verdict, name: str) -> Cause:
    return next(one for one in verdict.causes if one.id == name)


def test_a_warm_prompt_cache_changes_logprobs_and_a_fresh_one_does_not(lab: Lab) -> None:
    """ggml-org/llama.cpp 28368."""
    fresh = judge(lab, "llama", Side(), Side(plant=lambda _engine, _stack: None))
    assert (fresh.level, fresh.causes) == ("bitwise", [])
    warmed = judge(lab, "llama", Side(), Side(settings=CHUNKED, plant=LATER_CHUNKS, rewrite=warm))
    assert warmed.max_abs_logprob_diff
    assert warmed.causes[0].id == "cache-boundary"
    assert any(f"{BLOCK} = 1 × {BLOCK}" in line for line in sentences(warmed.causes[0].evidence))


def test_left_padding_moves_logits_visibly_in_bfloat16_only(lab: Lab) -> None:
    """huggingface/transformers 25420."""
    alone, padded = Side(), Side(settings={"batch_size": 3}, plant=OTHERWISE)
    short, precise = (judge(lab, model, alone, padded) for model in ("llama-bf16", "llama"))
    for verdict in (short, precise):
        assert {"batch-shape", "padding"} <= {one.id for one in verdict.causes}
        assert any("padded_tokens: 0 in A" in line for line in sentences(cause(verdict, "padding").evidence))
    assert short.max_abs_logit_diff is not None
    assert precise.max_abs_logit_diff is not None
    assert precise.max_abs_logit_diff < 1e-4 < 1e-2 < short.max_abs_logit_diff


def test_prompt_logprobs_depend_on_the_order_of_requests_where_the_second_finds_a_cached_prefix(
    lab: Lab, tmp_path: Path
) -> None:
    """vllm-project/vllm 42019."""
    short: dict[str, Any] = {
        "prompts": (PROMPTS[0], (*PROMPTS[0][:BLOCK], *PROMPTS[2][:6])),
        "sampling": {"max_tokens": 3},
    }
    scored = {**short, "options": {"mode": "golden-prefill"}, "golden": True}
    free = lab.trace("window", Side(**short))
    cold = lab.trace("window", Side(**scored), free)
    cached = lab.trace("window", Side(**scored, settings=CHUNKED, plant=LATER_CHUNKS, rewrite=warm), free)
    first = joined(tmp_path / "first-first.parquet", {"r0": cold, "r1": cached})
    second = joined(tmp_path / "second-first.parquet", {"r0": cached, "r1": cold})
    seen = lab.compare(Case("report", "", "llama", Side(), Side(), ()), first, second)
    assert seen.verdict.first_token is None, "the tokens were forced"
    found = seen.verdict.causes[0]
    assert found.id == "cache-boundary"
    assert any("cached_tokens: 0 in A, 16 in B" in line for line in sentences(found.evidence))


def joined(path: Path, parts: dict[str, Path]) -> Path:
    """One trace of the rows that each request has in a trace of its own."""
    tables = []
    for request, trace in parts.items():
        table = pq.read_table(trace)
        tables.append(table.filter(pc.equal(table["request_id"].cast(pa.string()), request)))
    header = pq.read_metadata(parts["r0"]).metadata[HEADER_KEY]
    schema = pq.read_schema(next(iter(parts.values()))).with_metadata({HEADER_KEY: header})
    whole = pa.concat_tables(tables).unify_dictionaries().replace_schema_metadata({HEADER_KEY: header})
    pq.write_table(whole, path, **parquet_options(schema))
    return path


def test_one_seed_and_equal_logits_give_another_token_where_candidates_are_reordered(lab: Lab) -> None:
    """sgl-project/sglang-omni 1428."""
    verdict = judge(
        lab, "llama", Side(sampling=HOT), Side(sampling=HOT, plant=plants.sampler(by_probability))
    )
    assert [one.id for one in verdict.causes] == ["candidate-order"]
    [same] = [one for one in verdict.causes[0].evidence if isinstance(one, SameLogits)]
    assert same.draw_a == same.draw_b is not None
    assert same.token_a != same.token_b


def test_corruption_at_a_block_boundary_is_told_from_the_rounding_of_a_second_chunk(lab: Lab) -> None:
    """sgl-project/sglang 22819: the prefix is 64 tokens long, as is the block."""
    prompts = (prompt(9, 80),)
    plant = plants.cache(1, scale_block(48, 64), lambda cached, tokens: cached == 64 and tokens > 1)
    corrupted = Side(settings={"prefill_chunk": 64}, prompts=prompts, plant=plant)
    verdict = judge(lab, "llama", Side(prompts=prompts), corrupted)
    found = verdict.causes[0]
    assert found.id == "kv-cache"
    assert any("layers.1.self_attn:attn at position 64" in line for line in sentences(found.evidence))
    assert any("64 = 1 × 64 = 2 × 32 = 4 × 16" in line for line in sentences(found.evidence))
    rounded = Side(settings={"prefill_chunk": 64}, prompts=prompts, plant=LATER_CHUNKS)
    sound = judge(lab, "llama", Side(prompts=prompts), rounded)
    assert sound.causes[0].id == "prefill-chunk"  # all rows were computed: no cache gave any
    assert "kv-cache" not in [one.id for one in sound.causes]


def test_prefill_forced_agrees_and_decode_forced_does_not_where_decode_reads_stale_weights(lab: Lab) -> None:
    """NVIDIA-NeMo/RL 2895."""
    site = "layers.1.mlp.up_proj"

    def forced(mode: str) -> Seen:
        about = {"options": {"mode": mode}, "golden": True}
        faulty = Side(**about, plant=stale_in_decode(site))
        return lab.judge(Case("report", "", "llama", Side(**about), faulty, (), site))

    assert forced("golden-prefill").quiet
    decoded = forced("golden-decode")
    assert decoded.verdict.causes[0].id == "decode-path"
    assert decoded.site_exact
    assert decoded.verdict.first_site is not None
    assert decoded.verdict.first_site.position == len(PROMPTS[0])


def test_a_flip_at_a_margin_far_below_the_drift_is_a_tie_and_no_bug(lab: Lab) -> None:
    """vllm-omni 7114: tensor parallel 1 against 2. What two ranks do to a sum is done here by one process."""

    def two_ranks(engine: HfEngine, _stack: object) -> None:
        for layer in engine.model.model.layers:
            for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
                module.register_forward_hook(as_two_ranks)
        engine.settings["tensor_parallel_size"] = Setting(resolved=2, source="lane")

    def one_rank(engine: HfEngine, _stack: object) -> None:
        engine.settings["tensor_parallel_size"] = Setting(resolved=1, source="lane")

    prompts = tuple(prompt(seed, 20) for seed in range(100, 124))
    verdict = judge(
        lab, "llama-bf16", Side(prompts=prompts, plant=one_rank), Side(prompts=prompts, plant=two_ranks)
    )
    token = verdict.first_token
    assert token is not None
    assert token.margin_a is not None
    assert token.max_abs_logit_diff is not None
    assert token.margin_a < token.max_abs_logit_diff
    assert [one.id for one in verdict.causes[:2]] == ["parallel-topology", "near-tie"]
    assert verdict.causes[1].confidence == "high"


def as_two_ranks(module: nn.Module, inputs: tuple[object, ...], _output: object) -> object:
    return split_reduction(module, inputs[0])  # type: ignore[arg-type]
