"""Ops are recorded as they run, without changing anything; rows are kept, put in, and gone on with."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from blake3 import blake3
from fakes import zooming as plant
from fakes.replaying import planned, run
from fakes.traces import header
from fakes.zooming import PROMPT, Zooming
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.op_recording import op_recorder as recording
from rip.replay.op_recording import row_patching
from rip.replay.op_recording.op_recorder import raw_bits
from rip.replay.op_recording.ops_file import read_ops, write_ops, zoom_path
from rip.replay.op_recording.rerun import OpRecordingEngine, run_side
from rip.replay.op_recording.row_patching import location_in_pass
from rip.replay.request.batches import Batch
from rip.schemas.errors import BadInput, RipError
from rip.schemas.recorded_ops import COLUMNS, TENSOR_FIELDS, ZOOM_KEY, arrow_schema
from rip.schemas.zoom import Rerun

STEPS = 6
SCOPE = r"^layers\.1(\.|$)"


@pytest.fixture
def sides(tiny_models, open_engine):
    return Zooming(open_engine(tiny_models("llama-bf16")), steps=STEPS)


@pytest.mark.parametrize("position", [0, 3, len(PROMPT) - 1, len(PROMPT), len(PROMPT) + STEPS - 2])
def test_recording_changes_nothing(sides, position):
    plain = sides.run(Rerun())
    seen = sides.run(Rerun(position=position, keep_from=position))
    assert seen.row_hashes == plain.row_hashes
    assert seen.logits_hashes == plain.logits_hashes
    assert sides.run(Rerun(position=position), plant.weight_element).row_hashes != plain.row_hashes
    assert seen.ops.position == position
    assert seen.ops.tokens == (len(PROMPT) if position < len(PROMPT) else 1)
    assert seen.ops.seen == tuple(range(position + 1))


def test_ops_carry_their_module_and_what_the_model_computes(sides):
    position = len(PROMPT)
    found = sides.run(Rerun(position=position, scope=SCOPE, keep_from=position))
    modules = {op.module for op in found.ops.ops}
    assert modules >= {"layers.1", "layers.1.self_attn", "layers.1.mlp", "layers.1.mlp.down_proj"}
    assert all(module.startswith("layers.1") for module in modules)
    (product,) = [
        op for op in found.ops.ops if op.module == "layers.1.mlp.down_proj" and op.name == "aten.mm.default"
    ]
    assert product.inputs[1].parameter == "layers.1.mlp.down_proj.weight"
    assert product.inputs[1].data is None
    assert product.outputs[0].data == found.kept.rows["layers.1.mlp.down_proj", 0, ""][position]
    everything = sides.run(Rerun(position=position))
    assert {op.module for op in everything.ops.ops} >= {"embed_tokens", "norm", "rotary_emb", "lm_head", ""}
    by_index = {op.index: op for op in everything.ops.ops}
    assert sorted(by_index) == list(range(len(by_index)))
    # What an op takes is what its producer gave, unless something wrote into it in between.
    followed = 0
    for op in everything.ops.ops:
        for tensor in op.inputs:
            if tensor.producer >= 0 and tensor.digest in {
                out.digest for out in by_index[tensor.producer].outputs
            }:
                followed += 1
            assert tensor.producer < op.index
    assert followed > len(everything.ops.ops) / 2


def test_what_the_taps_do_is_none_of_the_models_ops(tiny_models, open_engine):
    """The same ops with all sites observed and with one."""
    names = []
    for sites in ("", r"^norm$"):
        side = Zooming(open_engine(tiny_models("llama-bf16"), sites=sites), steps=STEPS)
        found = side.run(Rerun(position=2, keep_from=0))
        names.append([(op.module, op.name, op.occurrence) for op in found.ops.ops])
    assert names[0] == names[1]


def test_inputs_are_hashed_before_an_op_writes_into_them(sides):
    def doubled(module, inputs, output):
        return output.mul_(2)

    handle = sides.model.model.layers[1].mlp.up_proj.register_forward_hook(doubled)
    found = sides.run(Rerun(position=0, scope=r"up_proj"))
    handle.remove()
    (written,) = [op for op in found.ops.ops if op.name == "aten.mul_.Tensor"]
    before, after = (
        torch.frombuffer(bytearray(one.data), dtype=torch.bfloat16)
        for one in (written.inputs[0], written.outputs[0])
    )
    assert torch.equal(after, before * 2)
    assert written.inputs[0].digest != written.outputs[0].digest
    assert written.arguments == "other=2"


def test_memory_that_nothing_wrote_has_no_digest(sides):
    def emptied(module, inputs, output):
        return torch.empty_like(output).copy_(output)

    handle = sides.model.model.layers[1].mlp.up_proj.register_forward_hook(emptied)
    found = sides.run(Rerun(position=0, scope=r"up_proj"))
    handle.remove()
    (empty,) = [op for op in found.ops.ops if op.name == "aten.empty_like.default"]
    assert empty.outputs[0].digest == b""


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    st.booleans(),
)
def test_bytes_are_in_logical_order_whatever_the_strides(shape, random, dtype, expanded):
    base = torch.randint(0, 99, [size + 1 for size in shape]).to(dtype)
    order = list(range(len(shape)))
    random.shuffle(order)
    tensor = base[tuple(slice(1, None) for _ in shape)].permute(order)
    if expanded:
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    wanted = tensor.view(torch.int16) if dtype is torch.bfloat16 else tensor
    assert raw_bits(tensor) == np.ascontiguousarray(wanted.numpy()).tobytes()


def test_a_digest_is_that_of_the_bytes(sides):
    found = sides.run(Rerun(position=0, scope=SCOPE))
    for op in found.ops.ops:
        for tensor in (*op.inputs, *op.outputs):
            if tensor.data is not None:
                assert tensor.digest == blake3(tensor.data).digest(length=16)


def test_tensors_beyond_the_bound_leave_their_digest(sides, monkeypatch):
    whole = sides.run(Rerun(position=0, scope=SCOPE)).ops.ops
    monkeypatch.setattr(recording, "KEPT_BYTES", 1000)
    bounded = sides.run(Rerun(position=0, scope=SCOPE)).ops.ops
    kept = sum(len(tensor.data or b"") for op in bounded for tensor in (*op.inputs, *op.outputs))
    assert 0 < kept <= 1000
    digests = [
        [tensor.digest for op in ops for tensor in (*op.inputs, *op.outputs)] for ops in (whole, bounded)
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("fault", [plant.weight_element, plant.another_kernel, plant.rope_off_by_one])
def test_with_the_other_rows_a_faulty_run_follows(sides, fault):
    a = sides.run(Rerun(keep_from=0))
    without = sides.run(Rerun(), fault)
    assert without.logits_hashes != a.logits_hashes
    patched = sides.run(Rerun(patch=a.kept), fault)
    assert patched.logits_hashes == a.logits_hashes
    assert patched.patched
    assert sides.run(Rerun(patch=a.kept)).patched == frozenset()  # nothing to put in where nothing differs


def test_a_row_put_in_is_what_later_modules_see(sides):
    """The rows of another run, put in at one site, give that run's values one module further."""
    a, other = sides.run(Rerun(keep_from=0)), sides.run(Rerun(keep_from=0), plant.embedding_row)
    key, position = ("embed_tokens", 0, ""), PROMPT.index(30)
    assert a.kept.rows[key][position] != other.kept.rows[key][position]
    only = type(other.kept)({key: other.kept.rows[key]}, other.kept.dtypes, 0, other.kept.stop)
    moved = sides.run(Rerun(patch=only))
    assert moved.row_hashes == other.row_hashes
    assert moved.row_hashes != a.row_hashes


