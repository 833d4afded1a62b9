"""Rounding or regression: real bfloat16 runs of a small model beside a float32 and a float64 reference."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fakes.batch_kernels import sum_by_batch
from fakes.command_line import Rip
from fakes.models import VOCAB, save_tiny_model
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from fakes.verdicts import sentences, typed
from rip.diverge.compare import Context, diverge
from rip.diverge.reference import paired_shift
from rip.diverge.views.open_views import open_views
from rip.diverge.views.query import run
from rip.replay.engines.base import Opening
from rip.replay.engines.hf.engine import HfEngine
from rip.replay.request.resolve_request import Golden
from rip.replay.run import OpenedLane, Options, replay
from rip.schemas.envelope import Envelope, Runtime
from rip.schemas.fingerprint import Fingerprint, Section, fact
from rip.schemas.lane import Lane
from rip.schemas.reference import Reference
from rip.schemas.verdict import Verdict
from safetensors.torch import load_file, save_file

FAULTY = "layers.1.mlp.gate_proj"
NAMES = [f"r{index}" for index in range(6)]


class Lab:
    """Runs of one small bfloat16 Llama, by name; each is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = {"good": save_tiny_model("llama-bf16", folder / "good")}
        faulty = self.models["faulty"] = folder / "faulty"
        shutil.copytree(self.models["good"], faulty)
        weights = load_file(faulty / "model.safetensors")
        name = f"model.{FAULTY}.weight"
        noise = torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(0))
        weights[name] = (weights[name].float() * (1 + 0.1 * noise)).to(torch.bfloat16)
        save_file(weights, faulty / "model.safetensors", metadata={"format": "pt"})
        random = np.random.default_rng(1)
        self.envelopes = [
            Envelope.from_object(
                {
                    "request_id": name,
                    "prompt_token_ids": random.integers(6, VOCAB, 10 + index).tolist(),
                    "sampling": {"temperature": 0, "max_tokens": 14, "ignore_eos": True},
                },
                "test",
            )
            for index, name in enumerate(NAMES)
        ]

    def __call__(
        self,
        model: str,
        golden: str | None = None,
        requests: int = len(NAMES),
        with_sites: bool = True,
        **given: Any,
    ) -> Path:
        said = "-".join(f"{name}={value}" for name, value in given.items())
        path = self.folder / f"{model}-{golden}-{requests}-{with_sites}-{said}.parquet"
        if path.exists():
            return path
        opening = Opening(
            Runtime(),
            5,
            re.compile("") if with_sites else None,
            model=self.models[model],
            model_sha256="0" * 64,
            settings={"threads": 1, **given},
        )
        options = Options()
        if golden is not None:
            source = self(golden)
            options = Options(mode="golden-decode", golden=(tokens_of(source), source))
        environment = Fingerprint.build(
            "0.1.0", "2026-07-14T09:00:00Z", {"model": Section(facts={"sha256": fact(model, "test")})}
        )
        with pytest.MonkeyPatch.context() as patch, closing(HfEngine(opening)) as engine:
            if "batch_size" in given:  # some kernels give the same bits alone and in a batch
                sum_by_batch(patch, dtype=torch.float16)
            lane = Lane(name="default", engine="hf", model=model)
            replay(
                self.envelopes[:requests],
                OpenedLane(engine, lane, environment),
                options,
                path,
                lambda *_: None,
            )
        return path

    def reference(self, dtype: str = "float32") -> Path:
        return self("good", golden="good", dtype=dtype)


