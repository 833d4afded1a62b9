"""Pickle files read as data: what SGLang dumps comes out, and nothing in a file is ever imported or run."""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rip.replay.proxy.plain_pickle import Named, UncalledObject, read_pickle
from rip.replay.proxy.sglang_dump import envelopes_of, read_dump
from rip.schemas.envelope import Envelope
from rip.schemas.errors import BadInput
from rip.schemas.redact import is_secret

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@dataclass
class GenerateReqInput:
    """Named as SGLang's, with some of its fields."""

    rid: str = "rid-1"
    text: Any = None
    input_ids: Any = None
    sampling_params: Any = field(default_factory=dict)
    return_logprob: Any = None
    top_logprobs_num: Any = None
    stream: bool = False
    session_params: Any = None


@dataclass
class ServerArgs:
    """Named as SGLang's."""

    model_path: str = "org/model"
    tp_size: int = 2
    attention_backend: str = "fa3"
    dtype: str = "auto"
    api_key: str = "sk-the-key-of-the-server"


@given(VALUES, st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    if protocol < 3:
        value = without_bytes(value)  # older protocols write bytes as a call
    assert read_pickle(pickle.dumps(value, protocol), "x") == value


def without_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_bytes(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(without_bytes, value))
    return len(value) if isinstance(value, bytes) else value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_become_their_name_and_fields(protocol: int) -> None:
    shared = [1, 2]
    made = read_pickle(pickle.dumps([GenerateReqInput(input_ids=shared), deque(shared)], protocol), "x")
    assert isinstance(made[0], UncalledObject)
    assert made[0].maker.endswith(".GenerateReqInput")
    assert made[0].fields()["input_ids"] == [1, 2]
    assert isinstance(made[1], UncalledObject)


class Hostile:
    """What a pickle can do to who unpickles it."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.target}",))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hostile_file_is_read_as_harmless_data(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "owned"
    content = pickle.dumps({"requests": [(Hostile(target), {}, 1.0, 2.0)]}, protocol)
    found = read_pickle(content, "x")
    made = found["requests"][0][0]
    assert isinstance(made, UncalledObject)
    assert made.maker.endswith(".system")
    assert list(read_dump(content, "x")) == [], "it is no request"
    assert not target.exists()
    pickle.loads(content)
    assert target.exists(), "the negative control: unpickling it does harm"


def test_naming_a_module_does_not_import_it() -> None:
    content = b"\x80\x04\x8c\x04this\x8c\x01s\x93."
    assert read_pickle(content, "x") == Named("this.s")
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x80\x04Pid\n.", "PERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x04]", "no end|not a whole"),
        (b"\x80\x04e.", "not a whole"),
        (b"\x80\x04K\x01K\x02a.", "not a whole"),
        (b"\x80\x04h\x05.", "not a whole"),
        (b"\x80\x04(.", "not a whole"),
        (b"\x80\x04}]K\x01s.", "not a whole"),
        (b"", "not a whole"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.", "not a whole|no end"),
    ],
)
def test_broken_and_odd_files_are_refused_with_their_name(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        read_pickle(content, "dump.pkl")
    assert caught.value.message.startswith("dump.pkl")


@given(st.binary(max_size=80))
def test_no_file_does_anything_but_give_data_or_an_error(content: bytes) -> None:
    try:
        read_pickle(b"\x80\x04" + content, "x")
    except BadInput:
        return


def test_endless_data_is_refused() -> None:
    """A list that holds itself, and ten levels of ten references to one list."""
    loop: list[Any] = []
    loop.append(loop)
    many: Any = ["x"]
    for _ in range(10):
        many = [many] * 10
    for params in ({"a": loop}, {"a": many}):
        content = pickle.dumps([(GenerateReqInput(text="a", sampling_params=params), {}, 1.0, 2.0)])
        with pytest.raises(BadInput, match="deep, or endless"):
            list(read_dump(content, "x"))


def exchange(**request: Any) -> tuple[GenerateReqInput, dict[str, Any], float, float]:
    steps = [[-0.5, 11, None], [-1.5, 12, None]]
    meta = {
        "id": "rid-1",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "output_token_logprobs": [tuple(step) for step in steps],
    }
    output = {"text": "so blue", "output_ids": [11, 12], "meta_info": meta}
    return GenerateReqInput(**request), output, 1_796_000_000.0, 1_796_000_002.5


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", ["table", "list"])
def test_a_dump_becomes_envelopes(protocol: int, form: str) -> None:
    params = {"temperature": 0.5, "max_new_tokens": 2, "sampling_seed": 42, "stop": None, "regex": "a+"}
    one = exchange(
        input_ids=[5, 6, 7], sampling_params=params, return_logprob=True, top_logprobs_num=4, stream=True
    )
    unfinished = (GenerateReqInput(rid="rid-2", text="still running"), {}, 1_796_000_001.0, 1_796_000_002.0)
    requests = [one, unfinished]
    dump: Any = {"server_args": ServerArgs(), "requests": requests} if form == "table" else requests
    made = [
        Envelope.from_object(raw, "x")
        for found in read_dump(pickle.dumps(dump, protocol), "dump.pkl")
        for raw in envelopes_of(found, {}, is_secret)
    ]
    first, second = made
    assert (first.request_id, first.prompt_token_ids, first.logprobs) == ("rid-1", [5, 6, 7], 4)
    stated = first.sampling.model_dump(exclude_none=True)
    grammar = {"structured_outputs": {"regex": "a+"}}
    assert stated == {"temperature": 0.5, "max_tokens": 2, "seed": 42, **grammar}
    assert first.request == {"stream": True}
    assert first.expected is not None
    assert (first.expected.token_ids, first.expected.logprobs) == ([11, 12], [-0.5, -1.5])
    assert (first.expected.text, first.expected.finish_reason) == ("so blue", "length")
    assert first.context is not None
    assert (first.context.cached_tokens, first.context.latency_ms) == (1, 2500)
    assert first.runtime.engine == "sglang"
    if form == "table":
        assert (first.runtime.tensor_parallel_size, first.runtime.attention_backend) == (2, "fa3")
    assert "sk-the-key" not in first.to_json()
    assert second.expected is None
    assert second.prompt_text == "still running"


def test_a_request_without_a_prompt_is_named() -> None:
    (found,) = read_dump(pickle.dumps([exchange(text=["a", "b"])]), "dump.pkl")
    with pytest.raises(BadInput, match=r"dump\.pkl: request 0"):
        list(envelopes_of(found, {}, is_secret))


def test_another_pickle_is_no_dump() -> None:
    with pytest.raises(BadInput, match="not of SGLang requests"):
        list(read_dump(pickle.dumps({"weights": [1]}), "dump.pkl"))
