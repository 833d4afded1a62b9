"""A planted fault is found where it was planted: the first differing row, in causal order, names the module.

Every fault is looked for twice: in the columns of the two traces by a plain loop, and by `rip diverge`.
"""

import copy
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
import torch
from fakes.plain_hooks import plain_hooks
from fakes.recording import record
from fakes.replaying import batch_of
from faults.plants import math_kernel
from rip.diverge.compare import diverge
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PROMPTS = ([10, 20, 30, 40, 50, 60, 70], [80, 90, 100])
STEPS = 4
LINEAR = [f"self_attn.{name}_proj" for name in "qkvo"] + [
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
]
NORMS = ["input_layernorm", "post_attention_layernorm"]


class Traces:
    """One engine, its trace before a fault, and what the comparison with a run under a fault finds."""

    def __init__(self, engine, folder, prompts=PROMPTS, steps=STEPS):
        self.engine, self.folder = engine, folder
        self.batch = batch_of(*prompts, max_tokens=steps)
        self.model = engine.model.model
        with plain_hooks(engine.model) as self.passes:
            self.base = record(engine, self.batch, folder / "base.parquet")
        self.count = 0

    def under_fault(self):
        """Run again and compare."""
        self.count += 1
        path = self.folder / f"fault-{self.count}.parquet"
        with plain_hooks(self.engine.model) as self.faulty_passes:
            record(self.engine, self.batch, path)
        verdict = diverge(self.base, path, self.folder / f"result-{self.count}")
        return self.first_by_plain_loop(path), verdict

    def first_by_plain_loop(self, path):
        """request → (position, label) of its first differing row, while its tokens agree."""
        a, b = (pq.read_table(name).to_pylist() for name in (self.base, path))
        found, parted = {}, set()
        for row_a, row_b in zip(a, b, strict=True):
            request = row_a["request_id"]
            if row_a["token_id"] != row_b["token_id"]:
                parted.add(request)
            if request in parted or request in found:
                continue
            for site, (left, right) in enumerate(zip(row_a["site_hash"], row_b["site_hash"], strict=True)):
                if left != right:
                    found[request] = row_a["position"], self.engine.sites[site].label()
                    break
        return found

    def changed_by_plain_hooks(self, name):
        """Whether the module's output differs anywhere, by value."""
        pairs = zip(self.passes, self.faulty_passes, strict=True)
        return any(not torch.equal(a[name, "0"][0], b[name, "0"][0]) for a, b in pairs)


def check(found, verdict, label):
    """The plain loop and the verdict both name this site, as the origin, at the same position."""
    assert {at for _, at in found.values()} == {label}
    named = verdict.first_site
    assert named is not None
    assert named.site + (f":{named.part}" if named.part else "") == label
    assert (named.position, named.occurrence) == (found[named.request_id][0], 0)
    assert named.is_origin
    assert verdict.level != "bitwise"


def check_nothing(found, verdict):
    assert found == {}
    assert verdict.first_site is None
    assert verdict.level == "bitwise"


@contextmanager
def changed(parameter, change):
    """A parameter with a change, put back afterwards."""
    before = parameter.detach().clone()
    with torch.no_grad():
        change(parameter)
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(before)


def scale_row(weight):
    weight[0] *= 1.5


def one_ulp(weight):
    entry = weight.view(-1)[:1]
    bits = {2: torch.int16, 4: torch.int32}[entry.element_size()]
    entry.view(bits).add_(1)


@pytest.fixture
def tiny(tiny_models, open_engine, tmp_path):
    return lambda family="llama", prompts=PROMPTS: Traces(open_engine(tiny_models(family)), tmp_path, prompts)


def test_without_a_fault_nothing_is_found(tiny):
    check_nothing(*tiny().under_fault())


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("change", [scale_row, one_ulp])
def test_a_changed_weight_is_found_in_its_own_module(tiny, layer, change):
    traces = tiny()
    unchanged = []
    for module in LINEAR + NORMS:
        with changed(traces.model.layers[layer].get_submodule(module).weight, change):
            found, verdict = traces.under_fault()
        name = f"layers.{layer}.{module}"
        if traces.changed_by_plain_hooks(name):
            check(found, verdict, name)
        else:  # an ulp that rounding swallowed: nothing changed, and nothing is claimed
            unchanged.append(name)
            check_nothing(found, verdict)
    assert change is one_ulp or not unchanged
    assert len(unchanged) < 5


@pytest.mark.parametrize("family", ["llama-bf16", "qwen2", "qwen3", "mixtral"])
def test_a_changed_weight_is_found_in_other_families(tiny, family):
    # Alone: in a batch of experts a row's rounding depends on where the neighbours' tokens are routed.
    traces = tiny(family, PROMPTS[:1] if family == "mixtral" else PROMPTS)
    names = ["self_attn.q_proj", "input_layernorm", "self_attn.o_proj"]
    names += {"qwen3": ["self_attn.q_norm"], "mixtral": ["mlp.gate"]}.get(family, ["mlp.up_proj"])
    for module in names:
        with changed(traces.model.layers[1].get_submodule(module).weight, scale_row):
            check(*traces.under_fault(), f"layers.1.{module}" + (":0" if module == "mlp.gate" else ""))
    if family == "qwen2":
        with changed(traces.model.layers[2].self_attn.v_proj.bias, scale_row):
            check(*traces.under_fault(), "layers.2.self_attn.v_proj")
    if family == "mixtral":
        with changed(traces.model.layers[2].mlp.experts.down_proj, scale_row):
            check(*traces.under_fault(), "layers.2.mlp.experts")


