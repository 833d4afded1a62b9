"""Taps see what plain hooks see, row for row, and leave the model as it was."""

import re

import pytest
import torch
from fakes.plain_hooks import bits_of, plain_hooks, reference_hash, row_of
from fakes.replaying import batch_of, run, run_one
from rip.replay.capture.observed_passes import Segment, StepBlock
from rip.replay.capture.taps import Taps
from rip.replay.row_summaries.row_hash_and_sketch import hash_rows_reference
from rip.replay.row_summaries.rows import RowSummaries
from rip.schemas.errors import BadInput
from torch import nn

FAMILIES = ["llama", "llama-bf16", "mixtral", "mixtral-top1", "qwen2", "qwen3", "gemma3", "window", "gpt2"]
PROMPTS = ([10, 20, 30, 40, 50], [60], [70, 80, 90])
STEPS = 4


def taps_left_on(model):
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + (module._compiled_call_impl is not None)
        for module in model.modules()
    )


def rows_by_plain_hooks(engine, prompts, steps, right=False):
    """(sequence, position) → its row at every site, from a run that plain hooks watch."""
    with plain_hooks(engine.model) as passes:
        gathered = run(engine, batch_of(*prompts, max_tokens=steps))
    batch, columns = len(prompts), max(map(len, prompts))
    found = {}
    for sequence, prompt in enumerate(prompts):
        first = 0 if right else columns - len(prompt)
        for position in range(len(prompt) + steps - 1):
            step = position - len(prompt)
            seen, tokens, column = (
                (passes[0], columns, first + position) if step < 0 else (passes[1 + step], 1, 0)
            )
            found[sequence, position] = [
                row_of(seen, site, batch, sequence, tokens, column) for site in engine.sites
            ]
    return gathered, found


@pytest.mark.parametrize(
    ("family", "prompts", "side"),
    [
        *((family, PROMPTS[:1], "left") for family in FAMILIES),
        *((family, PROMPTS, "left") for family in FAMILIES),
        *((family, PROMPTS, "right") for family in FAMILIES if family not in ("gemma3", "window")),
    ],
)
def test_every_row_hash_is_the_reference_hash_of_the_row(tiny_models, open_engine, family, prompts, side):
    engine = open_engine(tiny_models(family), padding_side=side)
    gathered, rows = rows_by_plain_hooks(engine, prompts, STEPS, right=side == "right")
    assert rows
    for (sequence, position), at_sites in rows.items():
        for index, row in enumerate(at_sites):
            where = (sequence, position, engine.sites[index].label())
            assert len(row) == engine.sites[index].width, where
            assert gathered[sequence].site_hash(position, index) == reference_hash(row), where


def test_in_a_chunked_prefill_every_row_is_where_it_belongs(tiny_model, open_engine):
    engine = open_engine(tiny_model, prefill_chunk=2)
    with plain_hooks(engine.model) as passes:
        gathered = run(engine, batch_of(*PROMPTS, max_tokens=1))
    for sequence, prompt in enumerate(PROMPTS):
        for position in range(len(prompt)):
            chunk, column = divmod(5 - len(prompt) + position, 2)
            tokens = 2 if chunk < 2 else 1
            for index, site in enumerate(engine.sites):
                row = row_of(passes[chunk], site, 3, sequence, tokens, column)
                assert gathered[sequence].site_hash(position, index) == reference_hash(row)


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_come_in_execution_order_and_their_labels_are_unique(tiny_models, open_engine, family):
    engine = open_engine(tiny_models(family))
    labels = [site.label() for site in engine.sites]
    assert len(set(labels)) == len(labels)
    with plain_hooks(engine.model) as passes:
        run_one(engine, [10, 20, 30], max_tokens=1)
    fired = {key: place for place, key in enumerate(passes[0])}
    order = [fired[site.name, site.part or "0"] for site in engine.sites if not site.occurrence]
    assert order == sorted(order)


def test_llama_sites_have_the_canonical_names(tiny_model, open_engine):
    labels = [site.label() for site in open_engine(tiny_model).sites]
    assert labels[:3] == ["embed_tokens", "rotary_emb:0", "rotary_emb:1"]
    assert labels[-1] == "norm"
    layer = (
        "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn:attn self_attn.o_proj"
    )
    layer += " self_attn post_attention_layernorm mlp.gate_proj mlp.act_fn mlp.up_proj mlp.down_proj mlp"
    for index in range(3):
        first = labels.index(f"layers.{index}.input_layernorm")
        expected = [f"layers.{index}.{name}" for name in layer.split()] + [f"layers.{index}"]
        assert labels[first : first + 14] == expected


