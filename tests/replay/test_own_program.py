"""`rip.tap`: a program with its own loop leaves a trace that shows every row, and runs as without it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rip
import torch
from fakes.command_line import Rip
from fakes.own_programs import DOCS, EXAMPLE, PROMPT, Trace, example, generate, plainly
from fakes.plain_hooks import reference_hash
from torch import nn


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(monkeypatch, capsys):
    return Rip(monkeypatch, capsys)


# What a trace holds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ids", [[PROMPT], [PROMPT, [1, 2, 3, 4, 5], [60, 50, 40, 30, 20]]])
def test_every_row_of_a_cached_loop_is_the_row_that_its_module_returned(dtype, ids):
    everything = generate(example.make_model(dtype), "t.parquet", ids)
    trace = Trace("t.parquet")
    passes = [ids, *([[row[5 + step]] for row in everything] for step in range(5))]
    seen = plainly(example.make_model(dtype), passes)
    assert len(trace.labels()) == 3 + 3 * 7 + 1
    for row, tokens in enumerate(everything):
        request = f"request/{row}" if len(ids) > 1 else "request"
        assert trace.tokens(request) == tokens
        for position in range(10):
            at, column = (0, position) if position < 5 else (position - 4, 0)
            for label in trace.labels():
                output = seen[at, label.replace("layers.", "blocks.")]
                own = output[column] if label == "place" else output[row, column]
                assert trace.hash(position, label, request) == reference_hash(own), (position, label)
        assert set(trace.rows[request, 0, 10]["site_hash"]) == {None}  # chosen, never fed
    assert trace.header.sites[0].dtype == str(dtype).removeprefix("torch.")


def test_rows_carry_steps_the_passes_shape_and_the_distribution():
    everything = generate(example.make_model(), "t.parquet", topk=3)
    trace = Trace("t.parquet")
    rows = [trace.rows["request", 0, position] for position in range(11)]
    assert [row["step"] for row in rows] == [None] * 5 + list(range(6))
    shapes = [
        (row["num_tokens"], row["cached_tokens"], row["batch_size"], row["padded_tokens"]) for row in rows
    ]
    assert shapes == [(5, 0, 1, 0)] * 5 + [(1, 5 + step, 1, 0) for step in range(5)] + [(None,) * 4]
    logits = plainly(example.make_model(), [[everything[0][:10]]])[0, ""][0]
    for position in range(10):
        assert len(rows[position]["topk_ids"]) == 3
        if position >= 4:
            assert rows[position]["topk_ids"][0] == everything[0][position + 1]
        assert rows[position]["topk_logits"][0] == pytest.approx(logits[position].max().item(), rel=1e-4)
        expected = logits[position].log_softmax(-1)[everything[0][position + 1]].item()
        assert rows[position]["next_logprob"] == pytest.approx(expected, rel=1e-4)
    assert rows[10]["topk_ids"] is None


def test_the_header_says_what_ran_and_that_it_was_not_repeated():
    generate(example.make_model(torch.bfloat16), "t.parquet", lane="mine", request_id="r", prompt=PROMPT)
    header = Trace("t.parquet").header
    assert (header.lane.engine, header.lane.model, header.lane.name) == ("own", "TinyGPT", "mine")
    assert header.lane.settings["dtype"].observed == "bfloat16"
    assert header.lane.settings["training"].observed == "false"
    assert header.observer.state == "not run"
    assert "own loop" in header.observer.why
    assert header.requests[0].envelope["prompt_token_ids"] == PROMPT
    assert not header.not_seen


def test_many_steps_are_handed_over_in_blocks_without_a_gap():
    everything = generate(example.make_model(), "t.parquet", steps=150)
    trace = Trace("t.parquet")
    assert trace.tokens() == everything[0]
    seen = plainly(
        example.make_model(), [[everything[0][:5]], *([[token]] for token in everything[0][5:154])]
    )
    for position in (5, 67, 68, 69, 132, 153):
        assert trace.hash(position, "norm") == reference_hash(seen[position - 4, "norm"][0, 0])


# What it leaves alone


def test_the_program_computes_what_it_computes_without_taps():
    def loop(model):
        tokens, found = torch.tensor([PROMPT]), []
        for _ in range(6):
            found.append(model(tokens))
            tokens = found[-1][:, -1:].argmax(-1)
        return torch.cat(found, 1)

    with torch.no_grad():
        plain = loop(example.make_model())
        model = example.make_model()
        with rip.tap(model, "t.parquet"):
            tapped = loop(model)
    assert torch.equal(plain, tapped)
    assert all(module._compiled_call_impl is None for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Trained(nn.Module):
    """What training makes delicate: an operation in place on a module's output, dropout, a loss inside."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(64, 16), nn.Linear(16, 32), nn.Linear(32, 64)
        self.relu, self.drop, self.loss = nn.ReLU(inplace=True), nn.Dropout(0.2), nn.CrossEntropyLoss()

    def forward(self, ids, targets):
        logits = self.head(self.drop(self.relu(self.up(self.embed(ids)))))
        return logits, self.loss(logits.flatten(0, 1), targets.flatten())


