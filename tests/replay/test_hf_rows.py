"""The rows of the decode loop: shapes, steps, distributions, golden modes, and what failures leave."""

import numpy as np
import pytest
import torch
from fakes.plain_hooks import plain_hooks, reference_hash, row_of
from fakes.replaying import batch_of, planned, run, run_one
from rip.replay.engines.base import Finished
from rip.replay.engines.hf import decode_loop
from rip.replay.request.batches import Batch
from rip.schemas.errors import BadInput, EngineFailed, RipError

PROMPT = [10, 20, 30, 40, 50, 60, 70]
PROMPTS = (PROMPT, [80], [90, 100, 110], [31, 41, 59, 26, 53])


def generated(gathered, prompt):
    return gathered.token_ids[len(prompt) :]


# Shapes, steps, distributions


def shape_columns(gathered):
    return [
        None
        if shape is None
        else (shape.batch_size, shape.batch_row, shape.num_tokens, shape.padded_tokens, shape.cached_tokens)
        for shape in gathered.shapes
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_execution_shapes_of_a_padded_batch(tiny_model, open_engine, side):
    engine = open_engine(tiny_model, padding_side=side)
    found = run(engine, batch_of(PROMPT, [90, 100, 110], max_tokens=3))
    assert shape_columns(found[0]) == [(2, 0, 7, 0, 0)] * 7 + [(2, 0, 1, 0, 7), (2, 0, 1, 0, 8), None]
    assert shape_columns(found[1]) == [(2, 1, 3, 4, 0)] * 3 + [(2, 1, 1, 0, 3), (2, 1, 1, 0, 4), None]


def test_execution_shapes_of_a_chunked_prefill(tiny_model, open_engine):
    left = run(open_engine(tiny_model, prefill_chunk=3), batch_of(PROMPT, [90, 100, 110, 120], max_tokens=1))
    # Columns 012 345 6: the second prompt begins in column 3.
    assert shape_columns(left[0])[:7] == [(2, 0, 3, 0, 0)] * 3 + [(2, 0, 3, 0, 3)] * 3 + [(2, 0, 1, 0, 6)]
    assert shape_columns(left[1])[:4] == [(2, 1, 3, 0, 0)] * 3 + [(2, 1, 1, 0, 3)]
    engine = open_engine(tiny_model, prefill_chunk=3, padding_side="right")
    right = run(engine, batch_of(PROMPT, [90, 100, 110, 120], max_tokens=2))
    assert shape_columns(right[1]) == [(2, 1, 3, 0, 0)] * 3 + [(2, 1, 1, 2, 3), (2, 1, 1, 0, 4), None]


@pytest.mark.parametrize("mode", ["free", "golden-prefill"])
def test_a_chunked_prefill_hands_over_its_rows_chunk_by_chunk(tiny_model, open_engine, mode):
    engine = open_engine(tiny_model, prefill_chunk=3)
    events = engine.run(Batch((planned(0, PROMPT, golden=[5, 6], max_tokens=2),)), mode, True)
    counts = [len(event.token_ids) for event in events if not isinstance(event, Finished)]
    assert counts == ([3, 3, 2, 1] if mode == "golden-prefill" else [3, 3, 1, 1, 1])


def test_execution_shapes_of_a_scoring_pass(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    found = run_one(engine, PROMPT, "golden-prefill", golden=[1, 2, 3])
    assert shape_columns(found) == [(1, 0, 9, 0, 0)] * 9 + [None]


def test_in_a_free_run_distributions_begin_at_the_last_prompt_token(tiny_model, open_engine):
    found = run_one(open_engine(tiny_model), PROMPT, max_tokens=3)
    present = [topk is not None for topk in found.topk]
    assert present == [False] * 6 + [True] * 3 + [False]
    assert [sampler is not None for sampler in found.samplers] == present
    for position in range(6, 9):
        assert found.topk[position].ids[0] == found.token_ids[position + 1]
        assert found.samplers[position].top1_id == found.token_ids[position + 1]


def test_the_last_token_was_never_fed_to_the_model_and_says_so(tiny_model, open_engine):
    for mode, golden in (("free", None), ("golden-decode", [5, 6]), ("golden-prefill", [5, 6])):
        found = run_one(open_engine(tiny_model), PROMPT, mode, golden=golden, max_tokens=2)
        assert len(found.token_ids) == 9
        assert found.hashes[-1] is None
        assert found.hashes[-2] is not None
        assert found.shapes[-1] is None
        assert found.topk[-1] is None


@pytest.mark.parametrize("count", [63, 64, 65, 66, 129, 150])
def test_rows_at_the_borders_of_hand_over_blocks_are_in_their_place(tiny_model, open_engine, count):
    engine = open_engine(tiny_model, sites=r"q_proj|layers\.2$")
    with plain_hooks(engine.model) as passes:
        found = run(engine, batch_of(PROMPT, [80], max_tokens=count))
    assert len(passes) == count
    for sequence, prompt in enumerate((PROMPT, [80])):
        assert len(found[sequence].token_ids) == len(prompt) + count
        for step in range(count - 1):
            for index, site in enumerate(engine.sites):
                row = row_of(passes[1 + step], site, 2, sequence, 1, 0)
                assert found[sequence].site_hash(len(prompt) + step, index) == reference_hash(row)
        assert [shape.cached_tokens for shape in found[sequence].shapes[len(prompt) : -1]] == list(
            range(len(prompt), len(prompt) + count - 1)
        )


def test_a_sequence_that_ends_inside_a_block_leaves_the_others_in_place(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    lengths = (70, 20, 64)
    ending = run(engine, Batch(tuple(planned(i, [80 + i], max_tokens=n) for i, n in enumerate(lengths))))
    running = run(engine, Batch(tuple(planned(i, [80 + i], max_tokens=70) for i in range(3))))
    for index, count in enumerate(lengths):
        assert len(ending[index].token_ids) == 1 + count
        assert ending[index].hashes[:count] == running[index].hashes[:count]
        assert ending[index].logits_hashes()[:count] == running[index].logits_hashes()[:count]


def test_the_hand_over_does_not_depend_on_block_size(tiny_model, open_engine, monkeypatch):
    engine = open_engine(tiny_model)
    whole = run(engine, batch_of(*PROMPTS, max_tokens=20))
    monkeypatch.setattr(decode_loop, "BLOCK", 3)
    cut = run(engine, batch_of(*PROMPTS, max_tokens=20))
    assert all(whole[sequence].same_bits(cut[sequence]) for sequence in whole)


# Golden modes


@pytest.mark.parametrize("family", ["llama", "llama-bf16", "mixtral", "gpt2"])
def test_forcing_the_tokens_of_a_free_run_repeats_it_bit_for_bit(tiny_models, open_engine, family):
    engine = open_engine(tiny_models(family))
    free = run(engine, batch_of(*PROMPTS))
    plans = (planned(index, prompt, generated(free[index], prompt)) for index, prompt in enumerate(PROMPTS))
    forced = run(engine, Batch(tuple(plans)), "golden-decode")
    for sequence in free:
        assert forced[sequence].same_bits(free[sequence])
        assert forced[sequence].finished.reason == "golden"
        assert set(forced[sequence].forced) == {True}
        assert set(free[sequence].forced) == {False}


def test_forced_tokens_are_fed_and_the_sampler_says_what_it_would_have_chosen(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    free = run_one(engine, PROMPT, max_tokens=3)
    forced = run_one(engine, PROMPT, "golden-decode", golden=[99, 98, 97])
    assert generated(forced, PROMPT) == [99, 98, 97]
    assert forced.samplers[6] == free.samplers[6]
    assert forced.samplers[6].top1_id == generated(free, PROMPT)[0] != 99
    assert forced.topk[7].logits_hash != free.topk[7].logits_hash


def test_a_scoring_pass_has_a_distribution_at_every_position(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    golden = [99, 98, 97, 96]
    scored = run_one(engine, PROMPT, "golden-prefill", golden=golden)
    assert generated(scored, PROMPT) == golden
    assert [topk is not None for topk in scored.topk] == [True] * 10 + [False]
    assert scored.samplers == [None] * 11
    with torch.no_grad():
        logits = engine.model(torch.tensor([PROMPT + golden[:-1]])).logits[0]
    for position in range(10):
        assert scored.topk[position].ids[0] == int(logits[position].argmax())
        assert scored.topk[position].logsumexp == pytest.approx(
            float(logits[position].logsumexp(0)), abs=1e-4
        )
        assert scored.topk[position].logits_hash == reference_hash(logits[position])


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_scoring_batch_gives_what_each_gives_alone(tiny_model, open_engine, chunk, side):
    engine = open_engine(tiny_model, prefill_chunk=chunk, padding_side=side)
    goldens = ([5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15])
    plans = [planned(index, PROMPTS[index], golden) for index, golden in enumerate(goldens)]
    found = run(engine, Batch(tuple(plans)), "golden-prefill")
    for index, golden in enumerate(goldens):
        alone = run_one(engine, PROMPTS[index], "golden-prefill", golden=golden)
        assert found[index].token_ids == alone.token_ids
        for a, b in zip(alone.topk, found[index].topk, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.logsumexp == pytest.approx(b.logsumexp, abs=1e-4)
                assert a.ids[0] == b.ids[0]


def test_more_rows_than_are_scored_together(tiny_model, open_engine):
    engine = open_engine(tiny_model, sites=None)
    prompt = [int(token) for token in np.random.default_rng(0).integers(3, 128, 150)]
    scored = run_one(engine, prompt, "golden-prefill", golden=[5])
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt])).logits[0]
    assert [topk.logits_hash for topk in scored.topk[:-1]] == [reference_hash(row) for row in logits]


def test_scoring_and_decoding_agree_up_to_rounding(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    free = run_one(engine, PROMPT)
    scored = run_one(engine, PROMPT, "golden-prefill", golden=generated(free, PROMPT))
    for a, b in zip(free.topk[6:-1], scored.topk[6:-1], strict=True):
        assert a.logsumexp == pytest.approx(b.logsumexp, abs=1e-4)


def test_no_golden_token_is_an_error_when_forcing(tiny_model, open_engine):
    with pytest.raises(BadInput, match="no recorded token"):
        run_one(open_engine(tiny_model), PROMPT, "golden-decode", golden=[])


# Failures


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (RuntimeError("shapes do not fit\nmore"), "shapes do not fit"),
        (RuntimeError(""), "RuntimeError"),
        (TypeError("unexpected argument"), "unexpected argument"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (MemoryError(), "out of memory"),
    ],
)
def test_a_failing_model_is_an_error_for_people(tiny_model, open_engine, raised, message):
    engine = open_engine(tiny_model)

    def fail(*_):
        raise raised

    engine.model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(EngineFailed, match=message):
        run_one(engine, PROMPT)


def test_rows_computed_before_a_failure_were_handed_over(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    passes = []

    def fail_late(*_):
        passes.append(1)
        if len(passes) > 70:
            raise RuntimeError("device lost")

    engine.model.register_forward_pre_hook(fail_late)
    rows = []
    with pytest.raises(RipError, match="device lost"):
        rows.extend(engine.run(batch_of(PROMPT, max_tokens=200), "free", True))
    assert sum(len(event.token_ids) for event in rows) == len(PROMPT) + 64


def test_gradients_stay_as_the_caller_has_them_while_a_run_is_under_way(tiny_model, open_engine):
    events = open_engine(tiny_model).run(batch_of(PROMPT), "free", True)
    next(events)
    assert torch.is_grad_enabled()
    events.close()


def test_a_model_without_a_kv_cache_is_refused(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    forward = engine.model.forward
    engine.model.forward = lambda input_ids, **_: forward(input_ids)
    with pytest.raises(EngineFailed, match="does not take the cache"):
        run_one(engine, PROMPT)
