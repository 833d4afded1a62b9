"""Models that fold tokens into a state: computed as `generate` of transformers does, or refused."""

import pytest
import torch
from fakes.replaying import batch_of, planned, run, run_one
from rip.replay.engines.hf.model import Forward
from rip.replay.engines.hf.padding import StateCheck
from rip.replay.request.batches import Batch
from rip.schemas.errors import BadInput, EngineFailed

BATCHED = [
    "mamba",
    "mamba2",
    "falcon_mamba",
    "jamba",
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "nemotron_h",
    "zamba2",
    "qwen3_next",
    "qwen3_5",
    "olmo_hybrid",
    "lfm2",
]
REFUSED = ["mamba-biased", "recurrent_gemma"]
LOSES_STATE_BETWEEN_CHUNKS = ["mamba", "falcon_mamba", "jamba", "recurrent_gemma"]
PROMPTS = ([10, 20, 30, 40, 50, 60, 70], [80], [90, 100, 110])
STEPS = 5


def by_generate(model, prompts):
    """Greedy tokens of transformers' own loop over a batch with padding on the left."""
    columns = max(map(len, prompts))
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([[0] * (columns - len(ids)) + ids for ids in prompts]),
            attention_mask=torch.tensor([[0] * (columns - len(ids)) + [1] * len(ids) for ids in prompts]),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            temperature=None,
            top_p=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    return ids[:, columns:].tolist()


def tokens_of(engine, prompts):
    found = run(engine, batch_of(*prompts, max_tokens=STEPS))
    return [found[index].token_ids[len(prompt) :] for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("family", BATCHED)
def test_a_padded_batch_gives_the_tokens_of_generate_in_a_batch_and_alone(tiny_models, open_engine, family):
    engine = open_engine(tiny_models(family), sites=None)
    alone = [by_generate(engine.model, [prompt])[0] for prompt in PROMPTS]
    assert [tokens_of(engine, [prompt])[0] for prompt in PROMPTS] == alone
    assert tokens_of(engine, PROMPTS) == alone == by_generate(engine.model, PROMPTS)


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_reads_its_padding_is_batched_at_equal_length_only(tiny_models, open_engine, family):
    engine = open_engine(tiny_models(family), sites=None)
    equal = [[10, 20, 30], [90, 100, 110]]
    alone = [by_generate(engine.model, [prompt])[0] for prompt in equal]
    assert tokens_of(engine, equal) == alone
    for batch in (batch_of(*PROMPTS), Batch((planned(0, PROMPTS[0]), planned(-1, [5])))):
        with pytest.raises(BadInput, match="padding enters its state") as caught:
            run(engine, batch)
        assert "batch_size=1" in caught.value.fix


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next", "lfm2", *LOSES_STATE_BETWEEN_CHUNKS])
def test_chunks_are_refused_where_the_state_is_lost_between_them(tiny_models, open_engine, family):
    prompt = PROMPTS[0]
    engine = open_engine(tiny_models(family), sites=None, prefill_chunk=3)
    if family in LOSES_STATE_BETWEEN_CHUNKS:
        with pytest.raises(BadInput, match="in chunks") as caught:
            run_one(engine, prompt)
        assert "prefill_chunk" in caught.value.fix
        assert len(run_one(engine, prompt[:3], max_tokens=2).token_ids) == 5  # one chunk holds it
    else:
        assert tokens_of(engine, [prompt]) == by_generate(engine.model, [prompt])


@pytest.mark.parametrize("family", ["rwkv", "xlstm"])
def test_a_state_outside_of_the_cache_of_transformers_is_refused(tiny_models, open_engine, family):
    engine = open_engine(tiny_models(family), sites=None)
    with pytest.raises(EngineFailed, match="does not take the cache of transformers"):
        run_one(engine, PROMPTS[0])


def test_which_token_the_padding_is_shows_what_rounding_hides(tiny_models, open_engine):
    """In bfloat16 the padding that this model reads is no larger than what rounding does to others."""
    engine = open_engine(tiny_models("recurrent_gemma"), sites=None, dtype="bfloat16")
    with pytest.raises(BadInput, match="padding enters its state"):
        run(engine, batch_of(*PROMPTS))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_passes_the_measurement_that_a_mask_which_is_ignored_fails(tiny_model, open_engine, dtype):
    engine = open_engine(tiny_model, sites=None, dtype=dtype)

    class Unmasked(Forward):
        def __call__(self, ids_BT, mask_BT, positions_BT, columns=None):
            return super().__call__(ids_BT, torch.ones_like(mask_BT), positions_BT, columns)

    def check(kind):
        return StateCheck(
            lambda: kind(engine.model), getattr(torch, dtype), engine.vocab_size, 0, engine.device
        )

    assert check(Forward).tolerates_padding
    assert check(Forward).tolerates_chunks
    assert not check(Unmasked).tolerates_padding