def test_positions_whose_rows_do_not_fit_are_not_kept(sides, monkeypatch):
    whole = sides.run(Rerun(keep_from=0)).kept
    monkeypatch.setattr(row_patching, "KEPT_BYTES", 20_000)
    kept = sides.run(Rerun(keep_from=0)).kept
    assert whole.stop == len(PROMPT) + STEPS - 1
    assert kept.stop < whole.stop
    assert all(position in rows for rows in kept.rows.values() for position in range(kept.stop) if rows)


def test_a_sequence_behind_padding_is_found_in_its_row(sides):
    plan = sides.batch.sequences[0]
    longer = planned(1, [90, *PROMPT, 91, 92], golden=[5, 6, 7, 8, 9, 10])
    batch = Batch((longer, plan))
    found = sides.run(Rerun(position=2, keep_from=0), batch=batch)
    assert (found.ops.batch_size, found.ops.batch_row, found.ops.tokens) == (2, 1, 10)
    assert found.ops.fed == found.ops.seen == (3, 4, 5)
    later = sides.run(Rerun(position=8), batch=batch).ops
    assert (later.tokens, later.total, later.fed) == (1, 12, (0,))
    assert later.seen == tuple(range(3, 12))
    told = run(sides.engine, batch, "golden-decode")[0]
    assert b"".join(found.row_hashes[0]) == told.hashes[0]


