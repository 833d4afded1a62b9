"""Requests in the text logs of engines become envelopes."""

from __future__ import annotations

from pathlib import Path

import pytest
from rip.replay.proxy.imported import Imported, import_files
from rip.schemas.errors import BadInput

_PARAMS = (
    "SamplingParams(n=1, temperature=0.5, top_k=-1, seed=7, stop=['a, b'], max_tokens=9, "
    "output_kind=<K.D: 1>)"
)


def imported(tmp_path: Path, text: str) -> Imported:
    path = tmp_path / "engine.log"
    path.write_text(text)
    return import_files([path], "auto", {}, lambda name: False)


@pytest.mark.parametrize("prefix", ["", "Mar 04 10:00:01 host vllm[7]: ", "(APIServer pid=3) "])
def test_vllms_request_log_becomes_envelopes(tmp_path: Path, prefix: str) -> None:
    begin = f"{prefix}INFO 03-04 10:00:00 [logger.py:39] "
    found = imported(
        tmp_path,
        f"{begin}Starting vLLM\n"
        f"{begin}Received request cmpl-1: prompt: 'it\\'s, params: \\n', params: {_PARAMS}, "
        "prompt_token_ids: [5, 6], lora_request: None.\n"
        f'{begin}Received request cmpl-2: prompt: "Hi", params: {_PARAMS}, prompt_token_ids: None, '
        "lora_request: None, prompt_adapter_request: None.\nTraceback of something\n",
    )
    first, second = found.envelopes
    assert (first.request_id, first.prompt_token_ids) == ("cmpl-1", [5, 6])
    assert (second.request_id, second.prompt_text) == ("cmpl-2", "Hi")
    for envelope in (first, second):
        stated = envelope.sampling
        assert (stated.temperature, stated.seed, stated.max_tokens, stated.top_k) == (0.5, 7, 9, None)
        assert stated.stop == ["a, b"]


def test_newer_vllm_states_prompt_and_parameters_on_two_lines(tmp_path: Path) -> None:
    begin = "DEBUG 03-04 10:00:00 [logger.py:39] "
    found = imported(
        tmp_path,
        f"{begin}Request chatcmpl-1 details: prompt: 'Hi', prompt_token_ids: [1, 2], "
        "prompt_embeds shape: None.\n"
        f"INFO 03-04 10:00:00 [logger.py:40] Received request chatcmpl-1: params: {_PARAMS}, "
        "lora_request: None.\n",
    )
    [envelope] = found.envelopes
    assert (envelope.prompt_token_ids, envelope.sampling.max_tokens) == ([1, 2], 9)


def test_text_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not JSON"):
        imported(tmp_path, "Received request a: prompt: 'x'\n")


def test_sglangs_json_log_is_read_behind_its_time(tmp_path: Path) -> None:
    event = (
        '{"event": "request.finished", "obj": {"rid": "a1", "text": "Hi", "sampling_params": {}}, "out": {}}'
    )
    check = event.replace('{"event"', '{"rid": "HEALTH_CHECK_1", "event"').replace('"a1"', '"HEALTH_CHECK_1"')
    log = ["server_args=ServerArgs(model_path='x')", event, check]
    found = imported(tmp_path, "".join(f"[2025-03-04 10:00:01 TP0] {line}\n" for line in log))
    assert [(one.request_id, one.prompt_text) for one in found.envelopes] == [("a1", "Hi")]


def test_a_grammar_in_sglangs_log_is_part_of_the_request(tmp_path: Path) -> None:
    params = '{"regex": "[0-9]+", "json_schema": null, "temperature": 0}'
    event = f'{{"event": "request.finished", "obj": {{"rid": "a", "text": "Hi", "sampling_params": {params}, '
    found = imported(tmp_path, f'[2025-03-04 10:00:01] {event}"extra_key": "k1"}}, "out": {{}}}}\n')
    [one] = found.envelopes
    assert one.sampling.structured_outputs == {"regex": "[0-9]+"}
    assert one.request == {"extra_key": "k1"}
