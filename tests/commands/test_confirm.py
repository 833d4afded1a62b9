"""`rip confirm` as a user meets it: what it proves, what it refutes, and what it leaves open."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import Done, Rip
from rip.diverge.result_folder import read_verdict
from rip.experiments.confirming import decide, runs
from rip.experiments.zoom import save_verdict
from rip.schemas.errors import ErrorReport
from rip.schemas.findings.experiments import BeyondRounding, Limit, NotAsAsked, RunCompared, RunFailed
from rip.schemas.verdict import Cause, Verdict

THREADS = ("--set", "threads=1")


@dataclass
class Desk:
    """A folder with requests and a model; replays run in this process, so that what they compute is fixed."""

    rip: Rip
    folder: Path

    def replay(self, out: str, *arguments: str | Path, model: str = "m") -> None:
        done = self.rip("replay", "s.jsonl", "--model", model, *THREADS, "-o", f"{out}.parquet", *arguments)
        assert done.code == 0, done.err

    def diverge(self, a: str, b: str) -> Verdict:
        self.rip("diverge", f"{a}.parquet", f"{b}.parquet", "-o", "result", "--force")
        return self.verdict

    def confirm(self, *arguments: str) -> Done:
        return self.rip("confirm", "result", *arguments)

    @property
    def verdict(self) -> Verdict:
        return read_verdict(self.folder / "result")

    def cause(self, name: str) -> Cause:
        return next(cause for cause in self.verdict.causes if cause.id == name)

    def number(self, name: str) -> str:
        return str([cause.id for cause in self.verdict.causes].index(name) + 1)


@pytest.fixture
def desk(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tiny_model, tmp_path / "m")
    request = {"sampling": {"temperature": 0, "max_tokens": 4, "ignore_eos": True}}
    prompts = {"r0": [10, 20, 30, 40], "r1": [11, 21]}
    lines = [
        json.dumps({"request_id": name, "prompt_token_ids": ids, **request}) for name, ids in prompts.items()
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(lines) + "\n")
    desk = Desk(Rip(monkeypatch, capsys), tmp_path)

    def in_this_process(arguments: list[str], *_: object) -> ErrorReport | None:
        said = capsys.readouterr()
        done = desk.rip(*arguments)
        print(said.err, end="", file=sys.stderr)
        return None if done.code in (0, 1, 3) else ErrorReport("failed", done.err, "", disk_full=False)

    monkeypatch.setattr(runs, "run_isolated", in_this_process)
    return desk


def change_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name] * 1.25
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def compared(found: Any) -> list[tuple[str, str, bool]]:
    return [(one.run, one.against, one.equal) for one in found.evidence if isinstance(one, RunCompared)]


def test_a_changed_weight_is_proven_and_the_reports_say_so(desk: Desk) -> None:
    shutil.copytree(desk.folder / "m", desk.folder / "m2")
    change_weight(desk.folder / "m2")
    desk.replay("a")
    desk.replay("b", model="m2")
    assert desk.diverge("a", "b").causes[0].id == "weights"
    done = desk.confirm()
    assert done.code == 0
    assert "2 runs of B's requests, about " in done.err
    assert "Ctrl-C" in done.err
    decided = desk.cause("weights").confirmation
    assert decided is not None
    assert decided.state == "confirmed"
    assert compared(decided) == [("unchanged", "B", True), ("changed", "A", True)]
    assert [one.value for one in decided.undoes] == ["m"]
    assert (desk.folder / "result.confirm" / decided.traces[0]).is_file()
    for name in ("report.md", "report.html"):
        assert desk.rip("report", "result", "-o", name).code == 0
        assert "proven by experiment" in (desk.folder / name).read_text()


def test_of_two_changes_in_a_model_folder_only_the_causes_is_undone(desk: Desk) -> None:
    shutil.copytree(desk.folder / "m", desk.folder / "m2")
    change_weight(desk.folder / "m2")
    template = desk.folder / "m2" / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    tokenizer = desk.folder / "m2" / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    desk.replay("a")
    desk.replay("b", model="m2")
    desk.diverge("a", "b")
    assert desk.confirm(desk.number("weights")).code == 0
    decided = desk.cause("weights").confirmation
    assert decided is not None
    assert [(one.of, one.name) for one in decided.undoes] == [("model", "weights")]
    mixed = Path(decided.undoes[0].value)
    assert (mixed / "model.safetensors").resolve() == desk.folder / "m" / "model.safetensors"
    assert (mixed / "chat_template.jinja").resolve() == template


def test_a_template_and_a_default_of_one_folder_are_proven_one_by_one(desk: Desk) -> None:
    """Undoing the template leaves B's generation_config.json, and the other way round."""
    shutil.copytree("m", "m2")
    template = Path("m2/chat_template.jinja")
    template.write_text(template.read_text().replace("{{ message", "{{ ' ' }}{{ message", 1))
    defaults = Path("m2/generation_config.json")
    stated = json.loads(defaults.read_text())
    defaults.write_text(json.dumps({**stated, "repetition_penalty": 1e6}))
    chat = {
        "messages": [{"role": "user", "content": "Hello"}],
        "sampling": {"temperature": 0, "max_tokens": 4},
    }
    Path("s.jsonl").write_text(json.dumps({"request_id": "r0", **chat}) + "\n")
    desk.replay("a")
    desk.replay("b", "--allow-drift", model="m2")
    assert [cause.id for cause in desk.diverge("a", "b").causes] == ["prompt", "sampling-contract"]
    assert desk.confirm("--all").code == 0
    template_cause = desk.cause("prompt").confirmation
    assert template_cause is not None
    assert template_cause.state == "confirmed"
    assert [(one.of, one.name) for one in template_cause.undoes] == [("model", "tokenizer")]
    assert not any(
        one.equal for one in template_cause.evidence if isinstance(one, RunCompared) and one.against == "A"
    )
    together = desk.verdict.together
    assert together is not None
    assert together.state == "confirmed"
    default = desk.cause("sampling-contract").confirmation
    assert default is not None
    assert default.state == "confirmed", "with only this one left, B still differs from A"