def test_a_training_loop_has_the_same_gradients_and_weights():
    def train(tap=None, model=None):
        torch.manual_seed(1)
        model = model or Trained()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = torch.randint(0, 64, (3, 4, 10), generator=torch.Generator().manual_seed(2))
        for step, batch in enumerate(batches):
            if tap is not None:
                tap.request(f"step-{step}")
            logits, loss = model(batch[:, :-1], batch[:, 1:])
            if tap is not None:
                tap.logits(logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [*(parameter.grad for parameter in model.parameters()), *model.parameters()]

    torch.manual_seed(1)
    plain = train(model=Trained())
    torch.manual_seed(1)
    model = Trained()
    with rip.tap(model, "t.parquet") as tap:
        tapped = train(tap, model)
    assert all(map(torch.equal, plain, tapped))
    trace = Trace("t.parquet")
    assert len(trace.rows) == 3 * 4 * 9
    assert trace.hash(3, "up", "step-0/2") != trace.hash(3, "up", "step-1/2")
    assert trace.header.lane.settings["training"].observed == "true"
    assert "loss" in trace.header.not_seen[0]
    # As it was returned, before relu wrote into it: the two outputs are one tensor.
    assert trace.hash(3, "up", "step-2/1") != trace.hash(3, "relu", "step-2/1")


# Requests


def test_one_request_after_another_and_samples_of_one():
    model = example.make_model()
    with torch.no_grad(), rip.tap(model, "t.parquet", request_id="a") as tap:
        for name, ids in (("a", [1, 2, 3]), ("b", [4, 5]), ("a", [1, 2, 3]), ("a", [1, 2, 3])):
            model.reset()
            tap.request(name)
            tap.logits(model(torch.tensor([ids])))
    trace = Trace("t.parquet")
    assert trace.tokens("b") == [4, 5]
    assert trace.hash(2, "norm", "a", 0) == trace.hash(2, "norm", "a", 2)
    assert [request.request_id for request in trace.header.requests] == ["a", "b"]


def test_a_prompt_that_is_fed_in_chunks_is_named():
    model = example.make_model()
    with torch.no_grad(), rip.tap(model, "t.parquet", prompt=PROMPT):
        for ids in ([PROMPT[:2]], [PROMPT[2:]], [[1]]):
            model(torch.tensor(ids))
    trace = Trace("t.parquet")
    assert [trace.rows["request", 0, at]["step"] for at in range(6)] == [None] * 5 + [0]


# Through the command line


def test_the_same_loop_twice_is_equal_and_one_nudged_weight_is_found(command):
    for out, words in (("a", []), ("b", []), ("c", ["--nudge", "blocks.1.up"])):
        subprocess.run([sys.executable, EXAMPLE, f"{out}.parquet", *words], check=True, capture_output=True)
    same = command("diverge", "a.parquet", "b.parquet", "-o", "ab", "--json")
    assert same.code == 0
    verdict = json.loads(same.out)
    assert verdict["level"] == "bitwise"
    assert verdict["compared"]["rows"] == 24 * 25
    other = json.loads(command("diverge", "a.parquet", "c.parquet", "-o", "ac", "--json").out)
    assert other["level"] != "bitwise"
    nudged = example.make_model()
    example.nudge(nudged, "blocks.1.up")
    plain, moved = (plainly(model, [[PROMPT]])[0, "blocks.1.up"] for model in (example.make_model(), nudged))
    first = (plain != moved).any(-1)[0].int().argmax().item()
    assert (other["first_site"]["site"], other["first_site"]["position"]) == ("layers.1.up", first)
    assert other["first_site"]["is_origin"]
    assert command("query", "a.parquet", "SELECT count(*) FROM tokens").code == 0


def test_what_is_to_be_tried_next_is_no_command_that_rip_cannot_run(command):
    for out, words in (("a", []), ("c", ["--nudge", "blocks.1.up"])):
        subprocess.run([sys.executable, EXAMPLE, f"{out}.parquet", *words], check=True, capture_output=True)
    said = command("diverge", "a.parquet", "c.parquet", "-o", "ac")
    assert "rip diverge a.parquet again.parquet" in said.out
    assert "rip replay" not in said.out + said.err


def test_a_fingerprint_travels_with_the_trace(command):
    assert command("fingerprint", "-o", "env.json").code == 0
    for out in ("a", "b"):
        generate(example.make_model(), f"{out}.parquet", fingerprint="env.json")
    assert Trace("a.parquet").header.fingerprint.root_digest
    done = command("diverge", "a.parquet", "b.parquet", "-o", "ab")
    assert done.code == 0
    assert "no fingerprint" not in done.err


# Beside the hf engine, and in the documents


def test_a_loop_of_ones_own_over_a_transformers_model_is_row_for_row_the_replay(tiny_model, command):
    from transformers import AutoModelForCausalLM

    Path("r.json").write_text(
        json.dumps(
            {
                "request_id": "r",
                "prompt_token_ids": [10, 20, 30, 40],
                "sampling": {"temperature": 0, "max_tokens": 6, "ignore_eos": True},
            }
        )
    )
    assert (
        command("replay", "r.json", "--model", tiny_model, "--set", "threads=1", "-o", "hf.parquet").code == 0
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        tokens, cache = torch.tensor([[10, 20, 30, 40]]), None
        with torch.no_grad(), rip.tap(model, "own.parquet", request_id="r") as tap:
            for _ in range(6):
                answer = model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
                tap.logits(answer.logits)
                tokens, cache = answer.logits[:, -1:].argmax(-1), answer.past_key_values
            tap.last(tokens)
    finally:
        torch.set_num_threads(threads)
    done = command("diverge", "hf.parquet", "own.parquet", "-o", "d", "--json")
    verdict = json.loads(done.out)
    assert verdict["level"] == "bitwise", verdict["first_site"]
    assert verdict["compared"]["rows"] == 9 * len(Trace("own.parquet").labels())


def test_the_documents_code_runs_as_it_stands(command):
    text = (DOCS / "own-programs.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert len(blocks) == 2
    for index, block in enumerate(blocks):
        names = {"model": example.make_model(), "prompt_ids": torch.tensor([PROMPT])}
        exec(compile(block, f"own-programs.md block {index}", "exec"), names)
        if "low.parquet" in block:
            assert Trace("low.parquet").tokens("req-1") == PROMPT
    generate(example.make_model(), "own.parquet", request_id="req-1")
    done = command("diverge", "low.parquet", "own.parquet", "-o", "d", "--json")
    assert json.loads(done.out)["compared"]["rows_differing"] == 0