def test_gpt2_layers_are_called_layers(tiny_models, open_engine):
    labels = [site.label() for site in open_engine(tiny_models("gpt2")).sites]
    assert "layers.2.mlp.c_fc" in labels
    assert "layers.0.attn:attn" in labels
    assert not any(label.startswith(("h.", "transformer")) for label in labels)


def test_a_module_that_runs_twice_is_two_sites(tiny_models, open_engine):
    sites = [site for site in open_engine(tiny_models("gemma3")).sites if site.name == "rotary_emb"]
    assert [site.label() for site in sites] == [
        "rotary_emb:0",
        "rotary_emb:1",
        "rotary_emb#1:0",
        "rotary_emb#1:1",
    ]


def test_a_wanted_occurrence_keeps_its_number_when_the_others_are_left_out(tiny_models, open_engine):
    everything = open_engine(tiny_models("gemma3"))
    second = open_engine(tiny_models("gemma3"), sites=r"rotary_emb#1:1")
    assert [site.label() for site in second.sites] == ["rotary_emb#1:1"]
    index = [site.label() for site in everything.sites].index("rotary_emb#1:1")
    whole, part = (run_one(engine, [10, 20, 30]) for engine in (everything, second))
    for position in range(10):
        assert part.site_hash(position, 0) == whole.site_hash(position, index)


@pytest.mark.parametrize(("family", "chosen"), [("mixtral", 2), ("mixtral-top1", 1)])
def test_routing_decisions_are_sites_and_what_is_inside_experts_is_said_to_be_unseen(
    tiny_models, open_engine, family, chosen
):
    engine = open_engine(tiny_models(family))
    decision = next(site for site in engine.sites if site.label() == "layers.1.mlp.gate:2")
    assert (decision.dtype, decision.width) == ("int64", chosen)
    # With one expert a token there are as many rows inside as tokens, but in a different order.
    assert not [site for site in engine.sites if ".experts." in site.name]
    assert len(engine.not_seen) == 1
    assert "layers.0.mlp.experts.act_fn" in engine.not_seen[0]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_site_names_do_not_depend_on_the_attention_implementation(tiny_model, open_engine, attention):
    engine = open_engine(tiny_model, attention=attention)
    assert [site.label() for site in engine.sites] == [site.label() for site in open_engine(tiny_model).sites]
    # eager returns its weights as well: they grow with the context and are said to be unseen.
    assert bool(engine.not_seen) == (attention == "eager")


def test_sites_can_be_chosen_by_pattern(tiny_model, open_engine):
    engine = open_engine(tiny_model, sites=r"layers\.\d+(\.self_attn|\.mlp)?$")
    assert [site.label() for site in engine.sites] == [
        f"layers.{index}{part}" for index in range(3) for part in (".self_attn", ".mlp", "")
    ]


def test_a_pattern_that_matches_nothing_is_an_error(tiny_model, open_engine):
    with pytest.raises(BadInput, match="matches no site"):
        open_engine(tiny_model, sites="no such module")


def test_no_tap_is_left_after_a_run_an_interrupted_one_and_discovery(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    assert taps_left_on(engine.model) == 0
    run_one(engine, [10, 20])
    assert taps_left_on(engine.model) == 0
    events = engine.run(batch_of([10, 20], max_tokens=100), "free", True)
    next(events)
    assert taps_left_on(engine.model) > 0
    events.close()
    assert taps_left_on(engine.model) == 0


def test_nothing_is_observed_outside_a_pass(tiny_model, open_engine):
    engine = open_engine(tiny_model)
    taps = Taps(engine.model)
    taps.discover(lambda ids: engine.model(input_ids=ids), 128, "cpu")
    with taps.attached(), torch.no_grad():
        engine.model(input_ids=torch.tensor([[1, 2, 3]]))  # a foreign pass in between does no harm
    assert taps_left_on(engine.model) == 0


class Overwriting(nn.Module):
    """Its second child adds into what the first one returned."""

    base_model_prefix = ""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, ids):
        hidden = self.first(self.embed(ids))
        hidden += 1.0
        return self.second(hidden)


