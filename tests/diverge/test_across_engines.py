"""Traces of engines that tell different things: log-probabilities only, other sites, shards, no shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes.traces import (
    Sequence,
    as_a_server_tells,
    disturb,
    disturb_logits,
    header,
    llama_sites,
    sequence,
    write_trace,
)
from fakes.verdicts import sentences, typed
from rip import cli
from rip.diverge.compare import Context, diverge
from rip.diverge.present.findings.sentences import unseen_before, why
from rip.schemas.change import Change
from rip.schemas.findings.execution import SeveralDiffer
from rip.schemas.findings.unseen import SitesLeftOut
from rip.schemas.fingerprint import Fingerprint, Section, fact, unavailable
from rip.schemas.lane import Lane, Setting
from rip.schemas.trace import EngineAbilities, Request, Site
from rip.schemas.verdict import Cause, Verdict

SITES = llama_sites(2)


def served(**changes: Any) -> Sequence:
    return as_a_server_tells(sequence(1, 0, **changes))


def compared(
    tmp_path: Path, a: Sequence, b: Sequence, changes: list[Change] | None = None, **about: Any
) -> Verdict:
    paths = []
    for side, one in (("a", a), ("b", b)):
        said = {key[2:]: value for key, value in about.items() if key.startswith(f"{side}_")}
        sites = said.pop("sites", SITES if one.hashes.shape[1] else [])
        paths.append(write_trace(tmp_path / f"{side}.parquet", [one], header(sites, **said)))
    return diverge(paths[0], paths[1], tmp_path / "out", Context(changes or []))


def cause(verdict: Verdict, name: str) -> Cause:
    found = [item for item in verdict.causes if item.id == name]
    assert found, [item.id for item in verdict.causes]
    return found[0]


# Log-probabilities only


def test_equal_logprobs_are_called_logprobs_and_equal_bit_for_bit(tmp_path: Path) -> None:
    verdict = compared(tmp_path, served(), served())
    numeric = why(verdict.levels["numeric"])
    assert "logprobs are equal bit for bit, over 6 of 10" in numeric
    assert "logit " not in numeric
    assert (verdict.first_logprob, verdict.max_abs_logit_diff, verdict.max_abs_logprob_diff) == (
        None,
        None,
        0,
    )
    assert verdict.levels["bitwise"].state == "not comparable"


def test_the_first_logprob_that_differs_is_named_though_tokens_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = served()
    other.topk_logprobs[6, 2] += np.float32(1e-6)
    other.topk_logprobs[8, 0] += np.float32(0.25)
    verdict = compared(tmp_path, served(), other)
    first = verdict.first_logprob
    assert first is not None
    # The row at 6 holds the distribution that chose the token at 7, which is generated step 3.
    assert (first.request_id, first.position, first.step) == ("r0", 7, 3)
    assert first.max_abs_diff == pytest.approx(1e-6, rel=0.5)
    assert verdict.levels["token"].state == "holds"
    assert "largest logprob difference 0.25" in why(verdict.levels["numeric"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["rip", "diverge", "a.parquet", "b.parquet", "--verbose"])
    with pytest.raises(SystemExit):
        cli.main()
    out = capsys.readouterr().out
    assert "First differing logprob: step 3 of request r0" in out
    assert "logit difference" not in out


def test_a_flip_of_logprobs_is_told_with_its_drift_and_may_be_a_near_tie(tmp_path: Path) -> None:
    one, other = served(), served()
    for side in (one, other):
        side.topk_logprobs[6, :2] = [-0.70, -0.71]
    other.topk_logprobs[6, :2] = [-0.73, -0.70]
    other.tokens[7] += 1
    verdict = compared(tmp_path, one, other)
    assert verdict.first_token is not None
    assert verdict.first_token.max_abs_logit_diff is None
    assert verdict.first_token.max_abs_logprob_diff == pytest.approx(0.03, rel=1e-3)
    assert "drift of the logprobs at that step 0.03" in sentences(cause(verdict, "near-tie").evidence)[0]


def test_the_chosen_tokens_logprob_counts_where_it_is_no_candidate(tmp_path: Path) -> None:
    one, other = served(), served()
    for side in (one, other):
        side.next_logprob = np.full(10, -9, np.float32)
    other.next_logprob[5] = -9.5
    verdict = compared(tmp_path, one, other)
    assert verdict.first_logprob is not None
    assert (verdict.first_logprob.position, verdict.first_logprob.max_abs_diff) == (6, 0.5)
    rows = pq.read_table(tmp_path / "out" / "tokens.parquet").to_pylist()
    assert (rows[6]["logprob_a"], rows[6]["logprob_b"]) == (-9, -9.5)


def test_logits_against_logprobs_are_compared_by_logprob(tmp_path: Path) -> None:
    one = sequence(1, 0)
    other = served()
    other.topk_logprobs[5, 0] += np.float32(0.125)
    verdict = compared(tmp_path, one, other)
    assert "largest logprob difference 0.125" in why(verdict.levels["numeric"])
    assert verdict.max_abs_logit_diff is None


def test_equal_logits_outweigh_how_a_server_rounds_their_logprobs(tmp_path: Path) -> None:
    other = sequence(1, 0)
    other.topk_logprobs[5, 0] += np.float32(1e-5)
    verdict = compared(tmp_path, sequence(1, 0), other)
    assert (verdict.level, verdict.first_logprob, verdict.max_abs_logprob_diff) == ("bitwise", None, 0)


@pytest.mark.parametrize(("kind", "warns"), [("raw", False), ("unknown", True), ("processed", True)])
def test_logprobs_of_another_kind_are_told(tmp_path: Path, kind: Any, warns: bool) -> None:
    about = EngineAbilities(modes=["free"], seed=True, token_ids=True, logprobs=kind)
    verdict = compared(tmp_path, served(), served(), b_abilities=about)
    assert any("sampling settings alone" in line for line in sentences(verdict.not_seen)) == warns


def test_forcing_is_advised_only_where_an_engine_can(tmp_path: Path) -> None:
    other = served()
    other.tokens[6] += 1
    free_only = EngineAbilities(modes=["free"], seed=True, token_ids=True, logprobs="raw")
    verdict = compared(tmp_path, served(), other, a_abilities=free_only, b_abilities=free_only)
    assert not any("golden-decode" in line for line in sentences(verdict.not_seen))
    assert not any("golden-decode" in typed(item) for item in verdict.causes)


# Sites


def test_sites_of_one_trace_only_are_listed_by_kind(tmp_path: Path) -> None:
    fused = [Site(name=f"layers.{n}.mlp.gate_up_proj", dtype="bfloat16", width=64) for n in range(5)]
    sites = [*SITES, *fused]
    verdict = compared(tmp_path, sequence(1, len(SITES)), sequence(1, len(sites)), b_sites=sites)
    assert "5 sites only in b.parquet: layers.*.mlp.gate_up_proj (5)" in sentences(verdict.not_seen)
    left_out = [one for one in verdict.not_seen if isinstance(one, SitesLeftOut) and one.trace == "b.parquet"]
    assert [(group.pattern, group.count) for group in left_out[0].groups] == [
        ("layers.*.mlp.gate_up_proj", 5)
    ]


def test_another_dtype_is_compared_by_sketch_and_claims_no_origin(tmp_path: Path) -> None:
    one, other = sequence(1, len(SITES)), sequence(1, len(SITES))
    for site in range(3, len(SITES)):
        disturb(other, 5, site, 1e-2)
    verdict = compared(tmp_path, one, other, b_sites=llama_sites(2, "float32"))
    first = verdict.first_site
    assert first is not None
    assert (first.site, first.position, first.is_origin) == (SITES[3].name, 5, False)
    assert "by sketch only" in unseen_before(first)
    totals = pq.read_table(tmp_path / "out" / "site_totals.parquet").to_pylist()
    assert totals[3]["drift_p50"] == pytest.approx(1e-2, rel=0.03)
    assert (verdict.compared.rows, verdict.levels["bitwise"].state) == (0, "fails")


def test_equal_sketches_under_another_row_hash_prove_no_equal_bits(tmp_path: Path) -> None:
    verdict = compared(tmp_path, sequence(1, len(SITES)), sequence(1, len(SITES)), b_row_hash="other/1")
    assert verdict.levels["bitwise"].state == "not comparable"
    assert "equal bits cannot be proved" in why(verdict.levels["bitwise"])


def tensor_parallel(size: int) -> list[Site]:
    """Two layers whose `gate_proj` is sharded over `size` ranks and whose `mlp` is not."""
    sites = [Site(name="embed_tokens", dtype="bfloat16", width=64)]
    for layer in range(2):
        shards = [f"tp{rank}of{size}" for rank in range(size)] if size > 1 else [""]
        sites += [
            Site(
                name=f"layers.{layer}.mlp.gate_proj", part=part, dtype="bfloat16", width=64, sharded=size > 1
            )
            for part in shards
        ]
        sites.append(Site(name=f"layers.{layer}.mlp", dtype="bfloat16", width=64))
    return sites


def test_shards_are_not_compared_with_another_tensor_parallel_size(tmp_path: Path) -> None:
    alone, split = tensor_parallel(1), tensor_parallel(2)
    one, other = sequence(1, len(alone)), sequence(1, len(split))
    for name in ("tokens", "topk_ids", "topk_logits", "topk_logprobs", "logits_hash"):
        setattr(other, name, getattr(one, name))
    for site, named in enumerate(alone):  # the replicated sites are equal but for the first mlp
        if named in split:
            there = split.index(named)
            other.hashes[:, there], other.sketch[:, there] = one.hashes[:, site], one.sketch[:, site]
            other.l2[:, there] = one.l2[:, site]
    disturb(other, 4, split.index(alone[2]))
    sizes = {
        f"{side}_lane": Lane(
            name="l",
            engine="vllm",
            settings={"tensor-parallel-size": Setting(resolved=str(size), source="lane")},
        )
        for side, size in (("a", 1), ("b", 2))
    }
    verdict = compared(tmp_path, one, other, a_sites=alone, b_sites=split, **sizes)
    assert verdict.compared.sites == 3
    [shards] = [line for line in sentences(verdict.not_seen) if "sharded" in line]
    assert shards.startswith("6 sharded sites are compared only under equal tensor parallelism (here ")
    assert not any("only in" in line for line in sentences(verdict.not_seen))
    first = verdict.first_site
    assert first is not None
    assert (first.site, first.position, first.is_origin) == ("layers.0.mlp", 4, False)
    assert "could not be compared" in unseen_before(first)
    assert (
        sentences(cause(verdict, "parallel-topology").evidence)[0] == "tensor-parallel-size: 1 in A, 2 in B"
    )


def test_shards_of_equal_tensor_parallelism_are_compared(tmp_path: Path) -> None:
    sites = tensor_parallel(2)
    other = sequence(1, len(sites))
    disturb(other, 4, 2)
    verdict = compared(tmp_path, sequence(1, len(sites)), other, a_sites=sites, b_sites=sites)
    assert verdict.compared.sites == len(sites)
    assert verdict.first_site is not None
    assert (verdict.first_site.part, verdict.first_site.is_origin) == ("tp1of2", True)


# What is not known is no evidence


def lane(engine: str = "vllm", **settings: Any) -> Lane:
    known = {
        name.replace("__", "."): Setting(resolved=value, source="lane") for name, value in settings.items()
    }
    return Lane(name="main", engine=engine, model="./m", settings=known)


def moved() -> tuple[Sequence, Sequence]:
    one, other = served(), served()
    disturb_logits(other, 5, 0.25)
    return one, other


def test_shapes_that_are_not_known_point_to_no_shape(tmp_path: Path) -> None:
    one, other = sequence(1, len(SITES)), sequence(1, len(SITES))
    other.tells_shapes = False
    other.shapes["batch_size"][:] = 8
    disturb(other, 5, 3)
    verdict = compared(tmp_path, one, other)
    assert not {"batch-shape", "padding", "prefill-decode", "cache-boundary", "prefill-chunk"} & {
        item.id for item in verdict.causes
    }


def test_what_was_sent_together_is_evidence_where_passes_were_not_observed(tmp_path: Path) -> None:
    verdict = compared(tmp_path, *moved(), a_lane=lane(batch_size=1), b_lane=lane(batch_size=8))
    found = cause(verdict, "batch-shape")
    assert sentences(found.evidence) == ["sent together, batch_size: 1 in A, 8 in B"]
    assert found.confidence != "high"
    assert any("not observed" in line for line in sentences(found.missing))
    assert "--set batch_size=1" in typed(found)


def test_readings_that_a_side_could_not_make_are_no_difference(tmp_path: Path) -> None:
    def change(section: str, field: str, before: Any, after: Any) -> Change:
        return Change(section=section, field=field, before=before, after=after)

    untold = unavailable("the process was not asked", "proc")
    changes = [
        change("engine", "attention_backend", fact("sdpa", "x"), untold),
        change("parallelism", "tensor_parallel_size", fact(1, "x"), untold),
        change("engine", "arguments", fact({"port": "4000"}, "x"), fact({"port": "4001"}, "x")),
        change(
            "determinism", "ATEN_CPU_CAPABILITY", unavailable("not set", "environ"), fact("avx2", "environ")
        ),
    ]
    verdict = compared(tmp_path, *moved(), changes)
    assert [item.id for item in verdict.causes] == ["threads"]
    assert sentences(verdict.causes[0].evidence)[0] == "ATEN_CPU_CAPABILITY: not set → avx2"


def test_a_variable_is_one_cause_and_what_follows_from_it_is_folded_under_it(tmp_path: Path) -> None:
    def change(section: str, field: str, before: Any, after: Any) -> Change:
        return Change(section=section, field=field, before=before, after=after)

    unset = unavailable("not set", "environ")
    changes = [
        change("determinism", "ATEN_CPU_CAPABILITY", unset, fact("default", "environ")),
        change("cpu", "isa_in_use", fact("AVX512", "torch"), fact("DEFAULT", "torch")),
    ]
    (tmp_path / "one").mkdir()
    [found] = compared(tmp_path / "one", *moved(), changes).causes
    assert found.label == "ATEN_CPU_CAPABILITY: not set → default"
    said = sentences(found.evidence)
    assert said[0].endswith("from it follows cpu.isa_in_use: AVX512 → DEFAULT")
    assert not any("several things differ" in line for line in said)
    # A second variable is a second cause, with its own values; a model of CPU follows from neither.
    changes += [
        change("determinism", "NVIDIA_TF32_OVERRIDE", fact("0", "environ"), fact("1", "environ")),
        change("cpu", "model", fact("EPYC 9654", "cpuinfo"), fact("Xeon 8480", "cpuinfo")),
    ]
    causes = compared(tmp_path, *moved(), changes).causes
    assert [one.label for one in causes] == [
        "ATEN_CPU_CAPABILITY: not set → default",
        "Different CPU threads or instruction set",
        "NVIDIA_TF32_OVERRIDE: 0 → 1",
    ]
    for one in causes:
        assert SeveralDiffer(names=["ATEN_CPU_CAPABILITY", "NVIDIA_TF32_OVERRIDE", "cpu"]) in [
            evidence.model_copy(update={"text": None}) for evidence in one.evidence
        ]


def test_threads_that_a_variable_sets_are_no_second_cause(tmp_path: Path) -> None:
    def lane_of(count: int, source: str) -> Lane:
        return Lane(name="l", engine="hf", settings={"threads": Setting(resolved=count, source=source)})

    changes = [
        Change(
            section="determinism",
            field="OMP_NUM_THREADS",
            before=unavailable("not set", "environ"),
            after=fact("1", "environ"),
        )
    ]
    lanes = {"a_lane": lane_of(4, "engine default"), "b_lane": lane_of(1, "OMP_NUM_THREADS")}
    [found] = compared(tmp_path, *moved(), changes, **lanes).causes
    assert found.label == "OMP_NUM_THREADS: not set → 1"


def test_a_greedy_request_does_not_depend_on_fields_of_draws(tmp_path: Path) -> None:
    def asked(top_p: float, temperature: float) -> list[Request]:
        values = {"top_p": top_p, "temperature": temperature}
        sampling = {name: Setting(resolved=value, source="engine default") for name, value in values.items()}
        return [Request(request_id="r0", envelope_sha256="0" * 64, sampling=sampling)]

    for temperature in (0.0, 0.7):
        one, other = moved()
        other.tokens[6] += 1
        folder = tmp_path / str(temperature)
        folder.mkdir()
        about = {"a_requests": asked(1.0, temperature), "b_requests": asked(0.9, temperature)}
        found = [item.id for item in compared(folder, one, other, **about).causes]
        assert ("sampling-contract" in found) == (temperature > 0)


# The commands


def words_of(found: Cause) -> list[str]:
    assert found.confirm is not None
    return found.confirm.argv


def test_an_argument_that_only_one_lane_states_is_seen_and_left_out_again(tmp_path: Path) -> None:
    b = lane("vllm", env__OMP_NUM_THREADS="1", **{"max-model-len": "2048"}).model_copy(
        update={"python": "/opt/vllm/bin/python"}
    )
    verdict = compared(tmp_path, *moved(), a_lane=lane("vllm", **{"max-model-len": "2048"}), b_lane=b)
    found = cause(verdict, "threads")
    assert sentences(found.evidence) == ["env.OMP_NUM_THREADS: 1 in B, not stated in A"]
    words = words_of(found)
    assert words[words.index("--python") + 1] == "/opt/vllm/bin/python"
    assert words[words.index("--engine") + 1] == "vllm"
    assert [words[index + 1] for index, word in enumerate(words) if word == "--set"] == ["max-model-len=2048"]


def test_a_server_is_called_again_at_its_address_with_its_key_and_its_taps(tmp_path: Path) -> None:
    about = {"url": "http://127.0.0.1:8000", "api_key_env": "KEY", "tap": "/tmp/tap", "model": "(as served)"}
    b = lane(cache="warm").model_copy(update=about)
    a = lane(cache="cold").model_copy(update=about)
    words = words_of(cause(compared(tmp_path, *moved(), a_lane=a, b_lane=b), "cache-boundary"))
    for option, value in (
        ("--url", "http://127.0.0.1:8000"),
        ("--api-key-env", "KEY"),
        ("--tap", "/tmp/tap"),
    ):
        assert words[words.index(option) + 1] == value
    assert "--model" not in words
    assert "cache=cold" in words


def test_a_secret_setting_is_named_and_not_passed_on_as_its_stand_in(tmp_path: Path) -> None:
    a, b = lane(batch_size=1, env__HF_TOKEN="(not kept)"), lane(batch_size=4, env__HF_TOKEN="(not kept)")
    confirm = typed(cause(compared(tmp_path, *moved(), a_lane=a, b_lane=b), "batch-shape"))
    command, _, comment = confirm.partition("  # ")
    assert "HF_TOKEN" not in command
    assert comment == "and --set env.HF_TOKEN=…"


def test_settings_of_one_engine_are_not_given_to_another(tmp_path: Path) -> None:
    a, b = lane("hf", threads=1), lane("llama.cpp", threads=2)
    assert "rip query" in typed(cause(compared(tmp_path, *moved(), a_lane=a, b_lane=b), "threads"))


@pytest.mark.parametrize(("sha", "allows"), [("a" * 64, False), ("b" * 64, True)])
def test_drift_that_was_allowed_is_allowed_again(tmp_path: Path, sha: str, allows: bool) -> None:
    here = Fingerprint.build(
        "0.1.0", "2026-07-14T09:00:00Z", {"model": Section(facts={"sha256": fact("a" * 64, "file")})}
    )
    asked = [Request(request_id="r0", envelope_sha256="0" * 64, envelope={"model_artifact_sha256": sha})]
    about = {"a_lane": lane(batch_size=1), "b_lane": lane(batch_size=2)}
    verdict = compared(tmp_path, *moved(), b_fingerprint=here, b_requests=asked, **about)
    assert ("--allow-drift" in words_of(cause(verdict, "batch-shape"))) == allows


def test_commands_are_ones_that_rip_replay_takes(tmp_path: Path) -> None:
    from rip.commands.replay import replay
    from typer import Typer
    from typer.main import get_command

    about = {"url": "http://127.0.0.1:8000", "api_key_env": "KEY", "python": "python3", "tap": "tap"}
    a, b = (lane(batch_size=n).model_copy(update=about) for n in (1, 8))
    words = words_of(cause(compared(tmp_path, *moved(), a_lane=a, b_lane=b), "batch-shape"))
    app = Typer()
    app.command()(replay)
    context = get_command(app).make_context("replay", words[2:], resilient_parsing=False)
    assert (context.params["url"], context.params["tap"]) == ("http://127.0.0.1:8000", Path("tap"))
