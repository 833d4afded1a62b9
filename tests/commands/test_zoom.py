"""`--zoom` of `rip diverge` and `rip replay` as a user runs it: what is told, written, and refused early."""

import json
import shutil
import stat

import pyarrow.parquet as pq
import pytest
from fakes.command_line import Rip
from fakes.traces import disturb, header, llama_sites, sequence, write_trace
from rip.schemas.envelope import Envelope
from rip.schemas.lane import Lane
from rip.schemas.trace import Request
from rip.schemas.verdict import Verdict

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.fixture
def rip(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return Rip(monkeypatch, capsys)


@pytest.fixture
def two_kernels(rip, tmp_path, tiny_models):
    """a.parquet with torch's fused attention, b.parquet with the plain one, of a small random model."""
    asked = {
        "request_id": "q1",
        "prompt_token_ids": list(range(10, 34)),
        "sampling": {"temperature": 0, "max_tokens": 6, "ignore_eos": True},
    }
    (tmp_path / "q.json").write_text(json.dumps(asked))
    for name, attention in (("a", "sdpa"), ("b", "eager")):
        settings = ("--set", f"attention={attention}", "--set", "threads=1")
        done = rip(
            "replay", "q.json", "--model", tiny_models("llama-bf16"), *settings, "-o", f"{name}.parquet"
        )
        assert done.code == 0, done.err
    return rip


def test_the_command_names_the_replaced_kernel_and_proves_it(two_kernels, tmp_path):
    done = two_kernels(
        "diverge", "a.parquet", "b.parquet", "--zoom", "-o", "result", "--json", "--html", "r.html"
    )
    assert done.code in (0, 1)
    assert "Zoom: layers." in done.err
    assert "proven" in done.err
    assert FLASH in done.err
    assert "A repeats its trace" in done.err
    verdict = Verdict.from_json(done.out, "stdout")
    kept = Verdict.from_json((tmp_path / "result" / "summary.json").read_text(), "summary")
    assert kept == verdict
    assert verdict.zoom.finding.kind == "block"
    assert verdict.zoom.seen_again
    assert verdict.zoom.transplant.state == "proven"
    assert all(origin.site.endswith(".self_attn:attn") for origin in verdict.zoom.transplant.origins)
    assert (verdict.zoom.a.state, verdict.zoom.b.state) == ("repeated", "repeated")
    assert "_scaled_dot_product" in (tmp_path / "r.html").read_text()


def test_equal_traces_have_nothing_to_look_at(two_kernels):
    done = two_kernels("diverge", "a.parquet", "a.parquet", "--zoom")
    assert done.code == 0
    assert "nothing to zoom into" in done.err


def test_a_trace_of_a_server_is_compared_and_then_refused(rip, tmp_path):
    sites = llama_sites(2)
    envelope = Envelope.from_object({"request_id": "r0", "prompt_token_ids": [1, 2]}, "test")
    about = header(
        sites,
        lane=Lane(name="served", engine="vllm", model="m"),
        requests=[Request(request_id="r0", envelope_sha256=envelope.sha256(), envelope=envelope.to_object())],
    )
    equal, drifted = sequence(1, len(sites)), sequence(1, len(sites))
    disturb(drifted, 5, 3)
    for name, one in (("a", equal), ("b", drifted)):
        write_trace(tmp_path / f"{name}.parquet", [one], about)
    done = rip("diverge", "a.parquet", "b.parquet", "--zoom", "-o", "result", "--json")
    assert done.code == 2
    assert "a.parquet ran on vllm" in done.err
    assert "fix: replay its requests on the engine hf" in done.err
    written = Verdict.from_json((tmp_path / "result" / "summary.json").read_text(), "summary")
    assert written == Verdict.from_json(done.out, "stdout")
    assert written.first_site is not None
    assert written.zoom is None


def test_recorded_ops_lie_beside_the_trace(two_kernels, tmp_path, tiny_models):
    command = ("replay", "q.json", "--model", tiny_models("llama-bf16"), "--set", "threads=1")
    done = two_kernels(*command, "--zoom", "26:layers.1.self_attn:attn", "-o", "t.parquet")
    assert done.code == 0, done.err
    assert "Wrote t.zoom.parquet" in done.err
    assert stat.S_IMODE((tmp_path / "t.zoom.parquet").stat().st_mode) == 0o600
    rows = pq.read_table(tmp_path / "t.zoom.parquet").to_pylist()
    assert {row["module"] for row in rows} == {
        "layers.1.self_attn",
        *(f"layers.1.self_attn.{name}_proj" for name in "qkvo"),
    }
    assert FLASH in {row["op"] for row in rows}
    # The trace is the one that a run without zoom gives.
    assert two_kernels("diverge", "a.parquet", "t.parquet", "--require", "bitwise").code == 0
    again = two_kernels(*command, "--zoom", "26", "-o", "t.parquet")
    assert again.code == 2
    for wrong, words in (
        (("--zoom", "x"), "not POSITION"),
        (("--zoom", "29"), "the longest has 30 tokens"),
        (("--zoom", "3:layers.9"), "this model has no module layers.9"),
        (("--zoom", "3", "--sites", "self_atn"), "no site"),
        (("--zoom", "3", "--capture", "tokens"), "observes nothing"),
    ):
        refused = two_kernels(*command, *wrong, "-o", "w.parquet", "--force")
        assert refused.code == 2
        assert words in refused.err
        assert not (tmp_path / "w.parquet").exists(), "refused before anything was generated"


def test_a_position_is_checked_against_a_prompt_that_only_the_tokenizer_can_count(rip, tmp_path, tiny_models):
    asked = {"request_id": "q1", "prompt_text": "w6 w7 w8", "sampling": {"temperature": 0, "max_tokens": 4}}
    (tmp_path / "q.json").write_text(json.dumps(asked))
    command = ("replay", "q.json", "--model", tiny_models("llama"), "-o", "t.parquet")
    refused = rip(*command, "--zoom", "6")
    assert refused.code == 2
    assert "the longest has 7 tokens" in refused.err
    assert "choose a position from 0 to 5" in refused.err
    assert not (tmp_path / "t.parquet").exists()
    assert rip(*command, "--zoom", "2").code == 0


@pytest.mark.parametrize("gone", ["b", "a"])
def test_a_model_that_has_moved_is_told_with_its_side_after_the_comparison(rip, tmp_path, tiny_models, gone):
    for name in ("a", "b"):
        shutil.copytree(tiny_models("llama-bf16"), tmp_path / f"org/model-{name}")
    asked = {"request_id": "q1", "prompt_token_ids": list(range(10, 34)), "sampling": {"max_tokens": 2}}
    (tmp_path / "q.json").write_text(json.dumps(asked))
    for name, attention in (("a", "sdpa"), ("b", "eager")):
        settings = ("--set", f"attention={attention}", "--set", "threads=1")
        rip("replay", "q.json", "--model", f"org/model-{name}", *settings, "-o", f"{name}.parquet")
    (tmp_path / f"org/model-{gone}").rename(tmp_path / "elsewhere")  # a name of the hub may look like this
    done = rip("diverge", "a.parquet", "b.parquet", "--zoom", "-o", "result")
    side = gone.upper()
    assert done.code == 2
    assert f"{side}'s model was at org/model-{gone}, and nothing is there now" in done.err
    assert f"fix: put it back, or replay {side} again" in done.err
    assert "huggingface" not in done.err.lower()
    assert (tmp_path / "result" / "summary.json").is_file()
    (tmp_path / "elsewhere").rename(tmp_path / f"org/model-{gone}")
    assert "proven" in rip("diverge", "a.parquet", "b.parquet", "--zoom", "-o", "again").out
