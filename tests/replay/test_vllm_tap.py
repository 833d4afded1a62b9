"""Taps in vLLM's worker: every request gets the rows that the model computed for it, whatever the batch."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fakes.tapping import ALONE, ready, tapped, watch
from fakes.vllm_runner import (
    CONTEXT,
    CausalLM,
    FirstRunner,
    SchedulerOutput,
    SecondRunner,
    new_request,
    small_model,
)
from rip.replay.row_summaries.gpu_queue import Pending
from rip.replay.row_summaries.row_hash_and_sketch import hash_rows_reference
from rip.replay.row_summaries.rows import RowSummaries, summarise_by_reference
from rip.replay.row_summaries.token_distribution import top_k_of_rows
from rip.replay.tap_trace import trace_from_tap
from rip.replay.vllm_tap.tap_folder import TapFolder, TappedRows
from rip.replay.vllm_tap.worker.row_block import RepeatedSteps
from rip.replay.vllm_tap.worker.step import Segment
from rip.schemas.errors import EngineFailed, OutputFailed

RUNNERS = [FirstRunner, SecondRunner]

LAYER_0 = [
    "embed_tokens",
    "layers.0.input_layernorm",
    "layers.0.self_attn.q_proj",
    "layers.0.self_attn.k_proj",
    "layers.0.self_attn.v_proj",
    "layers.0.self_attn.rotary_emb:0",
    "layers.0.self_attn.rotary_emb:1",
    "layers.0.self_attn:attn",
    "layers.0.self_attn.o_proj",
    "layers.0.self_attn",
    "layers.0.post_attention_layernorm:1",
    "layers.0.post_attention_layernorm",
    "layers.0.mlp.gate_proj",
    "layers.0.mlp.up_proj",
    "layers.0.mlp.act_and_mul",
    "layers.0.mlp.down_proj",
    "layers.0.mlp",
    "layers.0",
]


def hashes(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    """uint64[R, 2] of rows [R, W]."""
    return hash_rows_reference(rows.contiguous().view(torch.uint8).numpy())


def logits_of(model: CausalLM, hidden: torch.Tensor) -> torch.Tensor:
    """What the model's head makes of rows of its output."""
    with torch.inference_mode():
        return torch.nn.functional.linear(hidden, model.lm_head.weight)


def at(taps: TapFolder, rows: TappedRows, label: str) -> np.ndarray[Any, Any]:
    """The hashes of one site."""
    return rows.summaries.row_hash[:, [site.label() for site in taps.sites].index(label)]


@pytest.mark.parametrize("kind", RUNNERS)
def test_sites_have_the_checkpoints_names_in_the_order_of_execution(
    kind: type[FirstRunner], tmp_path: Path
) -> None:
    tapped(kind(small_model()), tmp_path)
    taps = ready(tmp_path)
    labels = [site.label() for site in taps.sites]
    assert labels[: len(LAYER_0)] == LAYER_0
    assert labels[len(LAYER_0)] == "layers.1.input_layernorm"
    assert labels[-2:] == ["layers.1", "norm"]
    assert [site.width for site in taps.sites[:5]] == [32, 32, 32, 16, 16]
    assert taps.channel == "eager"
    assert taps.sites[2].module == "QKVParallelLinear"


