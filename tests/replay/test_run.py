"""A replay from envelopes to the trace on disk, on a small random model."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.request.expected_answer import Compared, first_difference
from rip.replay.request.from_trace import golden_from_trace
from rip.replay.run import OpenedLane, Options, Result, replay
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput, ContractBroken, EngineFailed, Interrupted, OutputFailed
from rip.schemas.fingerprint import Fingerprint, Section, fact
from rip.schemas.lane import Lane
from rip.schemas.trace import HEADER_KEY, TraceHeader

PROMPT = [10, 20, 30, 40, 50]
ENVIRONMENT = Fingerprint.build(
    "0.1.0",
    "2026-07-14T09:00:00Z",
    {
        "model": Section(facts={"sha256": fact("a" * 64, "test")}),
        "frameworks": Section(facts={"torch": fact("2.13.0+cpu", "test")}),
    },
)


def envelope(
    name: str = "r0", prompt: Sequence[int] | None = PROMPT, expected: Any = None, **sampling: Any
) -> Envelope:
    """Six sampled tokens from seed 7 that no end token cuts short, unless `sampling` says otherwise."""
    asked = {"temperature": 1.0, "seed": 7, "max_tokens": 6, "ignore_eos": True, **sampling}
    raw = {"request_id": name, "prompt_token_ids": prompt and list(prompt), "sampling": asked}
    if expected is not None:
        raw["expected"] = {"token_ids": expected}
    return Envelope.from_object({key: value for key, value in raw.items() if value is not None}, "test")


class Runner:
    """Replays on one engine into numbered traces."""

    def __init__(self, engine: HfEngine, folder: Path) -> None:
        self.engine, self.folder, self.count = engine, folder, 0
        self.progress: Callable[[int, int, str], None] = lambda done, total, note: None

    def __call__(self, *envelopes: Envelope, **options: Any) -> Result:
        self.count += 1
        out = self.folder / f"{self.count}.parquet"
        chosen = Options(**{"capture": "tokens", **options})
        lane = Lane(name="default", engine="hf", model="tiny")
        return replay(envelopes, OpenedLane(self.engine, lane, ENVIRONMENT), chosen, out, self.progress)

    @property
    def last(self) -> Path:
        """The newest trace."""
        return self.folder / f"{self.count}.parquet"


@pytest.fixture
def run(tiny_model: Path, open_engine: Callable[..., HfEngine], tmp_path: Path) -> Runner:
    return Runner(open_engine(tiny_model), tmp_path)


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(result.path).to_pylist()
    return found


def tokens(result: Result) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(outcome.request_id, outcome.sample): outcome.tokens for outcome in result.outcomes}


# The trace


def test_the_trace_holds_every_position_and_says_how_it_came_about(run: Runner) -> None:
    result = run(envelope("a"), envelope("b", prompt=[3, 4]), capture="sites", load_seconds=1.5)
    found = rows(result)
    assert [(row["request_id"], row["position"]) for row in found] == [
        *(("a", position) for position in range(11)),
        *(("b", position) for position in range(8)),
    ]
    assert tuple(row["token_id"] for row in found[5:11]) == tokens(result)["a", 0]
    header = TraceHeader.from_json(pq.read_metadata(result.path).metadata[HEADER_KEY], "trace")
    assert header == result.header
    assert (header.lane.name, header.lane.engine, header.lane.model) == ("default", "hf", "tiny")
    assert (header.mode, header.capture, header.observer.state) == ("free", "sites", "equal")
    assert set(header.seconds) == {"load", "replay", "observer"}
    assert header.requests[0].envelope_sha256 == envelope("a").sha256()
    assert header.requests[0].envelope == envelope("a").to_object()
    sampling = header.requests[0].sampling
    assert (sampling["seed"].resolved, sampling["seed"].source) == (7, "envelope")
    # This model's generation_config says temperature 0.9 and top_p 0.95.
    assert (sampling["top_p"].resolved, sampling["top_p"].source) == (0.95, "generation_config")
    assert (sampling["min_p"].resolved, sampling["min_p"].source) == (0.0, "engine default")
    assert "r0" not in str(header.findings)
    assert any(
        finding == "a and 1 more: the envelope does not state these fields, so defaults applied: "
        "top_p=0.95 (generation_config); top_k=0, min_p=0.0 (engine default)"
        for finding in header.findings
    )


def test_settings_keep_what_was_recorded_resolved_and_observed(run: Runner) -> None:
    raw = envelope().to_object()
    raw["runtime"] = {"engine": "vllm", "torch_version": "2.12.0", "quantization": "pinned-quantization"}
    result = run(Envelope.from_object(raw, "test"))
    settings = result.header.lane.settings
    assert (settings["engine"].requested, settings["engine"].observed) == ("vllm", "hf")
    assert (settings["torch_version"].requested, settings["torch_version"].observed) == (
        "2.12.0",
        "2.13.0+cpu",
    )
    assert (settings["threads"].requested, settings["threads"].resolved, settings["threads"].observed) == (
        1,
        1,
        1,
    )
    assert (
        "r0: recorded with engine=vllm, torch_version=2.12.0; here hf, 2.13.0+cpu" in result.header.findings
    )


def test_the_stored_fields_explain_every_choice(run: Runner) -> None:
    run.engine.topk = 500  # more than the vocabulary: every candidate is kept
    result = run(envelope(temperature=0.7, top_k=8, top_p=1.0, max_tokens=20))
    found = rows(result)
    assert {len(row["topk_ids"]) for row in found if row["topk_ids"]} == {128}
    for row, after in pairwise(found[4:]):
        ids, logits = np.array(row["topk_ids"][:8]), np.array(row["topk_logits"][:8], np.float64)
        order = np.argsort(ids)
        weights = np.exp((logits[order] - logits.max()) / 0.7)
        cumulative = np.cumsum(weights) / weights.sum()
        chosen = ids[order][np.searchsorted(cumulative, row["sampler"]["draw"], side="right")]
        assert chosen == after["token_id"]
        assert row["sampler"]["rng_offset"] == row["position"] - 4
        assert row["sampler"]["top1_id"] == row["topk_ids"][0]


# Seeds


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(run: Runner) -> None:
    first, again, other = run(envelope()), run(envelope()), run(envelope(seed=8))
    assert tokens(first) == tokens(again)
    assert [row["logits_hash"] for row in rows(first)] == [row["logits_hash"] for row in rows(again)]
    assert tokens(first) != tokens(other)


def test_samples_differ_and_repeats_are_equal(run: Runner) -> None:
    result = run(envelope(n=3), repeat=2)
    found = tokens(result)
    assert list(found) == [("r0", sample) for sample in range(6)]
    assert [found["r0", sample] for sample in range(3)] == [found["r0", sample] for sample in range(3, 6)]
    assert len(set(found.values())) == 3
    assert found["r0", 1] == tokens(run(envelope(seed=8)))["r0", 0], "sample i runs on seed + i"


def test_the_order_of_requests_matters_only_to_a_workers_seed(run: Runner) -> None:
    for scope, moved in (("request", False), ("worker", True)):
        a, b = envelope("a", seed_scope=scope), envelope("b", seed_scope=scope)
        forwards, again, backwards = tokens(run(a, b)), tokens(run(a, b)), tokens(run(b, a))
        assert forwards == again, "a new trace is a new worker"
        assert (forwards != backwards) == moved
        assert (forwards["a", 0] == forwards["b", 0]) != moved, "equal prompts, equal seeds"


# What was expected


def test_expected_tokens_that_come_again_or_not(run: Runner) -> None:
    came = tokens(run(envelope()))["r0", 0]
    met = run(envelope(expected=came), repeat=2)
    assert met.expectations_met
    assert [outcome.expected for outcome in met.outcomes] == [Compared("tokens")] * 2
    wrong = [*came[:3], (came[3] + 1) % 128, *came[4:]]
    missed = run(envelope(expected=wrong))
    assert not missed.expectations_met
    assert missed.outcomes[0].expected.mismatch == 3
    assert missed.path.is_file()
    assert run(envelope(expected=came[:4])).outcomes[0].expected.mismatch == 4, "more than expected"
    assert run(envelope()).expectations_met, "nothing was expected"


def test_of_several_samples_only_the_first_is_expected(run: Runner) -> None:
    came = tokens(run(envelope()))["r0", 0]
    outcomes = run(envelope(n=2, expected=came), repeat=2).outcomes
    assert [outcome.expected.by for outcome in outcomes] == ["tokens", None, "tokens", None]
    assert all(outcome.expected.mismatch is None for outcome in outcomes)


def test_first_difference_of_sequences() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0


# Golden modes


@pytest.mark.parametrize("mode", ["golden-decode", "golden-prefill"])
def test_golden_tokens_are_forced_from_a_trace_with_every_sample(run: Runner, mode: str) -> None:
    free = run(envelope(n=2))
    golden = golden_from_trace(free.path), free.path
    forced = run(envelope(n=2, seed=99), mode=mode, golden=golden)
    assert tokens(forced) == tokens(free)
    assert {row["forced"] for row in rows(forced) if row["phase"] == "decode"} == {True}
    assert {row["forced"] for row in rows(forced) if row["phase"] == "prompt"} == {False}
    assert {row["forced"] for row in rows(free)} == {False}
    assert not any(outcome.expected.by for outcome in forced.outcomes)


def test_golden_tokens_are_forced_from_the_envelope(run: Runner) -> None:
    forced = run(envelope(expected=[5, 6, 7, 8], max_tokens=0), mode="golden-decode")
    assert tokens(forced)["r0", 0] == (5, 6, 7, 8)
    assert forced.outcomes[0].reason == "golden"


def test_golden_tokens_outside_the_vocabulary_are_refused(run: Runner) -> None:
    with pytest.raises(BadInput, match="token id 128 in the golden tokens is outside the vocabulary of 128"):
        run(envelope(expected=[5, 128]), mode="golden-decode")
    assert not run.last.exists()


# What cannot run


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (envelope(max_tokens=0), "r0: max_tokens is 0"),
        (envelope(prompt=[5, 999]), "r0: token id 999 in the prompt"),
        (envelope(prompt=[5] * 300), "exceed the context of 256"),
        (envelope(max_tokens=400), "exceed the context of 256"),
        (envelope(logit_bias={"300": 1.0}), "token id 300 in sampling.logit_bias"),
        (envelope(allowed_token_ids=[3, 128]), "token id 128 in sampling.allowed_token_ids"),
        (envelope(stop_token_ids=[128]), "token id 128 in sampling.stop_token_ids"),
        (envelope(logits_processors=["x"]), "logits_processors is not supported by this engine"),
        (envelope(stop="END").redacted(keep_token_ids=True), r"sampling\.stop was redacted"),
        (envelope().redacted(keep_token_ids=False), "the prompt was redacted"),
    ],
)
def test_requests_that_cannot_run_are_refused(run: Runner, bad: Envelope, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        run(envelope("fine"), bad)
    assert refused.value.fix
    assert list(run.folder.iterdir()) == []


@pytest.mark.parametrize("sampling", [{"stop": "END"}, {"bad_words": ["w9"]}])
def test_text_constraints_need_a_tokenizer_and_ids_do_not(run: Runner, sampling: dict[str, Any]) -> None:
    run.engine.tokenizer = None
    with pytest.raises(BadInput, match="needs a tokenizer, and the model folder has none"):
        run(envelope("fine"), envelope("r0", **sampling))
    result = run(envelope(stop_token_ids=[9]))
    assert run(envelope(stop="END", expected=[5]), mode="golden-decode").outcomes[0].tokens == (5,)
    assert (result.outcomes[0].text, result.header.token_text) == ("", {})


def test_a_neighbour_that_cannot_run_is_refused(run: Runner) -> None:
    with pytest.raises(BadInput, match="x: token id 999"):
        run(envelope(), neighbours=[envelope("x", prompt=[999])])


def test_a_redacted_stop_string_does_not_matter_where_tokens_are_forced(run: Runner) -> None:
    redacted = envelope(stop="END", expected=[5, 6]).redacted(keep_token_ids=True)
    assert tokens(run(redacted, mode="golden-decode"))["r0", 0] == (5, 6)


def test_another_model_stops_the_replay_unless_it_is_allowed(run: Runner) -> None:
    raw = {**envelope().to_object(), "model_artifact_sha256": "b" * 64}
    other = Envelope.from_object(raw, "test")
    with pytest.raises(ContractBroken, match="a different model"):
        run(other)
    allowed = run(other, allow_drift=True)
    assert any(finding.startswith("r0: drift allowed: ") for finding in allowed.header.findings)
    same = Envelope.from_object({**raw, "model_artifact_sha256": "a" * 64}, "test")
    assert not any("drift" in finding for finding in run(same).header.findings)


# Text, messages, tools


def test_token_ids_are_made_from_text_where_the_envelope_has_none(run: Runner) -> None:
    raw = envelope().to_object()
    del raw["prompt_token_ids"]
    result = run(Envelope.from_object({**raw, "prompt_text": "w10 w20"}, "test"))
    assert [row["token_id"] for row in rows(result)[:2]] == [10, 20]
    assert any("the prompt was tokenized here" in finding for finding in result.header.findings)


def test_messages_and_tools_go_through_the_template(
    tiny_model: Path, open_engine: Callable[..., HfEngine], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    template = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(template)
    run = Runner(open_engine(folder, sites=None), tmp_path)
    raw = envelope().to_object()
    del raw["prompt_token_ids"]
    raw["messages"] = [{"role": "user", "content": "w30"}]
    raw["tools"] = [{"type": "function", "function": {"name": "w77"}}]
    assert [row["token_id"] for row in rows(run(Envelope.from_object(raw, "test")))[:2]] == [77, 30]


def test_a_template_that_refuses_names_the_request(
    tiny_model: Path, open_engine: Callable[..., HfEngine], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    raw = {"request_id": "r7", "messages": [{"role": "user", "content": "w30"}]}
    with pytest.raises(BadInput, match="r7: the chat template refuses the messages: roles must alternate"):
        Runner(open_engine(folder, sites=None), tmp_path)(Envelope.from_object(raw, "test"))


# Neighbours


def test_neighbours_share_the_forward_pass_and_leave_no_row(run: Runner) -> None:
    for options, beside in (
        ({"fill": 3}, 3),
        ({"neighbours": [envelope("x", prompt=[9]), envelope("y", prompt=[8] * 12)]}, 2),
    ):
        found = rows(run(envelope(), **options))
        assert {row["request_id"] for row in found} == {"r0"}
        assert {row["batch_size"] for row in found if row["batch_size"]} == {1 + beside}
        assert run.count


def test_a_request_set_runs_in_batches(
    tiny_model: Path, open_engine: Callable[..., HfEngine], tmp_path: Path
) -> None:
    run = Runner(open_engine(tiny_model, sites=None, batch_size=2), tmp_path)
    found = rows(run(envelope("a"), envelope("b"), envelope("c")))
    sizes = {row["request_id"]: row["batch_size"] for row in found if row["batch_size"]}
    assert sizes == {"a": 2, "b": 2, "c": 1}


# The observer check


def test_the_observer_check_says_equal_also_for_a_workers_seed(run: Runner) -> None:
    result = run(envelope("a", seed_scope="worker"), envelope("b", seed_scope="worker"), capture="sites")
    assert result.header.observer.state == "equal"
    assert "6 rows of a, taps on and off" in result.header.observer.compared


def test_the_observer_check_stops_after_enough_rows(run: Runner) -> None:
    check = run(envelope(max_tokens=150), capture="sites").header.observer
    assert check.state == "equal"
    assert int(check.compared.split(" rows")[0].split()[-1]) < 150


@pytest.mark.parametrize("mode", ["free", "golden-prefill"])
def test_a_tap_that_changes_the_model_is_found_out(run: Runner, mode: str) -> None:
    plain = run.engine.run

    def with_a_heavy_hand(batch: Any, mode: Any, observe: bool) -> Iterator[Any]:
        if not observe:
            yield from plain(batch, mode, observe)
            return
        layer = run.engine.model.model.layers[1].mlp
        handle = layer.register_forward_hook(lambda module, inputs, output: output * 1.001)
        try:
            yield from plain(batch, mode, observe)
        finally:
            handle.remove()

    run.engine.run = with_a_heavy_hand  # type: ignore[method-assign]
    result = run(envelope(expected=[5, 6, 7]), capture="sites", mode=mode)
    assert result.header.observer.state == "changed"
    assert "is not deterministic" in str(result.header.observer.why)


def test_without_taps_there_is_nothing_to_check(run: Runner) -> None:
    assert run(envelope()).header.observer.state == "not run"


def test_a_failing_observer_check_does_not_cost_the_trace(run: Runner) -> None:
    plain = run.engine.run

    def fails_without_taps(batch: Any, mode: Any, observe: bool) -> Iterator[Any]:
        if not observe:
            raise EngineFailed("out of memory", "less")
        yield from plain(batch, mode, observe)

    run.engine.run = fails_without_taps  # type: ignore[method-assign]
    result = run(envelope(), capture="sites")
    assert (result.header.observer.state, result.path.is_file()) == ("not run", True)
    assert "out of memory" in str(result.header.observer.why)


# Kept rows


def test_kept_rows_and_positions_that_no_sequence_reaches(
    tiny_model: Path, open_engine: Callable[..., HfEngine], tmp_path: Path
) -> None:
    run = Runner(open_engine(tiny_model, sites="^norm$", keep_positions=range(6, 8)), tmp_path)
    result = run(envelope(), capture="tensors")
    assert [row["position"] for row in rows(result) if row["tensors"]] == [6, 7]
    assert len(rows(result)[6]["tensors"][0]["row"]) == 32 * 4
    assert not any("no row was kept" in sentence for sentence in result.header.not_seen)
    run.engine.keep_positions = range(900, 901)
    assert any(
        "no row was kept" in sentence for sentence in run(envelope(), capture="tensors").header.not_seen
    )


# When a run ends early


def kept_rows(run: Runner) -> int:
    parts = run.last.with_name(run.last.name + ".parts")
    return sum(pq.read_metadata(part).num_rows for part in parts.glob("*.parquet"))


def test_an_interrupted_run_keeps_what_it_has(run: Runner) -> None:
    def stop(done: int, total: int, note: str) -> None:
        if note.endswith("b") and done >= 6:
            raise KeyboardInterrupt

    run.progress = stop
    with pytest.raises(Interrupted) as stopped:
        run(envelope("a"), envelope("b"))
    assert stopped.value.exit_code == 130
    assert not run.last.exists()
    assert kept_rows(run) == 11
    assert "11 rows are kept in" in stopped.value.message
    assert "rip query" in stopped.value.fix


def test_progress_names_the_stage(run: Runner) -> None:
    stages: list[tuple[int, str]] = []
    run.progress = lambda done, total, note: stages.append((done, note))
    run(envelope("a"), capture="sites")
    assert stages[0] == (0, "prefill · a")
    assert {note for done, note in stages if done} == {
        "replaying · a",
        "observer check: the first batch with taps off",
    }


def test_an_interruption_before_the_first_row_says_so(run: Runner) -> None:
    def stop(done: int, total: int, note: str) -> None:
        raise KeyboardInterrupt

    run.progress = stop
    with pytest.raises(Interrupted, match="nothing was recorded yet"):
        run(envelope())
    assert list(run.folder.iterdir()) == []


def test_an_engine_that_dies_keeps_what_it_gave(run: Runner) -> None:
    plain = run.engine.run

    def dies(batch: Any, mode: Any, observe: bool) -> Iterator[Any]:
        if batch.sequences[0].request_id == "b":
            raise EngineFailed("the model ran out of memory", "lower batch_size")
        yield from plain(batch, mode, observe)

    run.engine.run = dies  # type: ignore[method-assign]
    with pytest.raises(EngineFailed, match="out of memory; 11 rows are kept in") as failed:
        run(envelope("a"), envelope("b"))
    assert failed.value.fix == "lower batch_size"
    assert kept_rows(run) == 11
    assert not run.last.exists()


def test_a_folder_that_vanishes_is_an_error_of_the_output(run: Runner, tmp_path: Path) -> None:
    run.folder = tmp_path / "gone"
    run.folder.mkdir()
    run.progress = lambda done, total, note: shutil.rmtree(run.folder, ignore_errors=True)
    with pytest.raises(OutputFailed, match="could not be written") as failed:
        run(envelope())
    assert failed.value.fix


# The published envelope


def test_the_published_envelope_runs_with_its_placeholders_filled_in(run: Runner) -> None:
    published = json.loads((Path(__file__).parent.parent / "golden" / "envelope-published.json").read_text())
    with pytest.raises(BadInput, match="token id 128000 in the prompt is outside the vocabulary"):
        run(Envelope.from_object(published, "published"))
    published["model_artifact_sha256"] = "a" * 64
    published["prompt_token_ids"] = [12, 28, 37]
    published["sampling"]["max_tokens"] = 250
    result = run(Envelope.from_object(published, "published"))
    assert result.outcomes[0].request_id == "req-20260714-001"
    assert 1 <= len(result.outcomes[0].tokens) <= 250
    assert tokens(run(Envelope.from_object(published, "published"))) == tokens(result)
    assert any("recorded with engine=vllm" in finding for finding in result.header.findings)
    assert not any("pinned" in finding for finding in result.header.findings)


def test_probabilities_are_those_of_the_raw_distribution(run: Runner) -> None:
    """Sampling fields shape the choice, never what is recorded about the model."""
    plain = rows(run(envelope(temperature=0)))
    shaped = rows(run(envelope(temperature=0, logit_bias={"3": -5.0}, repetition_penalty=1.3)))
    assert shaped[4]["topk_logits"] == plain[4]["topk_logits"]
    assert shaped[4]["logits_hash"] == plain[4]["logits_hash"]
    total = math.fsum(math.exp(value) for value in plain[4]["topk_logprobs"])
    assert 0 < total <= 1 + 1e-6


def test_every_sample_of_a_request_is_expected_to_come_again_where_a_seed_was_stated(run: Runner) -> None:
    first = run(envelope("a", n=3))
    answers = [list(tokens(first)["a", sample]) for sample in range(3)]
    others = [{"token_ids": answers[1]}, {"token_ids": [*answers[2][:-1], answers[2][-1] ^ 1]}]
    raw = envelope("a", n=3, expected=answers[0]).to_object()
    raw["expected"]["samples"] = others
    again = run(Envelope.from_object(raw, "test"))
    assert [outcome.expected.mismatch for outcome in again.outcomes] == [None, None, len(answers[2]) - 1]
    assert not again.expectations_met
    assert all(outcome.expected.by == "tokens" for outcome in again.outcomes)


def test_an_answer_that_nothing_fixes_is_not_expected_to_come_again(run: Runner) -> None:
    raw = envelope("a", expected=[1, 2, 3]).to_object()
    del raw["sampling"]["seed"]
    result = run(Envelope.from_object(raw, "test"))
    assert result.expectations_met
    assert result.outcomes[0].expected == Compared()
    assert any("without a seed" in sentence for sentence in result.header.findings)
    assert "not-repeatable" in [found.kind for found in result.header.findings_data]


def test_where_no_limit_was_stated_as_many_tokens_come_as_were_recorded(run: Runner) -> None:
    raw = envelope("a", expected=list(range(10, 33))).to_object()
    del raw["sampling"]["max_tokens"]
    result = run(Envelope.from_object(raw, "test"))
    assert len(result.outcomes[0].tokens) == 23
    limit = result.header.requests[0].sampling["max_tokens"]
    assert (limit.resolved, limit.source) == (23, "length of the recorded answer")
