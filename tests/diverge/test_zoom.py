"""Zoom names the op that was planted, and a run with A's rows proves where B's difference comes from."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from fakes import zooming as plant
from fakes.replaying import planned
from fakes.zooming import PROMPT, Zooming, no_fault
from rip.diverge.op_comparison.align_ops import align_ops, is_view
from rip.diverge.op_comparison.compare_reruns import Recorded, ZoomTarget, transplanted, zoom
from rip.diverge.op_comparison.location import first_difference
from rip.diverge.op_comparison.tensors import compare
from rip.diverge.present.zoom import zoom_lines
from rip.replay.request.batches import Batch
from rip.schemas.recorded_ops import Op, OpTensor, OpTrace
from rip.schemas.verdict import FirstSite
from rip.schemas.zoom import Rerun

MM, ADD = "aten.mm.default", "aten.add.Tensor"
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"

PLANTED = [
    (plant.weight_element, "layers.1.mlp.up_proj", "weight", MM),
    (plant.embedding_row, "embed_tokens", "weight", "aten.embedding.default"),
    (plant.epsilon, "layers.1.post_attention_layernorm", "op", ADD),
    (plant.norm_without_upcast, "layers.1.input_layernorm", "block op", "aten._to_copy.default"),
    (plant.split_reduction, "layers.2.mlp.down_proj", "block", MM),
    (plant.cast_module, "layers.2.self_attn.q_proj", "block", "aten._to_copy.default"),
    (plant.another_kernel, "layers.1.self_attn:attn", "block", FLASH),
    (plant.rope_off_by_one, "rotary_emb:0", "block", ADD),
    (plant.corrupted_cache, "layers.1.self_attn:attn", "outside", "aten.cat.default"),
    (plant.overwritten_cache, "layers.1.self_attn:attn", "block", "aten.add_.Tensor"),
    (plant.flipped_in_decode, "layers.1.mlp.gate_proj", "block", "aten.neg.default"),
]


@pytest.fixture
def zooming(tiny_models, open_engine):
    return lambda family="llama-bf16", **more: Zooming(open_engine(tiny_models(family)), **more)


def first_by_loop(a, b):
    """(position, label) of the first row that differs, by a plain loop over the hashes."""
    for position, rows in enumerate(zip(a.row_hashes, b.row_hashes, strict=True)):
        for site, pair in zip(a.sites, zip(*rows, strict=True), strict=True):
            if pair[0] != pair[1]:
                return position, site.label()
    return None


@pytest.mark.parametrize("family", ["llama", "llama-bf16"])
@pytest.mark.parametrize(
    ("fault", "site", "kind", "op"), PLANTED, ids=lambda one: getattr(one, "__name__", None)
)
def test_the_planted_op_is_named_and_the_transplant_proves_it(zooming, family, fault, site, kind, op):
    sides = zooming(family)
    found = sides.under(fault)
    assert (found.position, found.site) == first_by_loop(sides.run(Rerun()), sides.run(Rerun(), fault))
    assert found.site == site
    assert found.seen_again
    assert found.finding.kind in kind.split()
    told = [*found.finding.a, *found.finding.b]
    assert op in {one.op for one in told}
    module = "" if fault is plant.overwritten_cache else site.partition(":")[0]
    assert all(one.module == module for one in told)
    assert found.transplant.state == "proven"
    others = {origin.site for origin in found.transplant.origins} - {site}
    assert others <= {"rotary_emb:1"}  # one fault, and both tables of the rotation come from it
    assert found.transplant.logits == found.transplant.logits_equal > 0
    assert zoom_lines(found)[0].startswith("proven")


def test_where_nothing_differs_nothing_is_claimed(zooming):
    found = zooming().under(no_fault)
    assert found.site == ""
    assert found.finding.kind == "none"
    assert found.transplant.state == "not run"
    assert not any("proven:" in line and "not" not in line for line in zoom_lines(found))


def test_an_op_is_told_with_shapes_dtypes_arguments_and_how_far_apart_its_outputs_are(zooming):
    found = zooming("llama").under(plant.epsilon).finding
    (a,), (b,) = found.a, found.b
    assert (a.arguments, b.arguments) == ("other=1e-06, alpha=1", "other=0.001, alpha=1") or (
        "1e-06" in a.arguments and "0.001" in b.arguments
    )
    assert a.inputs[0].shape == [1, len(PROMPT), 1]
    assert a.inputs[0].dtype == "float32"
    assert found.max_abs_diff == pytest.approx(1e-3 - 1e-6, rel=1e-2)
    assert found.hints_a == found.hints_b
    assert found.hints_a["threads"] == "1"


def test_two_faults_are_two_origins_and_one_alone_is_no_proof(zooming):
    sides = zooming()
    found = sides.under(plant.weight_element, plant.split_reduction)
    assert found.transplant.state == "proven"
    assert [origin.site for origin in found.transplant.origins] == [
        "layers.1.mlp.up_proj",
        "layers.2.mlp.down_proj",
    ]
    # The control: with A's rows at the first origin only, B does not follow.
    a = sides.run(Rerun(keep_from=0))
    only = {key: rows for key, rows in a.kept.rows.items() if key[0] == "layers.1.mlp.up_proj"}
    patched = sides.run(Rerun(patch=replace(a.kept, rows=only)), plant.weight_element, plant.split_reduction)
    half = transplanted(a, patched)
    assert half.state == "not proven"
    assert half.why.at.site == "layers.2.mlp.down_proj"


def test_a_fault_in_the_head_shows_in_logits_alone(zooming):
    found = zooming("llama").under(plant.head_row)
    assert (found.site, found.position) == ("", len(PROMPT) - 1)
    assert (found.finding.kind, found.finding.tensor) == ("weight", "lm_head.weight")
    assert found.transplant.state == "proven"
    assert [origin.site for origin in found.transplant.origins] == ["logits"]
    assert "the head is the origin" in zoom_lines(found)[0]


def test_a_head_fault_behind_another_is_an_origin_of_its_own(zooming):
    found = zooming("llama").under(plant.weight_element, plant.head_row)
    assert [origin.site for origin in found.transplant.origins] == ["layers.1.mlp.up_proj", "logits"]
    assert "and A's logits" in zoom_lines(found)[0]


@pytest.mark.parametrize(
    ("fault", "site"),
    [(plant.epsilon, "layers.1.post_attention_layernorm"), (plant.weight_element, "layers.1.mlp.up_proj")],
)
def test_the_op_is_named_between_a_batch_and_a_run_alone(zooming, fault, site):
    """B runs behind padding, in the second row of a batch."""
    sides = zooming("llama")
    plan = sides.batch.sequences[0]
    longer = planned(1, [90, *PROMPT, 91, 92], golden=[5, 6, 7, 8, 9, 10])
    batch = Batch((longer, plan))
    alike = sides.under(no_fault, batch_b=batch)
    found = sides.under(fault, batch_b=batch)
    if alike.site:  # the batch itself differs somewhere: the planted op must still be no later
        assert (found.position, found.site) <= (alike.position, alike.site) or found.site == site
    assert found.site == site
    assert found.finding.a[0].module == site
    assert found.finding.kind in ("op", "weight")


def test_a_side_that_does_not_repeat_its_trace_is_told(zooming):
    sides = zooming()
    run = sides.run(Rerun())
    hashes = dict(enumerate(run.row_hashes))
    keys = tuple((site.name, site.occurrence, site.part) for site in run.sites)
    known = Recorded(dict(enumerate(run.tokens)), hashes, keys)
    found = sides.under(plant.weight_element, recorded=(known, known))
    assert found.a.state == "repeated"
    assert found.a.rows == sum(bool(digest) for row in run.row_hashes for digest in row)
    assert found.b.state == "not repeated"
    assert found.b.where.site == "layers.1.mlp.up_proj"
    assert any("does not repeat" in line for line in zoom_lines(found))


def test_a_difference_that_does_not_come_again_is_not_reproduced(zooming):
    place = {
        "request_id": "r0",
        "sample": 0,
        "occurrence": 0,
        "part": "",
        "rel_drift": 0.1,
        "is_origin": True,
    }
    gone = FirstSite(position=3, site="layers.0.mlp", **place)
    found = zooming().under(no_fault, expected=gone)
    assert not found.seen_again
    assert found.finding is None
    assert "was not reproduced" in " ".join(zoom_lines(found))
    elsewhere = zooming().under(plant.weight_element, expected=gone)
    assert not elsewhere.seen_again
    assert elsewhere.site == "layers.1.mlp.up_proj"
    assert "the traces differ first at layers.0.mlp" in " ".join(zoom_lines(elsewhere))
    assert zoom_lines(elsewhere)[0].startswith("proven for the re-runs")


def test_runs_of_the_expected_place_are_not_repeated_to_find_it(zooming):
    sides = zooming()
    known = sides.under(plant.weight_element)
    place = {
        "request_id": "r0",
        "sample": 0,
        "occurrence": 0,
        "part": "",
        "rel_drift": 0.1,
        "is_origin": True,
    }
    sides.runs = 0
    sides.under(plant.weight_element, expected=FirstSite(position=known.position, site=known.site, **place))
    assert sides.runs == 3  # A, B, and B with A's rows


def tensor(values, shape, name="self"):
    data = b"".join(value.to_bytes(4, "little") for value in values)
    return OpTensor(
        name, tuple(shape), (), "int32", "cpu", 0, data[:16].ljust(16, b"\0") or b"0" * 16, data=data
    )


def trace(batch, row, tokens, total, fed, seen):
    return OpTrace(seen[-1] if seen else 0, batch, row, tokens, total, tuple(fed), tuple(seen), {}, ())


@pytest.mark.parametrize("changed", ["nothing", "the sequence", "padding", "a neighbour", "a later position"])
def test_tensors_are_compared_where_the_sequence_lies(changed):
    """A: alone, 3 tokens. B: row 1 of 2, behind 2 of 5 columns of padding. Position 1 is looked at."""
    rows = [[1, 2], [3, 4], [5, 6]]
    a = tensor([value for row in rows for value in row], [1, 3, 2])
    batch = [[[90, 91] for _ in range(5)], [[0, 0], [0, 0], *rows]]
    batch = [[list(row) for row in sequence_] for sequence_ in batch]
    place = {"the sequence": (1, 3), "padding": (1, 0), "a neighbour": (0, 3), "a later position": (1, 4)}
    if changed in place:
        one, column = place[changed]
        batch[one][column][1] += 100
    b = tensor([value for sequence_ in batch for row in sequence_ for value in row], [2, 5, 2])
    in_a, in_b = trace(1, 0, 3, 3, [0, 1], [0, 1]), trace(2, 1, 5, 5, [2, 3], [2, 3])
    assert compare(a, b, in_a, in_b) == ("differs" if changed == "the sequence" else "equal")
    flat = replace(b, shape=(10, 2))  # as a linear layer sees it
    assert compare(a, flat, in_a, in_b) == ("differs" if changed == "the sequence" else "equal")


def test_tensors_of_passes_that_begin_elsewhere_are_compared_at_common_positions():
    """A prefills 4 tokens at once; B in chunks of 2, of which the second is looked at, with all 4 cached."""
    a, b = tensor(range(8), [1, 4, 2]), tensor(range(4, 8), [1, 2, 2])
    in_a, in_b = trace(1, 0, 4, 4, [0, 1, 2, 3], [0, 1, 2, 3]), trace(1, 0, 2, 4, [0, 1], [0, 1, 2, 3])
    assert compare(a, b, in_a, in_b) == "equal"
    assert compare(a, tensor([4, 5, 6, 9], [1, 2, 2]), in_a, in_b) == "differs"
    keys = tensor(range(8), [1, 4, 2])
    assert compare(keys, keys, in_a, in_b) == "equal"
    alone, padded = trace(1, 0, 1, 3, [0], [0, 1, 2]), trace(1, 0, 1, 5, [0], [2, 3, 4])
    held, behind = tensor([1, 2, 3, 4], [1, 2, 2]), tensor([90, 91, 92, 93, 1, 2, 3, 4], [1, 4, 2])
    assert compare(held, behind, alone, padded) == "equal"  # what a cache holds before the pass
    assert compare(held, tensor([0, 0, 0, 0, 1, 2, 3, 5], [1, 4, 2]), alone, padded) == "differs"
    assert compare(a, tensor(range(6), [1, 3, 2]), in_a, in_b) == "unknown"


def ops(*names):
    return [Op(index, "m", 0, name, 0, "", (), ()) for index, name in enumerate(names)]


def test_ops_are_aligned_by_what_they_are():
    steps = align_ops(ops("t", "fused", "view", "mm"), ops("t", "bmm", "softmax", "bmm", "view", "add", "mm"))
    assert [(i, j) for i, j in steps if i is not None and j is not None] == [(0, 0), (2, 4), (3, 6)]
    assert sorted(i for i, _ in steps if i is not None) == [0, 1, 2, 3]
    assert sorted(j for _, j in steps if j is not None) == list(range(7))


def test_the_first_difference_is_in_causal_order(zooming):
    sides = zooming()
    a, b = sides.run(Rerun()), sides.run(Rerun(), plant.weight_element, plant.embedding_row)
    spot = first_difference(a, b)
    assert (spot.position, spot.label) == first_by_loop(a, b)
    assert first_difference(a, a) is None


def test_the_rest_of_a_long_block_and_the_positions_compared_are_told(zooming):
    found = zooming().under(plant.another_kernel)
    lines = zoom_lines(found)
    shown = [line.split()[1] for line in lines if line.startswith("B: aten.")]
    (more,) = [int(line.split()[2]) for line in lines if line.startswith("B: and ")]
    assert len(found.finding.b) == 24, "more than a verdict lists"
    computing = [one.op for one in found.finding.b if not is_view(one.op)]
    assert shown == computing[:8]
    assert more == len(computing) - 8 + found.finding.left_out_b
    assert found.finding.left_out_b > 0
    assert not any(line.startswith("A: and") for line in lines)
    assert found.position > 0
    (told,) = [line for line in lines if " elements differ" in line]
    assert f"in the rows of positions 0 to {found.position}, largest difference" in told
    decoded = zooming("llama").under(plant.flipped_in_decode)  # one token a pass, so one row
    assert f"in the row of position {decoded.position}," in " ".join(zoom_lines(decoded))
    assert decoded.finding.max_abs_diff > 0  # of what the module gave: B alone ran an op more
    cached = zooming("llama").under(plant.corrupted_cache)
    assert f"16 of {16 * len(PROMPT)} elements differ in the rows of positions 0 to {len(PROMPT) - 1}," in (
        " ".join(zoom_lines(cached))
    )


def test_what_follows_at_an_earlier_position_of_the_pass_is_not_taken_for_the_origin(zooming):
    """A mask does not hold NaN back: rows of earlier positions differ, behind the module that made it."""

    @contextmanager
    def not_a_number(model):
        def spoil(_module, _inputs, output):
            output = output.clone()
            if output.shape[1] > 4:
                output[:, 4] = float("nan")
            return output

        handle = model.model.layers[1].mlp.up_proj.register_forward_hook(spoil)
        yield
        handle.remove()

    sides = zooming("llama")
    first = first_difference(sides.run(Rerun()), sides.run(Rerun(), not_a_number))
    assert (first.position, first.label) == (0, "layers.2.self_attn:attn")  # which only follows
    found = sides.under(not_a_number)
    assert (found.position, found.site) == (4, "layers.1.mlp.up_proj")
    assert found.finding.kind == "block"
    assert "aten.fill_.Tensor" in {one.op for one in found.finding.b}
    assert [origin.site for origin in found.transplant.origins] == ["layers.1.mlp.up_proj"]


def test_a_weight_that_two_modules_share_is_named_where_it_was_read(zooming):
    """The head of GPT-2 is its embedding: a row that no token chose shows in the head alone."""
    sides = zooming("gpt2")
    unread = next(token for token in range(6, 128) if token not in sides.run(Rerun()).tokens)

    def head_row(model):
        return plant.changed(model.transformer.wte.weight, lambda weight: weight[unread].mul_(1.5))

    found = sides.under(head_row)
    assert (found.site, found.finding.kind, found.finding.tensor) == ("", "weight", "wte.weight")
    assert {one.module for one in (*found.finding.a, *found.finding.b)} == {"lm_head"}


def test_lanes_of_different_dtypes_are_looked_at_where_the_verdict_points(tiny_models, open_engine):
    """No hash of theirs can be equal, so nothing is transplanted, and each side runs once."""
    folder = tiny_models("llama-bf16")
    short, wide = Zooming(open_engine(folder)), Zooming(open_engine(folder, dtype="float32"))
    site = {"site": "layers.1.mlp.up_proj", "occurrence": 0, "part": "", "rel_drift": 0.1, "is_origin": False}
    found = zoom(
        short.run,
        lambda ask: wide.run(ask, batch=short.batch),
        ZoomTarget("r0", expected=FirstSite(request_id="r0", sample=0, position=3, **site)),
    )
    assert (found.position, found.site) == (3, "layers.1.mlp.up_proj")
    assert {one.module for one in (*found.finding.a, *found.finding.b)} == {"layers.1.mlp.up_proj"}
    assert (found.transplant.state, found.seen_again) == ("not run", False)
    assert "different dtype" in " ".join(zoom_lines(found))
    assert (short.runs, wide.runs) == (1, 1)