def tokens_of(trace: Path) -> Golden:
    found: dict[tuple[str, int], list[int]] = {}
    for row in pq.read_table(trace, columns=["request_id", "sample", "step", "token_id"]).to_pylist():
        if row["step"] is not None:
            found.setdefault((row["request_id"], row["sample"]), []).append(row["token_id"])
    return {key: tuple(tokens) for key, tokens in found.items()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("reference")
    (folder / "good").mkdir()
    return Lab(folder)


def judged(tmp_path: Path, a: Path, b: Path, reference: Path, *noise: Path) -> Reference:
    found = diverge(a, b, tmp_path / "out", Context(reference=reference, noise=noise), force=True).reference
    assert found is not None
    return found


def rows_of(folder: Path, sql: str) -> list[dict[str, Any]]:
    with open_views(folder) as views:
        rows = run(views, sql)
        return pa.Table.from_batches(list(rows.batches), schema=rows.schema).to_pylist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_batch_is_as_far_as_the_dtype_explains(lab: Lab, tmp_path: Path, dtype: str) -> None:
    found = judged(tmp_path, lab("good"), lab("good", batch_size=3), lab.reference(dtype))
    assert found.verdict == "as far as the dtype explains"
    assert (found.first, found.sites_farther, found.expected_ratio) == (None, 0, 1.0)
    assert (found.dtype_a, found.dtype_b, found.dtype_reference) == ("bfloat16", "bfloat16", dtype)
    # The control: the runs do differ, and the reference is not A itself.
    rows = rows_of(
        tmp_path / "out", "SELECT max(distance_a_p50) AS far FROM reference_sites WHERE label <> 'logits'"
    )
    assert 1e-3 < rows[0]["far"] < 0.1
    assert rows_of(tmp_path / "out", "SELECT count(*) AS n FROM sites")[0]["n"] > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wrong_weights_are_farther_from_their_module_on(lab: Lab, tmp_path: Path, dtype: str) -> None:
    found = judged(tmp_path, lab("good"), lab("faulty"), lab.reference(dtype))
    assert found.verdict == "B is farther"
    assert found.first is not None
    assert (found.first.site, found.first.position) == (FAULTY, 0)
    assert found.first.low > 3
    assert found.separated
    assert f"from {FAULTY} on" in found.sentence
    rows = rows_of(tmp_path / "out", "SELECT label, farther FROM reference_sites ORDER BY site")
    before = [row["farther"] for row in rows[: [row["label"] for row in rows].index(FAULTY)]]
    assert set(before) == {None}


def test_with_the_sides_swapped_a_is_farther(lab: Lab, tmp_path: Path) -> None:
    found = judged(tmp_path, lab("faulty"), lab("good"), lab.reference())
    assert found.verdict == "A is farther"
    assert found.first is not None
    assert found.first.site == FAULTY
    assert found.first.high < 1 / 3


def test_a_regression_is_a_cause_and_rounding_is_none(lab: Lab, tmp_path: Path) -> None:
    verdict = diverge(lab("good"), lab("faulty"), tmp_path / "out", Context(reference=lab.reference()))
    cause = next(cause for cause in verdict.causes if cause.id == "beyond-rounding")
    assert cause.confidence == "high"
    assert any("--noise" in line for line in sentences(cause.missing))
    words = shlex.split(typed(cause).split("; ")[1])
    assert words[:2] == ["rip", "diverge"]
    assert words[-2] == "--reference"
    rounding = diverge(
        lab("good"), lab("good", batch_size=3), tmp_path / "two", Context(reference=lab.reference())
    )
    assert "beyond-rounding" not in [cause.id for cause in rounding.causes]


def test_without_a_reference_a_cause_says_that_it_is_missing(lab: Lab, tmp_path: Path) -> None:
    lines = []
    for name, reference in (("none", None), ("one", lab.reference())):
        a, b = (sequence(1, 12, prompt=6, decode=8) for _ in "ab")
        disturb(b, 0, 3)
        paths = [
            write_trace(tmp_path / f"{side}.parquet", [one], header(llama_sites(2)))
            for side, one in (("a", a), ("b", b))
        ]
        verdict = diverge(paths[0], paths[1], tmp_path / name, Context(reference=reference))
        missing = [one for cause in verdict.causes for one in cause.missing]
        lines.append([one for one in missing if one.kind == "reference"])
    assert lines[0]
    assert lines[1] == lines[0]  # another model's reference judges nothing


def test_a_noisy_lane_widens_what_is_explained(lab: Lab, tmp_path: Path) -> None:
    a, b, reference = lab("good"), lab("faulty"), lab.reference()
    quiet = judged(tmp_path, a, b, reference, a, lab("good", batch_size=3))
    assert quiet.verdict == "B is farther"
    assert "1 of 2 repeats" in sentences(quiet.notes)[0]
    # As if the lane were known to be as far as B by itself: then B's distance is no news.
    noisy = judged(tmp_path, a, b, reference, b)
    assert noisy.verdict == "as far as the dtype explains"


def test_other_dtypes_are_told_with_what_they_let_expect(lab: Lab, tmp_path: Path) -> None:
    single = lab("good", golden="good", dtype="float32")
    found = judged(tmp_path, single, lab("good"), lab.reference("float64"))
    assert found.verdict == "as far as the dtype explains"
    assert found.expected_ratio == 2.0**16
    assert found.output is not None
    assert 2.0**12 < found.output.ratio < 2.0**16
    assert "×65,536" in found.sentence
    # The control: what two dtypes explain is more than what one does.
    faulty = judged(
        tmp_path, lab("good"), lab("faulty", golden="good", dtype="float32"), lab.reference("float64")
    )
    assert faulty.verdict == "B is farther"


def test_a_reference_that_cannot_judge_says_why(lab: Lab, tmp_path: Path) -> None:
    a, b = lab("good"), lab("good", batch_size=3)
    coarse = judged(tmp_path, a, b, lab("good", golden="good"))
    assert coarse.verdict == "not judged"
    assert "no finer than A's bfloat16" in coarse.sentence
    assert coarse.sentence.endswith("make one with --set dtype=float32.")  # all that bfloat16 needs
    assert not any(note.kind == "few sequences" for note in coarse.notes)  # nothing was judged by them
    single = lab("good", golden="good", dtype="float32")
    assert "--set dtype=float64" in judged(tmp_path, single, b, lab.reference()).sentence
    foreign = judged(tmp_path, a, b, lab("faulty", golden="good", dtype="float32"))
    assert foreign.verdict == "not judged"
    assert "a different model" in foreign.sentence
    other = write_trace(tmp_path / "other.parquet", [sequence(3, 2)], header(llama_sites(0)))
    nothing = judged(tmp_path, a, b, other)
    assert "none of the compared tokens" in nothing.sentence
    elsewhere = [sequence(3, 2, request_id="another")]
    other = write_trace(tmp_path / "another.parquet", elsewhere, header(llama_sites(0), ["another"]))
    nothing = judged(tmp_path, a, b, other)
    assert "of different requests: A has r0" in nothing.sentence
    assert "the reference another; replay A's requests" in nothing.sentence
    assert rows_of(tmp_path / "out", "SELECT * FROM reference_sites") == []


def test_a_reference_without_sites_judges_by_the_logits(lab: Lab, tmp_path: Path) -> None:
    reference = lab("good", golden="good", with_sites=False, dtype="float32")
    rounding = judged(tmp_path, lab("good"), lab("good", batch_size=3), reference)
    assert rounding.verdict == "as far as the dtype explains"
    assert (rounding.sites, rounding.dtype_reference) == (1, "float32")
    assert judged(tmp_path, lab("good"), lab("faulty"), reference).verdict == "B is farther"


def test_too_few_rows_are_not_judged(lab: Lab, tmp_path: Path) -> None:
    a, b = (
        write_trace(
            tmp_path / f"{side}.parquet", [sequence(1, 2, prompt=2, decode=3)], header(llama_sites(0))
        )
        for side in "ab"
    )
    fine = header([site.model_copy(update={"dtype": "float32"}) for site in llama_sites(0)])
    found = judged(
        tmp_path, a, b, write_trace(tmp_path / "r.parquet", [sequence(1, 2, prompt=2, decode=3)], fine)
    )
    assert found.verdict == "not judged"
    assert "are needed" in found.sentence


def test_the_command_line_shows_it_and_refuses_noise_alone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rip = Rip(monkeypatch, capsys)
    a, b = lab("good"), lab("faulty")
    done = rip(
        "diverge",
        a,
        b,
        "--reference",
        lab.reference(),
        "--noise",
        a,
        "-o",
        tmp_path / "out",
        "--json",
        "--verbose",
    )
    assert "Against the reference" in done.err
    assert f"from {FAULTY} on" in done.err
    said = Verdict.from_json(done.out, "out").reference
    assert said is not None
    assert said.verdict == "B is farther"
    refused = rip("diverge", a, b, "--noise", a, "-o", tmp_path / "two")
    assert refused.code == 2
    assert "--reference" in refused.err


# The statistics against plain loops and against chance


def test_distances_equal_a_plain_computation(lab: Lab, tmp_path: Path) -> None:
    a, reference = lab("good"), lab.reference()
    judged(tmp_path, a, lab("good", golden="good", batch_size=3), reference)
    found = rows_of(tmp_path / "out", f"SELECT * FROM reference_sites WHERE label = '{FAULTY}'")[0]
    sql = f"SELECT request_id, position, l2, sketch FROM sites WHERE label = '{FAULTY}' AND hash IS NOT NULL"
    sides = [
        {(row["request_id"], row["position"]): row for row in rows_of(path, sql)} for path in (a, reference)
    ]
    far = [math.dist(sides[0][key]["sketch"], row["sketch"]) / row["l2"] for key, row in sides[1].items()]
    assert found["rows"] == len(far)
    assert found["distance_a_p50"] == pytest.approx(float(np.median(far)), rel=0.05)


def test_of_sides_that_round_alike_few_are_called_unequal() -> None:
    random = np.random.default_rng(0)
    alarms, found, sites = 0, 0, 20
    pair = np.repeat(np.arange(6), 40)
    nothing = np.zeros(sites)
    for _ in range(60):
        x = (random.standard_normal((240, sites)) * 0.4).astype(np.float32)
        alarms += bool(
            (shift := paired_shift.measure_shift(x, pair, nothing, nothing)).b_farther.any()
            or shift.a_farther.any()
        )
        found += bool(paired_shift.measure_shift(x + np.float32(0.6), pair, nothing, nothing).b_farther.all())
    assert alarms == 0
    assert found == 60


def test_of_few_sequences_only_a_plain_shift_counts(lab: Lab, tmp_path: Path) -> None:
    a, b = lab("good", requests=1), lab("good", requests=1, attention="eager")
    found = judged(tmp_path, a, b, lab.reference())
    assert found.verdict == "as far as the dtype explains"
    assert "few sequences" in sentences(found.notes)[0]
    plain = judged(tmp_path, a, lab("faulty", golden="good", requests=1), lab.reference())
    assert plain.verdict == "B is farther"
    assert plain.first is not None
    assert plain.first.site == FAULTY


def test_dependent_rows_are_worth_fewer() -> None:
    random = np.random.default_rng(0)
    steps = random.standard_normal((400, 8))
    slow = np.stack([np.convolve(column, np.ones(10) / 10, "same") for column in steps.T], axis=1)
    pair, nothing = np.zeros(400, np.int32), np.zeros(8)
    free, bound = (
        paired_shift.measure_shift(x.astype(np.float32), pair, nothing, nothing).effective
        for x in (steps, slow)
    )
    assert np.median(free) > 250
    assert np.median(bound) < 120


def test_a_shift_of_one_sequence_alone_is_no_shift_of_a_side() -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal((240, 1)) * 0.1).astype(np.float32)
    pair, nothing = np.repeat(np.arange(6), 40), np.zeros(1)
    x += np.where(pair[:, None] == 5, -1, 1)
    assert not paired_shift.measure_shift(x, pair, nothing, nothing).b_farther.any()
    x[pair == 5] += 2
    assert paired_shift.measure_shift(x, pair, nothing, nothing).b_farther.all()


def test_a_fault_that_begins_late_is_placed() -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal(60) * 0.3).astype(np.float32)
    assert paired_shift.onset(x, 0.5) == 0 or abs(np.median(x)) < 0.5
    x[41:] += 3
    assert paired_shift.onset(x, 0.5) == 41


def test_a_single_wild_row_is_found_and_a_usual_one_is_not() -> None:
    random = np.random.default_rng(0)
    near, far = (np.exp(random.standard_normal((100, 3)) * 0.3).astype(np.float32) for _ in range(2))
    assert not paired_shift.outlier(far, near)[0].any()
    far[37, 1] = 100 * near.max()
    beyond, rows = paired_shift.outlier(far, near)
    assert beyond.tolist() == [False, True, False]
    assert rows[1] == 37