def taps_on(model, pattern=""):
    taps = Taps(model, re.compile(pattern))
    taps.discover(model, 50, "cpu")
    return taps


def test_in_a_decode_step_an_overwritten_output_is_hashed_as_it_was_returned():
    model = Overwriting()
    taps = taps_on(model)
    block = StepBlock(2, 1, len(taps.sites))
    with torch.no_grad(), taps.attached():
        for step, token in enumerate((3, 7)):  # the second step takes the short way of repeated shapes
            with taps.step(block, step, None):
                model(torch.tensor([[token]]))
    first = [site.name for site in taps.sites].index("first")
    for step, token in enumerate((3, 7)):
        returned = model.first(model.embed(torch.tensor([token]))).detach()
        expected = hash_rows_reference(returned.view(torch.uint8).numpy())
        assert block.summaries.row_hash[step, first].tolist() == expected[0].tolist()
    assert taps_left_on(model) == 0


def test_a_hook_of_the_user_s_own_changes_what_is_seen_whenever_it_was_registered():
    model = Overwriting()
    taps = taps_on(model)
    out = RowSummaries.empty(3, 3)
    ids = torch.tensor([[3, 4, 5]])

    def seen(register_first: bool) -> list[int]:
        hook = lambda _module, _inputs, output: output * 2  # noqa: E731
        handle = model.second.register_forward_hook(hook) if register_first else None
        with torch.no_grad(), taps.attached():
            handle = handle or model.second.register_forward_hook(hook)
            with taps.long_pass([Segment(0, 0, 3, out, 0)], 1, 3, None):
                returned = model(ids)
        handle.remove()
        expected = hash_rows_reference(returned[0].contiguous().view(torch.uint8).numpy())
        assert out.row_hash[:, 2].tolist() == expected.tolist()
        return out.row_hash[:, 2].tolist()

    assert seen(True) == seen(False)


class SometimesTwice(nn.Module):
    """Its child runs once when it is discovered, and can be made to run once more."""

    base_model_prefix = ""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.child = nn.Identity()
        self.again = False

    def forward(self, ids):
        hidden = self.embed(ids)
        seen = self.child(hidden[..., ::2])  # with gaps: not the short way of repeated shapes
        return seen + self.child(hidden[..., 1::2]) if self.again else seen


def test_a_run_of_a_module_that_was_not_discovered_does_not_replace_the_first():
    model = SometimesTwice()
    taps = taps_on(model)
    child = [site.name for site in taps.sites].index("child")
    block, kept = StepBlock(1, 1, len(taps.sites)), []
    model.again = True
    keep = lambda row, step, site, rows: kept.append(site)  # noqa: E731
    with torch.no_grad(), taps.attached(), taps.step(block, 0, keep):
        model(torch.tensor([[3]]))
    first = model.embed(torch.tensor([3])).detach()[:, ::2].contiguous()
    expected = hash_rows_reference(first.view(torch.uint8).numpy())
    assert block.summaries.row_hash[0, child].tolist() == expected[0].tolist()
    assert sorted(kept) == sorted(set(kept))


def test_in_a_prefill_an_overwritten_output_is_hashed_as_it_was_returned():
    model = Overwriting()
    taps = taps_on(model)
    out = RowSummaries.empty(3, 3)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), taps.attached(), taps.long_pass([Segment(0, 0, 3, out, 0)], 1, 3, None):
        model(ids)
    with torch.no_grad():
        returned = model.first(model.embed(ids))[0]
    assert [out.digests()[row, 1].tobytes() for row in range(3)] == [reference_hash(row) for row in returned]


def test_leaving_the_overwritten_site_out_makes_decode_steps_readable():
    model = Overwriting()
    taps = taps_on(model, "embed|second")
    block = StepBlock(1, 1, 2)
    with torch.no_grad(), taps.attached(), taps.step(block, 0, None):
        last = model(torch.tensor([[3]]))
    assert block.summaries.digests()[0, 1].tobytes() == reference_hash(last[0, 0])


class Ragged(nn.Module):
    """A module whose later passes do not see all tokens, as with experts of their own modules."""

    base_model_prefix = ""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 4)
        self.expert = nn.Linear(4, 4)

    def forward(self, ids, drop=0):
        hidden = self.embed(ids).flatten(0, 1)
        return self.expert(hidden[drop:])