def test_only_wanted_sites_are_observed(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    tapped(runner, tmp_path, sites=re.compile(r"mlp\.(up|down)_proj$"))
    runner.tokens["a"] = [1, 2, 3]
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    assert [site.name.rpartition(".")[2] for site in taps.sites] == ["up_proj", "down_proj"] * 2
    assert taps.rows("a", 10).summaries.row_hash.any(-1).all()


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_every_request_are_what_the_model_computed_for_it(
    kind: type[FirstRunner], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = small_model(dtype=dtype)
    down = watch(model, "model.layers.1.mlp.down_proj")
    qkv = watch(model, "model.layers.0.self_attn.qkv_proj")
    streams = watch(model, "model.layers.1.input_layernorm", output=1)
    runner = kind(model, pad_to=8)
    tapped(runner, tmp_path)
    for seen in (down, qkv, streams):
        seen.clear()  # of the dummy run
    runner.tokens = {"a": [5, 6, 7, 8, 9, 10], "b": [11, 12, 13], "c": [14, 15]}
    runner.step(
        {"a": 4, "b": 2}, scheduled_new_reqs=[new_request("a", rip_tap="A"), new_request("b", rip_tap="B")]
    )
    runner.step({"b": 1, "c": 2, "a": 1}, scheduled_new_reqs=[new_request("c", rip_tap="")])
    runner.step({"a": 1}, finished_req_ids={"c", "b"})
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    a, b = taps.rows("A", 10), taps.rows("B", 10)
    assert a.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert a.token_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert b.token_ids.tolist() == [11, 12, 13]
    rows_a = [torch.cat([seen[0][:4], seen[1][3:4], seen[2][:1]]) for seen in (down, qkv, streams)]
    assert (at(taps, a, "layers.1.mlp.down_proj") == hashes(rows_a[0])).all()
    assert (at(taps, a, "layers.0.self_attn.k_proj") == hashes(rows_a[1][:, 32:48])).all()
    # The residual stream after layer 0: what the next layer's fused norm added up, before it was overwritten.
    assert (at(taps, a, "layers.0") == hashes(rows_a[2])).all()
    rows_b = torch.cat([down[0][4:6], down[1][:1]])
    assert (at(taps, b, "layers.1.mlp.down_proj") == hashes(rows_b)).all()
    assert [(s.batch_size, s.batch_row, s.num_tokens, s.cached_tokens) for s in a.shapes[3:]] == [
        (2, 0, 4, 0),
        (3, 2, 1, 4),
        (1, 0, 1, 5),
    ]
    assert [shape.padded_tokens for shape in a.shapes[3:]] == [2, 4, 7]
    with pytest.raises(Exception, match="no rank saw it"):
        taps.rows("c", 0)


@pytest.mark.parametrize("kind", RUNNERS)
def test_distributions_are_those_of_the_raw_logits(kind: type[FirstRunner], tmp_path: Path) -> None:
    model = small_model()
    normed = watch(model, "model.norm")
    runner = kind(model)
    tapped(runner, tmp_path, topk=5)
    normed.clear()
    runner.tokens = {"a": [5, 6, 7], "b": [8, 9, 10, 11]}
    runner.step({"a": 3, "b": 3}, scheduled_new_reqs=[new_request("a"), new_request("b", rip_tap="")])
    runner.step({}, finished_req_ids={"a"})
    rows = ready(tmp_path).rows("a", 10)
    expected = top_k_of_rows(logits_of(model, normed[0][2:3]), 5)[0]
    assert rows.topk[:2] == [None, None]
    found = rows.topk[2]
    assert found is not None
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.logsumexp == pytest.approx(expected.logsumexp)
    assert found.logits is not None
    assert np.isfinite(found.logits).all(), "the sampler's work in place was taken for logits"


def test_a_scored_prompt_has_a_distribution_at_every_position(tmp_path: Path) -> None:
    model = small_model()
    runner = FirstRunner(model)
    tapped(runner, tmp_path, topk=0)
    runner.tokens = {"other": [1, 2], "a": [5, 6, 7, 8]}
    new = [new_request("other", rip_tap=""), new_request("a")]
    runner.execute_model(SchedulerOutput({"other": 2, "a": 4}, scheduled_new_reqs=new))
    with torch.inference_mode():
        model.compute_logits(runner.hidden[2:5])  # prompt_logprobs
    runner.sample_tokens()
    runner.step({}, finished_req_ids={"a"})
    rows = ready(tmp_path).rows("a", 10)
    expected = hashes(logits_of(model, runner.hidden[2:5]))
    assert [item.logits_hash for item in rows.topk[:3] if item] == [row.tobytes() for row in expected]
    assert rows.topk[3] is not None
    assert rows.topk[3].logsumexp is None


@pytest.mark.parametrize("kind", RUNNERS)
def test_cached_positions_have_no_rows_and_chunks_go_on(kind: type[FirstRunner], tmp_path: Path) -> None:
    model = small_model()
    runner = kind(model)
    tapped(runner, tmp_path)
    runner.tokens = {"warm": list(range(1, 9)), "a": list(range(1, 12))}
    runner.step({"warm": 8}, scheduled_new_reqs=[new_request("warm", rip_tap="")])
    for layer in model.model.layers:  # the prefix cache: the blocks of another request with the same prefix
        attention = id(layer.self_attn.attn)
        CONTEXT.caches[attention, "a"] = dict(list(CONTEXT.caches[attention, "warm"].items())[:4])
    runner.computed["a"] = 4
    request = new_request("a")
    request.prompt_token_ids, request.num_computed_tokens = runner.tokens["a"][:11], 4
    runner.step({"a": 3}, scheduled_new_reqs=[request], finished_req_ids={"warm"})
    runner.step({"a": 4})
    runner.step({}, finished_req_ids={"a"})
    rows = ready(tmp_path).rows("a", 10)
    assert list(rows.prefix) == runner.tokens["a"][:4]
    assert rows.positions.tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert rows.token_ids.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert [shape.cached_tokens for shape in rows.shapes] == [4, 4, 4, 7, 7, 7, 7]


def test_what_was_read_and_forgotten_leaves_the_disk_when_nobody_else_needs_it(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    tapped(runner, tmp_path)
    runner.tokens = {"a": [3, 4, 5], "b": [6, 7, 8]}
    runner.step({"a": 3, "b": 3}, scheduled_new_reqs=[new_request("a"), new_request("b")])
    runner.step({}, finished_req_ids={"a", "b"})
    folder = ready(tmp_path)
    first = folder.rows("a", 10)
    folder.forget("a")
    assert list(tmp_path.rglob("part-*.rip")), "the part holds rows of b"
    assert len(folder.rows("b", 10).positions) == len(first.positions) == 3
    folder.forget("b")
    assert not list(tmp_path.rglob("part-*.rip"))


def test_everything_in_a_folder_becomes_one_trace(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    recorder = tapped(runner, tmp_path / "taps")
    names = ("job-0a1b2c3d", "job-4e5f6071", "other")
    for token, name in enumerate(names):
        runner.tokens = {name: [3, 4, 5 + token]}
        runner.step({name: 3}, scheduled_new_reqs=[new_request(name)])
        runner.step({}, finished_req_ids={name})
    recorder.close()  # what is still to be written, is
    header = trace_from_tap(tmp_path / "taps", tmp_path / "t.parquet", "mine", None)
    assert [request.request_id for request in header.requests] == ["job", "other"]
    found = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert [(row["request_id"], row["sample"], row["position"], row["token_id"]) for row in found] == [
        (name, sample, position, token)
        for name, sample, last in (("job", 0, 5), ("job", 1, 6), ("other", 0, 7))
        for position, token in enumerate((3, 4, last))
    ]
    assert all(all(row["site_hash"]) for row in found)
    with pytest.raises(OutputFailed):
        trace_from_tap(tmp_path / "taps", tmp_path / "t.parquet", "mine", None)


@pytest.mark.parametrize("kind", RUNNERS)
def test_drafts_that_were_not_accepted_give_way_to_what_came_in_their_place(
    kind: type[FirstRunner], tmp_path: Path
) -> None:
    model = small_model()
    down = watch(model, "model.layers.0.mlp.down_proj")
    runner = kind(model)
    tapped(runner, tmp_path)
    down.clear()
    runner.tokens = {"a": [3, 4, 5]}
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    runner.tokens["a"].append(6)
    runner.step({"a": 3}, scheduled_spec_decode_tokens={"a": [7, 8]})  # 6 and its drafts 7, 8
    runner.tokens["a"].append(9)  # 7 was not accepted: 9 stands there
    runner.computed["a"] = 4
    runner.step({"a": 1})
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    rows = taps.rows("a", 10)
    assert rows.token_ids.tolist() == [3, 4, 5, 6, 9, 8]
    assert (at(taps, rows, "layers.0.mlp.down_proj")[4] == hashes(down[2])[0]).all()
    assert sum(item is not None for item in rows.topk) == 4
    assert rows.findings == [
        "1 positions were computed more than once (preemption, or drafts that were not accepted); "
        "the last is shown"
    ]


def test_a_request_is_captured_under_its_key_its_id_or_not_at_all(tmp_path: Path) -> None:
    def run(folder: Path, **settings: Any) -> list[str]:
        runner = FirstRunner(small_model())
        tapped(runner, folder, **settings)
        new = [new_request("named", rip_tap="K"), new_request("plain"), new_request("empty", rip_tap="")]
        runner.tokens = {"named": [1], "plain": [2], "empty": [3]}
        runner.step({"named": 1, "plain": 1, "empty": 1}, scheduled_new_reqs=new)
        runner.step({}, finished_req_ids={"named", "plain", "empty"})
        taps = ready(folder)
        taps.rows("K", 10)
        return taps.keys()

    assert run(tmp_path / "all") == ["K", "plain"]
    assert run(tmp_path / "asked", only_keyed=True) == ["K"]


def test_a_request_is_found_by_the_id_that_its_caller_knows(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    tapped(runner, tmp_path)
    runner.tokens = {"0-5a3f": [1, 2], "1-77de": [3]}
    runner.step({"0-5a3f": 2, "1-77de": 1}, scheduled_new_reqs=[new_request("0-5a3f"), new_request("1-77de")])
    runner.step({}, finished_req_ids={"0-5a3f", "1-77de"})
    assert ready(tmp_path).rows("0", 10).token_ids.tolist() == [1, 2]


def test_two_requests_under_one_key_are_not_mixed(tmp_path: Path) -> None:
    runner = FirstRunner(small_model())
    tapped(runner, tmp_path)
    runner.tokens = {"a": [1, 2], "b": [3, 4]}
    both = [new_request("a", rip_tap="K"), new_request("b", rip_tap="K")]
    runner.step({"a": 2, "b": 2}, scheduled_new_reqs=both)
    runner.step({}, finished_req_ids={"a", "b"})
    with pytest.raises(Exception, match="2 requests were observed under the key K"):
        ready(tmp_path).rows("K", 10)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_step_with_more_rows_than_the_block_is_whole(
    kind: type[FirstRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    down = watch(model, "model.layers.1.mlp.down_proj")
    runner = kind(model)
    monkeypatch.setattr("rip.replay.vllm_tap.worker.recorder.LEAST_ROWS", 16)  # a long prompt does not fit
    monkeypatch.setattr("rip.replay.vllm_tap.worker.recorder.PENDING_BYTES", 0)
    tapped(runner, tmp_path)
    down.clear()
    runner.tokens = {"a": list(range(1, 41)), "b": [1, 2]}
    runner.step({"a": 10}, scheduled_new_reqs=[new_request("a")])
    runner.step({"a": 30, "b": 2}, scheduled_new_reqs=[new_request("b", rip_tap="")])
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    rows = taps.rows("a", 10)
    assert rows.token_ids.tolist() == runner.tokens["a"]
    expected = hashes(torch.cat([down[0][:10], down[1][:30]]))
    assert (at(taps, rows, "layers.1.mlp.down_proj") == expected).all()


@pytest.mark.parametrize("what", ["handed on", "changed in place", "changed in later steps"])
def test_a_block_that_hands_on_its_last_modules_tensor_shows_what_it_returned(
    what: str, tmp_path: Path
) -> None:
    model = small_model()
    steps = []

    class Block(type(model.model.layers[0].mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = super().forward(x)
            steps.append(len(x))
            if what == "changed in place":
                output.mul_(2)
            elif what == "changed in later steps" and len(steps) > 4:
                output = output + 1
            return output

    for layer in model.model.layers:
        layer.mlp.__class__ = Block
    returned = watch(model, "model.layers.0.mlp")
    runner = FirstRunner(model)
    tapped(runner, tmp_path)
    returned.clear()
    runner.tokens = {"a": [5, 6, 7, 8, 9]}
    runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
    runner.step({"a": 1})
    runner.step({"a": 1})
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    rows = taps.rows("a", 10)
    mine, inner = at(taps, rows, "layers.0.mlp"), at(taps, rows, "layers.0.mlp.down_proj")
    assert (mine == hashes(torch.cat(returned))).all()
    assert (mine == inner).all(axis=-1).tolist() == {
        "handed on": [True] * 5,
        "changed in place": [False] * 5,
        "changed in later steps": [True, True, True, False, False],
    }[what]
    norms = rows.summaries.l2[:, [site.label() for site in taps.sites].index("layers.0.mlp")]
    assert norms == pytest.approx(torch.cat(returned).norm(dim=-1).numpy())


def test_the_model_computes_the_same_with_and_without_taps(tmp_path: Path) -> None:
    def run(with_taps: bool) -> torch.Tensor:
        runner = FirstRunner(small_model(dtype=torch.bfloat16))
        if with_taps:
            tapped(runner, tmp_path)
        runner.tokens = {"a": [5, 6, 7, 8]}
        runner.step({"a": 4}, scheduled_new_reqs=[new_request("a")])
        return runner.hidden

    assert torch.equal(run(True), run(False))


def test_same_twice_is_equal_and_another_weight_is_not(tmp_path: Path) -> None:
    def run(name: str, change: bool) -> tuple[TapFolder, TappedRows]:
        model = small_model()
        if change:
            model.model.layers[1].mlp.down_proj.weight.data[3, 5] += 1e-3
        runner = FirstRunner(model)
        tapped(runner, tmp_path / name)
        runner.tokens = {"a": [5, 6, 7, 8]}
        runner.step({"a": 4}, scheduled_new_reqs=[new_request("a")])
        runner.step({}, finished_req_ids={"a"})
        taps = ready(tmp_path / name)
        return taps, taps.rows("a", 10)

    _, first = run("1", False)
    _, second = run("2", False)
    assert (first.summaries.row_hash == second.summaries.row_hash).all()
    taps, changed = run("3", True)
    differing = np.argwhere((first.summaries.row_hash != changed.summaries.row_hash).any(-1))
    assert taps.sites[differing[0, 1]].label() == "layers.1.mlp.down_proj"


def test_a_compiled_model_shows_its_output_and_says_what_was_not_seen(tmp_path: Path) -> None:
    model = small_model()
    normed = watch(model, "model.norm")
    runner = FirstRunner(model)
    tapped(runner, tmp_path, channel="compiled", why="the model is compiled (VLLM_COMPILE)")
    runner.tokens = {"a": [5, 6]}
    runner.step({"a": 2}, scheduled_new_reqs=[new_request("a")])
    runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    assert (taps.channel, [site.label() for site in taps.sites]) == ("compiled", ["norm"])
    assert "--enforce-eager" in taps.not_seen[0]
    assert (at(taps, taps.rows("a", 10), "norm") == hashes(normed[-1])).all()


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_ranks_of_tensor_parallelism_are_one_table_and_replicated_rows_are_compared(
    noise: float, tmp_path: Path
) -> None:
    barrier = threading.Barrier(2)
    parts: list[Any] = [None, None]
    ready_to_run = threading.Barrier(2)

    models = [small_model(seed=index, tp_size=2) for index in range(2)]
    whole = small_model(seed=9)

    def rank(index: int) -> None:
        model = models[index]
        for name in ("embed_tokens.weight", "norm.weight"):
            model.model.get_parameter(name).data = whole.model.get_parameter(name).data
        for layer in model.model.layers:
            layer.input_layernorm.weight.data.fill_(1)
            layer.post_attention_layernorm.weight.data.fill_(1)

        def reduce(mine: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            parts[index] = mine
            barrier.wait()
            return parts[0] + parts[1] + (noise * index if runner.computed else 0)

        for module in model.modules():
            if type(module).__name__ == "RowParallelLinear":
                module.reduce = reduce
        runner = FirstRunner(model)
        tapped(runner, tmp_path, {**ALONE, "rank": index, "tp_rank": index, "tp_size": 2})
        ready_to_run.wait()
        runner.tokens = {"a": [5, 6, 7]}
        runner.step({"a": 3}, scheduled_new_reqs=[new_request("a")])
        runner.step({}, finished_req_ids={"a"})

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    taps = ready(tmp_path)
    assert taps.world == {"tp_size": 2, "pp_size": 1, "dp_size": 1}
    labels = {site.label(): site for site in taps.sites}
    for name in ("q_proj", "k_proj", "v_proj"):
        assert labels[f"layers.0.self_attn.{name}:tp0of2"].sharded
        assert labels[f"layers.0.self_attn.{name}:tp1of2"].sharded
    assert labels["layers.0.self_attn:attn.tp1of2"].width == 16
    assert labels["layers.0.mlp.act_and_mul:tp0of2"].sharded
    for name in ("embed_tokens", "layers.0.self_attn", "layers.0.mlp.down_proj", "layers.1.mlp", "norm"):
        assert not labels[name].sharded
    rows = taps.rows("a", 10)
    assert rows.summaries.row_hash.any(-1).all()
    if noise:
        assert rows.findings[0].startswith(
            "rank 1 differs from rank 0 at layers.0.self_attn.o_proj, position 0 and 2 more"
        )
    else:
        assert rows.findings == []


def test_stages_of_the_pipeline_follow_each_other(tmp_path: Path) -> None:
    for stage in range(2):
        runner = FirstRunner(small_model(layers=2))
        wanted = re.compile(r"embed|layers\.0\." if stage == 0 else r"layers\.1\.|^norm")
        place = {**ALONE, "rank": stage, "pp_rank": stage, "pp_size": 2}
        tapped(runner, tmp_path, place, sites=wanted)
        runner.tokens = {"a": [5, 6]}
        runner.step({"a": 2}, scheduled_new_reqs=[new_request("a")])
        runner.step({}, finished_req_ids={"a"})
    taps = ready(tmp_path)
    labels = [site.label() for site in taps.sites]
    assert labels[0] == "embed_tokens"
    assert labels.index("layers.1.input_layernorm") > labels.index("layers.0.mlp")
    rows = taps.rows("a", 10)
    assert rows.summaries.row_hash.any(-1).all()
    assert rows.topk[1] is not None


def test_without_the_variable_the_plugin_does_nothing_and_imports_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from rip.replay.vllm_tap.plugin import register; register()\n"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('rip')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={})
    assert done.stdout.split() == []


def test_a_folder_that_nobody_writes_into_any_more_is_refused(tmp_path: Path) -> None:
    recorder = tapped(FirstRunner(small_model()), tmp_path)
    folder = ready(tmp_path)
    folder.check_alive()
    recorder.close()
    with pytest.raises(EngineFailed, match="has ended"):
        ready(tmp_path).check_alive()


@pytest.mark.parametrize("form", ["whole", "columns of a fused GEMM", "view with a stride", "heads"])
def test_steps_of_one_form_are_summarised_like_the_first_whatever_comes_between(form: str) -> None:
    first_out, count, padded = 3, 4, 6
    columns = ((0, 0, 64), (2, 64, 16), (1, 80, 16)) if "fused" in form else ((1, 0, 96),)
    out, expected = RowSummaries.empty(8, 3), RowSummaries.empty(8, 3)
    steps = RepeatedSteps(out, Pending())

    def tensor(seed: int, shape: str) -> torch.Tensor:
        values = torch.randn(padded, 160, generator=torch.Generator().manual_seed(seed)).bfloat16()
        return {
            "whole": values[:, :96].contiguous(),
            "columns of a fused GEMM": values[:, :96].contiguous(),
            "view with a stride": values[:, 32:128],
            "heads": values[:, :96].reshape(padded, 6, 16),
            "another dtype": values[:, :96].float(),
            "transposed": values[:, :96].T.contiguous().T,
        }[shape]

    for number, shape in enumerate([form, form, "another dtype", form, "transposed", form, form]):
        steps.begin(Segment(1, count, first_out), padded)
        steps.see(0, tensor(number, shape), columns)
        rows = tensor(number, shape).reshape(padded, -1)[1 : 1 + count]
        for site, first, width in columns:
            summarise_by_reference(rows[:, first : first + width], expected, first_out, site)
        assert out.same_bits(expected), (number, shape)
