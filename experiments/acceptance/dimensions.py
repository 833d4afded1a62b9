"""The dimensions that a plan can vary: one table, one entry each.

A dimension says how a value of it becomes a run: a setting of the lane, what runs beside the requests, a
different order of them, a new launch. Where engines spell a setting differently, the entry has both names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from ...schemas.errors import BadInput
from ...schemas.plan import Value

How = Literal["setting", "repeat", "restart", "lane", "field", "requests", "neighbours"]
"""`setting`: `--set NAME=VALUE`. `repeat`: in one process. `restart`: launches. `lane`: another lane of the
plan. `field`: model or python of the lane. `requests`: the set in another order, or with other arrivals.
`neighbours`: requests that run beside."""

_T = TypeVar("_T")

ALL = "*"
"""Every engine that has no entry of its own."""


@dataclass(frozen=True)
class Dimension:
    """One thing that a plan can vary.

    Attributes:
        about: One line for people.
        how: How a value becomes a run.
        names: Of `setting`, `field`: its name by engine. An engine that is not there cannot vary it.
        values: The values by engine that `rip matrix init` writes: A's, then B's. None: there is no sensible
            default, as it depends on the machine or on files.
        beside: Settings that go with it, by engine.
        repeat: Times that every request runs in one process, on both sides.
    """

    about: str
    how: How
    names: Mapping[str, str] | None = None
    values: Mapping[str, tuple[Value, ...]] | None = None
    beside: Mapping[str, tuple[str, ...]] | None = None
    repeat: int = 1

    def name(self, engine: str) -> str | None:
        """What an engine calls the setting; None: it has none."""
        return _of(self.names, engine)

    def default(self, engine: str) -> tuple[Value, ...] | None:
        """The values that are compared where a plan states none."""
        return _of(self.values, engine)

    def settings_beside(self, engine: str) -> tuple[str, ...]:
        """`KEY=VALUE` texts that go with it."""
        return _of(self.beside, engine) or ()

    def fits(self, engine: str) -> bool:
        """Whether it can be varied on an engine."""
        return self.names is None or self.name(engine) is not None


def _of(table: Mapping[str, _T] | None, engine: str) -> _T | None:
    if table is None:
        return None
    return table.get(engine, table.get(ALL))


_SHAPE_BESIDE = {"hf": ("batch_size=8",)}

DIMENSIONS: dict[str, Dimension] = {
    "repeat": Dimension("the same request again, in the same process", "repeat", values={ALL: (3,)}),
    "restart": Dimension("a new process; the value is the number of launches", "restart", values={ALL: (3,)}),
    "batch_size": Dimension(
        "requests that share a forward pass, or are sent together",
        "setting",
        {ALL: "batch_size"},
        {ALL: (1, 8)},
    ),
    "order": Dimension(
        "the order in which requests arrive: recorded, reversed, or shuffled:SEED",
        "requests",
        values={ALL: ("recorded", "reversed", "shuffled:1")},
    ),
    "neighbours": Dimension(
        "requests that run beside: how many", "neighbours", values={ALL: (0, 7)}, beside=_SHAPE_BESIDE
    ),
    "neighbour_length": Dimension(
        "prompt length of 7 requests that run beside, tokens",
        "neighbours",
        values={ALL: (16, 256)},
        beside=_SHAPE_BESIDE,
    ),
    "neighbour_content": Dimension(
        "which tokens 7 requests of equal length that run beside have: a seed",
        "neighbours",
        values={ALL: (1, 2)},
        beside=_SHAPE_BESIDE,
    ),
    "arrival": Dimension(
        "when requests are sent: together, recorded, or poisson:RATE (per second)",
        "requests",
        values={
            "vllm": ("together", "poisson:4"),
            "sglang": ("together", "poisson:4"),
            "llama.cpp": ("together", "poisson:4"),
            "openai": ("together", "poisson:4"),
        },
        names=dict.fromkeys(("vllm", "sglang", "llama.cpp", "openai", "tgi", "tensorrt-llm"), "arrival"),
        beside={ALL: ("batch_size=8",)},
    ),
    "cache": Dimension(
        "the prefix cache: cold, or warm from the run before",
        "setting",
        {"vllm": "cache", "sglang": "cache", "llama.cpp": "cache"},
        {ALL: ("cold", "warm")},
        repeat=2,
    ),
    "chunked_prefill": Dimension(
        "prompt tokens of a pass; a longer prompt is computed in chunks",
        "setting",
        {
            "hf": "prefill_chunk",
            "vllm": "max-num-batched-tokens",
            "sglang": "chunked-prefill-size",
            "llama.cpp": "n_ubatch",
        },
        {"hf": (0, 16), "vllm": (2048, 64), "sglang": (2048, 64), "llama.cpp": (512, 64)},
        {"vllm": ("enable-chunked-prefill=true",)},
    ),
    "async_scheduling": Dimension(
        "the scheduler prepares a step while one runs",
        "setting",
        {"vllm": "async-scheduling"},
        {"vllm": (False, True)},
    ),
    "compiled": Dimension(
        "the model compiled, or eager", "setting", {"vllm": "enforce-eager"}, {"vllm": (True, False)}
    ),
    "cuda_graph": Dimension(
        "CUDA graphs captured, or not (a GPU is needed)",
        "setting",
        {"vllm": "compilation-config.cudagraph_mode", "sglang": "disable-cuda-graph"},
        {"vllm": ("NONE", "FULL_AND_PIECEWISE"), "sglang": (True, False)},
    ),
    "attention": Dimension(
        "the attention backend",
        "setting",
        {
            "hf": "attention",
            "vllm": "attention-backend",
            "sglang": "attention-backend",
            "llama.cpp": "flash_attn",
        },
        {"hf": ("sdpa", "eager"), "llama.cpp": ("off", "on")},
    ),
    "padding_side": Dimension(
        "where shorter prompts of a batch are padded",
        "setting",
        {"hf": "padding_side"},
        {"hf": ("left", "right")},
        _SHAPE_BESIDE,
    ),
    "tensor_parallel": Dimension(
        "tensor-parallel size",
        "setting",
        {"vllm": "tensor-parallel-size", "sglang": "tp-size"},
        {ALL: (1, 2)},
    ),
    "pipeline_parallel": Dimension(
        "pipeline-parallel size",
        "setting",
        {"vllm": "pipeline-parallel-size", "sglang": "pp-size"},
        {ALL: (1, 2)},
    ),
    "data_parallel": Dimension(
        "data-parallel size", "setting", {"vllm": "data-parallel-size", "sglang": "dp-size"}, {ALL: (1, 2)}
    ),
    "speculative": Dimension(
        "speculative decoding: the engine's configuration, or empty for none",
        "setting",
        {"vllm": "speculative-config"},
        {"vllm": ("", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}')},
    ),
    "dtype": Dimension(
        "dtype of weights and activations",
        "setting",
        {"hf": "dtype", "vllm": "dtype", "sglang": "dtype"},
        {ALL: ("float32", "bfloat16")},
    ),
    "quantization": Dimension(
        "quantization of the weights", "setting", {"vllm": "quantization", "sglang": "quantization"}
    ),
    "threads": Dimension(
        "threads of one operation",
        "setting",
        {
            "hf": "threads",
            "vllm": "env.OMP_NUM_THREADS",
            "sglang": "env.OMP_NUM_THREADS",
            "llama.cpp": "threads",
        },
        {ALL: (1, 2)},
    ),
    "isa": Dimension(
        "CPU instruction set level of torch; empty: as the CPU has it",
        "setting",
        {"hf": "env.ATEN_CPU_CAPABILITY", "vllm": "env.ATEN_CPU_CAPABILITY"},
        {ALL: ("", "default")},
    ),
    "deterministic": Dimension(
        "the engine's deterministic mode",
        "setting",
        {
            "hf": "deterministic",
            "vllm": "env.VLLM_BATCH_INVARIANT",
            "sglang": "enable-deterministic-inference",
        },
        {"hf": ("false", "true"), "vllm": ("0", "1"), "sglang": (False, True)},
    ),
    "version": Dimension("engine version: the interpreter of each", "field", {ALL: "python"}),
    "model": Dimension("model revision: the folder of each", "field", {ALL: "model"}),
    "lane": Dimension("two lanes of the plan side by side", "lane"),
}
"""Name → dimension."""

ANY_SETTING = "set:"
"""Begins the name of a dimension that is a setting of the lane, whatever it is: `set:NAME`."""


def find_dimension(name: str) -> Dimension:
    """A dimension of the table, or any setting: `set:NAME`.

    Raises:
        BadInput: There is none of that name.
    """
    setting = name.removeprefix(ANY_SETTING)
    if setting != name and setting:
        return Dimension(f"the setting {setting}", "setting", {ALL: setting})
    found = DIMENSIONS.get(name)
    if found is None:
        raise BadInput(
            f"there is no dimension {name!r}",
            f"choose one of: {', '.join(DIMENSIONS)}, or {ANY_SETTING}NAME for any setting of the engine",
        )
    return found
