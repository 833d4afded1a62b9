"""Some kinds again on the real SmolLM2-135M-Instruct: 30 layers, 49152 tokens, bfloat16 as it is served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from faults import plants
from faults.case import Case, Side
from faults.kinds import FLASH, LAST_BIT, a_weight, an_op, first_linear, shifted_positions
from faults.kinds_cache import BLOCK, SCALED, at_decode, scale_block, stale_in_decode
from faults.kinds_modules import at_position, norm_in_bfloat16, split_reduction
from faults.kinds_sampling import HOT, by_probability, skip_one
from faults.kinds_weights import from_other_layer, one_ulp, quantize

TEXT = (504, 2365, 282, 4649, 314, 260, 5063, 282)
PROMPT = TEXT * 3
SHORT = {"max_tokens": 8}
BASE = Side(settings={"dtype": "bfloat16"}, sampling=SHORT, prompts=(PROMPT,))
SAMPLED = replace(BASE, sampling={**HOT, **SHORT})
MODEL = "smollm2"


def cases() -> Iterator[Case]:
    """Every case of these kinds."""
    for layer in (0, 14, 29):
        linear = f"layers.{layer}.mlp.down_proj"
        attention = f"layers.{layer}.self_attn"
        norm = f"layers.{layer}.input_layernorm"
        for kind, plant, causes, site, step, named in (
            ("one-ulp weight", plants.weight(norm, one_ulp), ("module",), norm, None, a_weight(norm)),
            ("quantized layer", plants.weight(linear, quantize), ("module",), linear, None, a_weight(linear)),
            (
                "reduction order of one GEMM",
                plants.forward(linear, split_reduction),
                ("module",),
                linear,
                None,
                an_op("add.Tensor"),
            ),
            (
                "different attention kernel in one layer",
                plants.attention(attention, plants.math_kernel),
                ("module",),
                f"{attention}:attn",
                None,
                an_op(FLASH, LAST_BIT),
            ),
            (
                "decode reads stale weights",
                stale_in_decode(linear),
                ("decode-path",),
                linear,
                0,
                an_op("mm.default"),
            ),
            (
                "KV block corrupted",
                plants.cache(layer, scale_block(0, BLOCK), at_decode(2, len(PROMPT))),
                ("kv-cache",),
                f"{attention}:attn",
                2,
                SCALED,
            ),
        ):
            faulty = replace(BASE, plant=plant)
            yield Case(kind, site, MODEL, BASE, faulty, causes, site, step=step, named=named)
    for site, plant, kind, cause, position, named in (
        (
            "layers.7.self_attn.q_proj",
            from_other_layer("layers.7.self_attn.q_proj"),
            "wrong weight tensor",
            "module",
            None,
            a_weight("layers.7.self_attn.q_proj"),
        ),
        (
            "layers.20.input_layernorm",
            plants.forward("layers.20.input_layernorm", norm_in_bfloat16),
            "norm epsilon in a different precision",
            "module",
            None,
            an_op("add.Tensor"),
        ),
        (
            "layers.11.mlp.up_proj",
            plants.output("layers.11.mlp.up_proj", at_position(9, float("nan"))),
            "NaN in one row",
            "non-finite",
            9,
            an_op("fill_.Tensor"),
        ),
        (
            "rotary_emb:0",
            plants.positions_off_by_one(10),
            "positions off by one",
            "positions",
            10,
            shifted_positions(),
        ),
    ):
        faulty = replace(BASE, plant=plant)
        yield Case(kind, site, MODEL, BASE, faulty, (cause,), site, position, named=named)
    for kind, plant, cause in (
        ("silent top_k", plants.sampler(top_k=3), "sampling-filter"),
        ("silent temperature", plants.sampler(temperature=0.6), "logits-processing"),
        ("RNG offset by one", plants.sampler(skip_one), "rng"),
        ("candidate order changed", plants.sampler(by_probability), "candidate-order"),
    ):
        yield Case(kind, "sampled", MODEL, SAMPLED, replace(SAMPLED, plant=plant), (cause,))
    rounding = plants.rounding(first_linear(MODEL))
    two = replace(BASE, settings={**BASE.settings, "threads": 2}, plant=rounding)
    yield Case("CPU threads", "1 and 2", MODEL, BASE, two, ("threads",))
    yield from _templates()
    beside = replace(BASE, options={"fill": 3}, plant=rounding)
    yield Case("neighbours", "3", MODEL, BASE, beside, ("batch-shape",))
    yield Case("no fault", "real model", MODEL, BASE, replace(BASE, plant=lambda _engine, _stack: None), ())
    yield Case(
        "no fault", "real model, sampled", MODEL, SAMPLED, replace(SAMPLED, plant=lambda _e, _s: None), ()
    )


HELLO = [{"role": "user", "content": "Hello"}]
CHATTED = replace(BASE, envelope={"prompt_token_ids": None, "messages": HELLO})
SPACE, SYSTEM = "template with one more space", "template without its system prompt"
ROLE = "'<|im_start|>' + message['role']"
CONTENT = "+ message['content']"


def _templates() -> Iterator[Case]:
    """The real template with a change, and the real tokenizer that makes other tokens of it."""
    for kind, where, old, new, cause in (
        (SPACE, "in the system prompt", "named SmolLM", "named  SmolLM", "prompt-insertion"),
        (SPACE, "before a question", CONTENT, f"+ ' ' {CONTENT}", "prompt"),
        (SPACE, "behind the role", ROLE, f"{ROLE} + ' '", "prompt-insertion"),
        (SYSTEM, "no default", "messages[0]['role'] != 'system'", "false", "prompt-truncated"),
    ):
        changed = replace(CHATTED, template=partial(_replaced, old=old, new=new))
        yield Case(kind, where, MODEL, CHATTED, changed, (cause,))
    yield Case(
        "clock in the template",
        "a date",
        MODEL,
        dated("30 Nov 2026"),
        dated("01 Dec 2026"),
        ("prompt-clock",),
    )


def dated(day: str) -> Side:
    """A template that writes the date of the day into its system prompt."""
    write_date = partial(
        _replaced, old="named SmolLM", new="named SmolLM. Today is ' + date_string + '. You are"
    )
    fields = {**CHATTED.envelope, "request": {"chat_template_kwargs": {"date_string": day}}}
    return replace(CHATTED, template=write_date, envelope=fields)


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)
