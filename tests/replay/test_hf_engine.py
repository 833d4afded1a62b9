"""Opening the engine: settings take effect and are observed, and the process gets back what was changed."""

import json
import shutil

import pytest
import torch
from fakes.replaying import batch_of, run, run_one
from rip.replay.engines.hf import engine
from rip.schemas.errors import EngineFailed, RipError
from torch.utils._python_dispatch import TorchDispatchMode

PROMPT = [10, 20, 30, 40, 50, 60, 70]


@pytest.fixture(autouse=True)
def process_modes_are_given_back():
    def modes():
        return (
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        )

    before = modes()
    yield
    assert modes() == before


def readings(engine, name):
    setting = engine.settings[name]
    return setting.requested, setting.resolved, setting.observed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype(tiny_model, open_engine, dtype):
    engine = open_engine(tiny_model, dtype=dtype)
    assert readings(engine, "dtype") == (dtype, dtype, dtype)
    assert next(engine.model.parameters()).dtype == getattr(torch, dtype)
    assert {site.dtype for site in engine.sites if ".mlp" in site.name} == {dtype}


def test_the_dtype_of_the_folder_is_the_default(tiny_models, open_engine):
    engine = open_engine(tiny_models("llama-bf16"), sites=None)
    assert readings(engine, "dtype") == (None, "bfloat16", "bfloat16")
    assert engine.settings["dtype"].source == "model config"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention(tiny_model, open_engine, attention):
    engine = open_engine(tiny_model, sites=None, attention=attention)
    assert readings(engine, "attention") == (attention, attention, attention)


class Ops(TorchDispatchMode):
    """Names of the ATen ops that run."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_the_attention_implementation_really_runs(tiny_model, open_engine):
    for name, fused in (("eager", False), ("sdpa", True)):
        engine = open_engine(tiny_model, sites=None, attention=name)
        with Ops() as ops:
            run_one(engine, PROMPT)
        assert any("softmax" in op or "scaled_dot_product" in op for op in ops.seen)
        assert any("scaled_dot_product" in op for op in ops.seen) is fused


def test_where_nothing_was_asked_the_attention_of_the_model_is_recorded(tiny_model, open_engine):
    engine = open_engine(tiny_model, sites=None)
    assert readings(engine, "attention") == (None, "sdpa", "sdpa")


def test_threads_matmul_precision_and_determinism_hold_while_open_and_no_longer(tiny_model, open_engine):
    threads = torch.get_num_threads()
    engine = open_engine(
        tiny_model, sites=None, threads=threads + 1, matmul_precision="medium", deterministic="true"
    )
    assert torch.get_num_threads() == threads + 1
    assert torch.get_float32_matmul_precision() == "medium"
    assert torch.are_deterministic_algorithms_enabled()
    assert readings(engine, "threads") == (threads + 1,) * 3
    assert readings(engine, "matmul_precision") == ("medium",) * 3
    assert readings(engine, "deterministic") == ("true",) * 3
    engine.close()
    engine.close()  # a second time does no harm
    assert torch.get_num_threads() == threads


def break_config(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "no such architecture"}))


def break_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def break_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("damage", [break_config, break_weights, break_tokenizer])
def test_when_loading_fails_half_way_the_process_is_as_before(tiny_model, open_engine, tmp_path, damage):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    damage(folder)
    with pytest.raises(EngineFailed) as caught:
        open_engine(folder, threads=torch.get_num_threads() + 1, deterministic="true")
    assert caught.value.fix


def test_when_the_trial_pass_fails_the_process_is_as_before(tiny_model, open_engine, monkeypatch):
    def fail(*_):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(engine.HfEngine, "_trial_pass", fail)
    with pytest.raises(EngineFailed, match="no kernel image"):
        open_engine(tiny_model, threads=torch.get_num_threads() + 1)


def test_no_such_site_leaves_the_process_as_before(tiny_model, open_engine):
    with pytest.raises(RipError):
        open_engine(tiny_model, sites="nothing", threads=torch.get_num_threads() + 1)


@pytest.mark.parametrize(("named", "used"), [(5, 5), ([5, 6], 5), (-1, 0), (128, 0), (None, 0)])
def test_a_padding_id_outside_the_vocabulary_is_not_fed_to_the_model(named, used):
    assert engine.padding_id(named, vocab_size=128) == used


def test_reset_starts_the_workers_seed_again(tiny_model, open_engine):
    engine = open_engine(tiny_model, sites=None)
    options = {"temperature": 1.0, "seed_scope": "worker", "seed": 3}
    first, second = (run(engine, batch_of(PROMPT, **options))[0] for _ in range(2))
    assert first.token_ids != second.token_ids
    engine.reset()
    assert run(engine, batch_of(PROMPT, **options))[0].token_ids == first.token_ids


def test_a_folder_without_a_tokenizer_runs_on_token_ids(tiny_model, open_engine, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    engine = open_engine(folder, sites=None)
    assert engine.texts_of([5]) == {}
    found = run_one(engine, PROMPT)
    assert len(found.token_ids) == 15
    assert found.finished.text == ""