def test_places_are_read_from_the_mask():
    ids, mask = torch.zeros(2, 2), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]])
    place = location_in_pass({"input_ids": ids, "attention_mask": mask}, 1)
    assert place.seen == ((1, 0), (2, 1))
    assert place.column_of == {1: 0}
    assert location_in_pass({"inputs_embeds": ids}, 0) is None


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Rerun(position=len(PROMPT) + STEPS - 1), "computes positions 0 to"),
        (Rerun(position=-1), "position"),
    ],
)
def test_positions_that_are_never_computed_are_refused(sides, ask, words):
    with pytest.raises(BadInput, match=words):
        sides.run(ask)


def test_an_engine_without_sites_and_a_foreign_sequence_are_refused(sides, tiny_models, open_engine):
    with pytest.raises(BadInput, match="not in this batch"):
        run_side(sides.engine, sides.batch, "golden-decode", 5, Rerun())
    with pytest.raises(BadInput, match="sites"):
        run_side(open_engine(tiny_models("llama"), sites=None), sides.batch, "golden-decode", 0, Rerun())


def recorded(sides):
    zooming = OpRecordingEngine(sides.engine, 2, SCOPE)
    plans = Batch((*sides.batch.sequences, planned(1, [90, *PROMPT], golden=[5] * STEPS)))
    list(zooming.run(plans, "golden-decode", True))
    list(zooming.run(plans, "golden-decode", False))  # the observer check: not recorded
    return zooming.recorded(header(sides.engine.sites))


def test_what_is_written_is_read_back(sides, tmp_path):
    about, passes = recorded(sides)
    assert [(one.request_id, one.ops) for one in about.passes] == [("r0", 0), ("r1", 0)]  # one pass for both
    path = zoom_path(tmp_path / "t.parquet")
    assert path.name == "t.zoom.parquet"
    write_ops(path, about, passes)
    again, traces = read_ops(path)
    assert again == about
    assert [trace.ops for trace in traces] == [passes[0], passes[0]]
    assert (traces[1].batch_row, traces[0].fed) == (1, (1, 2, 3))
    table = pq.read_table(path)
    assert table.column_names == [column.name for column in COLUMNS]
    assert [field.name for field in table.schema.field("inputs").type.value_type] == [
        field.name for field in TENSOR_FIELDS
    ]


def test_files_that_hold_no_ops_are_refused(sides, tmp_path):
    about, passes = recorded(sides)
    path = tmp_path / "t.zoom.parquet"
    write_ops(path, about, passes)
    raw = path.read_bytes()
    wrong = {"cut": raw[: len(raw) // 2], "text": b"no parquet", "empty": b""}
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign")
    newer = about.to_json().replace("rip.zoom/1", "rip.zoom/2")
    table = pa.Table.from_pylist([], arrow_schema().with_metadata({ZOOM_KEY: newer.encode()}))
    pq.write_table(table, tmp_path / "newer")
    for name in (*wrong, "foreign", "newer", "absent"):
        with pytest.raises(RipError) as refused:
            read_ops(tmp_path / name)
        assert refused.value.fix
    assert read_ops(path)[0] == about


def test_the_document_lists_every_column_and_field():
    text = (Path(__file__).parents[2] / "docs" / "zoom.md").read_text(encoding="utf-8")
    for column in (*COLUMNS, *TENSOR_FIELDS):
        assert column.markdown() in text