def test_a_stated_sampling_field_is_undone_by_its_option(desk: Desk) -> None:
    desk.replay("a")
    desk.replay("b", "--sampling", "temperature=1.9", "--sampling", "seed=3")
    assert desk.diverge("a", "b").causes[0].id == "sampling-contract"
    assert desk.confirm().code == 0
    decided = desk.cause("sampling-contract").confirmation
    assert decided is not None
    assert {one.name: (one.was, one.value) for one in decided.undoes} == {
        "temperature": (1.9, 0.0),
        "seed": (3, 0),
    }


def test_what_changes_nothing_is_refuted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(desk.folder / "m", desk.folder / "m2")
    change_weight(desk.folder / "m2")
    desk.replay("a", "--set", "prefill_chunk=0")
    desk.replay("b", "--set", "deterministic=true", model="m2")
    desk.diverge("a", "b")
    number = desk.number("kernel")
    assert desk.confirm(number).code == 1
    decided = desk.cause("kernel").confirmation
    assert decided is not None
    assert decided.state == "refuted"
    assert compared(decided)[-1] == ("changed", "B", True)


def test_two_causes_are_undone_one_at_a_time_and_then_together(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_batch_effect(monkeypatch)
    shutil.copytree(desk.folder / "m", desk.folder / "m2")
    change_weight(desk.folder / "m2")
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2", model="m2")
    desk.diverge("a", "b")
    assert desk.confirm("--all").code == 0
    verdict = desk.verdict
    assert verdict.together is not None
    assert verdict.together.state == "confirmed"
    states = {cause.id: cause.confirmation and cause.confirmation.state for cause in verdict.causes}
    assert states["weights"] == "confirmed"
    assert states["batch-shape"] == "confirmed"
    one_left = [run for run, _, _ in compared(desk.cause("batch-shape").confirmation)]
    other_left = [run for run, _, _ in compared(desk.cause("weights").confirmation)]
    assert "the others undone" in one_left + other_left


def plant_batch_effect(monkeypatch: pytest.MonkeyPatch, size: float = 1e-6, noise: bool = False) -> None:
    """A matrix product gives something else where more than one sequence shares the pass, or ever."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.forward
    calls = iter(range(1, 1_000_000))

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        found = plain(self, x)
        if noise:
            return found * (1 + size * next(calls))
        return found * (1 + size) if x.shape[0] > 1 else found

    monkeypatch.setattr(LlamaMLP, "forward", forward)


def test_a_drift_beyond_rounding_proves_no_rounding(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_batch_effect(monkeypatch, size=0.5)
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2")
    desk.diverge("a", "b")
    assert desk.confirm(desk.number("batch-shape")).code == 0
    decided = desk.cause("batch-shape").confirmation
    assert decided is not None
    assert any(isinstance(one, BeyondRounding) for one in decided.evidence)


def test_a_lane_that_does_not_repeat_itself_decides_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_batch_effect(monkeypatch, noise=True)
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2")
    desk.diverge("a", "b")
    assert desk.confirm(desk.number("batch-shape")).code == 3
    decided = desk.cause("batch-shape").confirmation
    assert decided is not None
    assert decided.state == "not decided"
    assert Limit(what="not repeated").what in [one.what for one in decided.evidence if isinstance(one, Limit)]


def test_a_setting_that_did_not_take_decides_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_batch_effect(monkeypatch)
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2")
    desk.diverge("a", "b")
    left_out = decide.not_as_asked
    monkeypatch.setattr(
        decide,
        "not_as_asked",
        lambda undoes, *headers: left_out([one.model_copy(update={"value": 7}) for one in undoes], *headers),
    )
    assert desk.confirm(desk.number("batch-shape")).code == 3
    decided = desk.cause("batch-shape").confirmation
    assert decided is not None
    assert any(isinstance(one, NotAsAsked) for one in decided.evidence)


def test_an_interruption_keeps_finished_runs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_batch_effect(monkeypatch)
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2")
    desk.diverge("a", "b")
    number, run = desk.number("batch-shape"), runs.run_isolated
    made: list[str] = []

    def interrupted(arguments: list[str], *rest: Any) -> ErrorReport | None:
        if made:
            raise KeyboardInterrupt
        made.append("control")
        return run(arguments, *rest)

    monkeypatch.setattr(runs, "run_isolated", interrupted)
    assert desk.confirm(number).code == 130
    assert desk.cause("batch-shape").confirmation is None
    counted: list[str] = []

    def second(arguments: list[str], *rest: Any) -> ErrorReport | None:
        counted.append(arguments[1])
        return run(arguments, *rest)

    monkeypatch.setattr(runs, "run_isolated", second)
    done = desk.confirm(number)
    assert done.code == 0
    assert "1 run of B's requests" in done.err
    assert len(counted) == 1
    assert desk.confirm(number).code == 0
    assert len(counted) == 1  # and not at all a third time


def test_a_run_that_fails_is_evidence(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.replay("a")
    desk.replay("b", "--sampling", "temperature=1.9", "--sampling", "seed=3")
    desk.diverge("a", "b")
    shutil.rmtree(desk.folder / "m")
    assert desk.confirm().code == 3
    decided = desk.cause("sampling-contract").confirmation
    assert decided is not None
    assert [type(one) for one in decided.evidence] == [RunFailed]


@pytest.mark.parametrize(
    ("how", "arguments", "message"),
    [
        ("equal", (), "names no cause"),
        ("differs", ("9",), "has no cause 9"),
        ("gone", (), "is not there"),
    ],
)
def test_what_cannot_be_confirmed_is_said(
    desk: Desk, how: str, arguments: tuple[str, ...], message: str
) -> None:
    desk.replay("a")
    desk.replay("b", *(() if how == "equal" else ("--sampling", "temperature=1.9", "--sampling", "seed=3")))
    desk.diverge("a", "b")
    if how == "gone":
        (desk.folder / "a.parquet").unlink()
    done = desk.confirm(*arguments)
    assert done.code == 2
    assert message in done.err
    assert "fix: " in done.err


def test_one_experiment_proves_one_cause(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two causes that the same run would undo cannot be told apart: the first one is decided."""
    plant_batch_effect(monkeypatch)
    desk.replay("a")
    desk.replay("b", "--set", "batch_size=2")
    desk.diverge("a", "b")
    first = desk.cause("batch-shape")
    padding = first.model_copy(update={"id": "padding"})
    save_verdict(desk.verdict.model_copy(update={"causes": [first, padding]}), desk.folder / "result")
    assert desk.confirm("--all").code == 0
    states = [cause.confirmation and cause.confirmation.state for cause in desk.verdict.causes]
    assert states == ["confirmed", "not decided"]