@pytest.mark.parametrize(("batch", "drop"), [(2, 1), (3, 1), (1, 1)])
def test_where_only_some_tokens_went_through_a_module_nothing_is_claimed(batch, drop):
    model = Ragged()
    taps = taps_on(model)
    expert = [site.label() for site in taps.sites].index("expert")
    block, out = StepBlock(1, batch, 2), RowSummaries.empty(3, 2)
    with torch.no_grad(), taps.attached():
        with taps.step(block, 0, None):
            model(torch.zeros(batch, 1, dtype=torch.int64), drop)
        with taps.long_pass([Segment(0, 0, 3, out, 0)], batch, 3, None):
            model(torch.zeros(batch, 3, dtype=torch.int64), drop)
    for summaries in (block.summaries, out):
        assert not summaries.row_hash[:, expert].any()
        assert summaries.row_hash[:, 1 - expert].all()


class SharedTable(nn.Module):
    """Returns one table [1, T, W] for all sequences."""

    def forward(self, ids):
        return torch.arange(ids.shape[1] * 4, dtype=torch.float32).view(1, ids.shape[1], 4) + 1


class WithTable(nn.Module):
    base_model_prefix = ""

    def __init__(self):
        super().__init__()
        self.table = SharedTable()

    def forward(self, ids):
        return self.table(ids)


def test_a_table_shared_by_the_batch_is_every_sequences_row():
    model = WithTable()
    taps = taps_on(model)
    block, outs = StepBlock(2, 3, 1), [RowSummaries.empty(2, 1) for _ in range(3)]
    with torch.no_grad(), taps.attached():
        with taps.step(block, 1, None):
            model(torch.zeros(3, 1, dtype=torch.int64))
        segments = [Segment(row, 0, 2, out, 0) for row, out in enumerate(outs)]
        with taps.long_pass(segments, 3, 2, None):
            model(torch.zeros(3, 2, dtype=torch.int64))
    first, second = reference_hash(torch.arange(1.0, 5.0)), reference_hash(torch.arange(5.0, 9.0))
    assert [digest.tobytes() for digest in block.summaries.digests()[:, 0]] == [bytes(16)] * 3 + [first] * 3
    for out in outs:
        assert [digest.tobytes() for digest in out.digests()[:, 0]] == [first, second]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "batch"])
@pytest.mark.parametrize("chunk", [0, 2])
def test_kept_rows_are_the_raw_bits_at_the_chosen_positions(tiny_models, open_engine, prompts, chunk):
    kept = range(3, 7)  # prompt and decode of the first, decode only of the others
    wanted = r"q_proj|layers\.1$|rotary_emb:0|embed"
    folder = tiny_models("llama-bf16")
    engine = open_engine(folder, sites=wanted, keep_positions=kept, prefill_chunk=chunk)
    plain = open_engine(folder, sites=wanted)
    gathered = run(engine, batch_of(*prompts, max_tokens=STEPS))
    if chunk:  # other shapes than the plain run: check against the hashes instead
        rows = None
    else:
        _, rows = rows_by_plain_hooks(plain, prompts, STEPS)
    for sequence, prompt in enumerate(prompts):
        last = len(prompt) + STEPS - 1  # never fed to the model
        for position in range(last + 1):
            at_sites = gathered[sequence].tensors[position]
            if position not in kept or position == last:
                assert at_sites == []
                continue
            assert [site for site, _ in at_sites] == list(range(len(engine.sites)))
            for site, raw in at_sites:
                row = torch.frombuffer(bytearray(raw), dtype=getattr(torch, engine.sites[site].dtype))
                assert reference_hash(row) == gathered[sequence].site_hash(position, site)
                if rows is not None:
                    assert raw == bits_of(rows[sequence, position][site])


@pytest.mark.model
def test_on_the_real_model_every_row_hash_is_the_reference_hash(smollm2, open_engine):
    engine = open_engine(smollm2, sites=r"layers\.(0|29)\.|^norm|embed", dtype="bfloat16")
    gathered, rows = rows_by_plain_hooks(engine, ([504, 2365, 282, 4649], [1056, 314]), 3)
    for (sequence, position), at_sites in rows.items():
        for index, row in enumerate(at_sites):
            assert gathered[sequence].site_hash(position, index) == reference_hash(row)