def test_a_changed_embedding_and_a_changed_final_norm_are_found(tiny):
    traces = tiny()
    with changed(traces.model.embed_tokens.weight, lambda weight: weight[30].mul_(1.5)):
        found, verdict = traces.under_fault()
        check(found, verdict, "embed_tokens")
        assert found == {"r0": (PROMPTS[0].index(30), "embed_tokens")}
    with changed(traces.model.norm.weight, scale_row):
        check(*traces.under_fault(), "norm")


def test_a_weight_that_nothing_reads_is_not_found(tiny):
    traces = tiny()
    with changed(traces.model.embed_tokens.weight, lambda weight: weight[127].mul_(1.5)):
        check_nothing(*traces.under_fault())


def sign_flip(_module, _inputs, output):
    def flipped(tensor):
        changed_output = tensor.clone()
        changed_output[..., 0] *= -1
        return changed_output

    return (flipped(output[0]), *output[1:]) if isinstance(output, tuple) else flipped(output)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_flipped_sign_in_one_output_is_found_there(tiny, layer):
    traces = tiny()
    block = traces.model.layers[layer]
    for module in ["", "self_attn", "mlp", "mlp.act_fn", *LINEAR, *NORMS]:
        handle = block.get_submodule(module).register_forward_hook(sign_flip)
        found, verdict = traces.under_fault()
        handle.remove()
        check(found, verdict, f"layers.{layer}.{module}".removesuffix("."))


def test_a_flipped_sign_in_the_rotary_table_is_found_there(tiny):
    traces = tiny()
    handle = traces.model.rotary_emb.register_forward_hook(sign_flip)
    found, verdict = traces.under_fault()
    handle.remove()
    check(found, verdict, "rotary_emb:0")


def test_a_fault_that_only_decoding_has_is_found_at_the_first_decoded_position(tiny):
    traces = tiny()

    def in_decode(module, inputs, output):
        return sign_flip(module, inputs, output) if output.shape[1] == 1 else output

    handle = traces.model.layers[1].mlp.up_proj.register_forward_hook(in_decode)
    found, verdict = traces.under_fault()
    handle.remove()
    check(found, verdict, "layers.1.mlp.up_proj")
    assert {request: position for request, (position, _) in found.items()} == {"r0": 7, "r1": 3}


@contextmanager
def another_attention_kernel(attention):
    """One attention module with its own implementation; masks are made as before."""
    ALL_ATTENTION_FUNCTIONS["another"] = math_kernel
    before = attention.config
    attention.config = copy.copy(before)
    attention.config._attn_implementation_internal = "another"
    try:
        yield
    finally:
        attention.config = before
        del ALL_ATTENTION_FUNCTIONS["another"]


@pytest.mark.parametrize("family", ["llama", "llama-bf16"])
def test_another_attention_kernel_in_one_layer_is_found_in_its_attention_output(tiny, family):
    traces = tiny(family)
    for layer in range(3):
        attention = traces.model.layers[layer].self_attn
        with another_attention_kernel(attention):
            assert attention.config._attn_implementation == "another"
            check(*traces.under_fault(), f"layers.{layer}.self_attn:attn")


def test_a_difference_in_a_later_sequence_is_found_when_the_first_agrees(tiny):
    traces = tiny()
    with changed(traces.model.embed_tokens.weight, lambda weight: weight[90].mul_(1.5)):
        found, verdict = traces.under_fault()
    assert found == {"r1": (1, "embed_tokens")}
    assert (verdict.first_site.request_id, verdict.first_site.position) == ("r1", 1)


def test_the_first_divergent_token_is_what_a_loop_over_the_tokens_finds(tiny):
    traces = tiny()
    with changed(traces.model.layers[0].mlp.down_proj.weight, lambda weight: weight.mul_(1.3)):
        _, verdict = traces.under_fault()
    a, b = (pq.read_table(traces.folder / name).to_pylist() for name in ("base.parquet", "fault-1.parquet"))
    differing = [
        (row_a["request_id"], row_a["position"], row_a["token_id"], row_b["token_id"])
        for row_a, row_b in zip(a, b, strict=True)
        if row_a["token_id"] != row_b["token_id"]
    ]
    assert differing
    token = verdict.first_token
    assert (token.request_id, token.position, token.token_a, token.token_b) == differing[0]


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_the_real_model_every_fault_is_found_where_it_was_planted(smollm2, open_engine, tmp_path, dtype):
    prompt = [504, 2365, 282, 4649, 314, 260, 5063, 282]
    traces = Traces(open_engine(smollm2, dtype=dtype), tmp_path, [prompt], steps=3)
    check_nothing(*traces.under_fault())
    for layer, module, change in (
        (0, "self_attn.k_proj", scale_row),
        (14, "mlp.down_proj", scale_row),
        (14, "mlp.gate_proj", one_ulp),
        (29, "input_layernorm", one_ulp),
    ):
        weight = traces.model.layers[layer].get_submodule(module).weight
        with changed(weight, change):
            found, verdict = traces.under_fault()
        name = f"layers.{layer}.{module}"
        if traces.changed_by_plain_hooks(name):
            check(found, verdict, name)
        else:
            assert change is one_ulp
            check_nothing(found, verdict)
    with another_attention_kernel(traces.model.layers[20].self_attn):
        check(*traces.under_fault(), "layers.20.self_attn:attn")
    handle = traces.model.layers[7].self_attn.register_forward_hook(sign_flip)
    check(*traces.under_fault(), "layers.7.self_attn")
    handle.remove()
