"""What a client stated beside prompt and sampling, under its own names: what constrains its answer, what
shapes its prompt, what changes nothing.

An engine that sends prompt token ids sends no body of the client: a constraint reaches it as
`sampling.structured_outputs`, or the request is refused. Anything else that may change an answer is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...schemas.envelope import Envelope
from ...schemas.errors import BadInput

_GRAMMARS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""Field of earlier vLLM or of SGLang's chat API → kind of structured output, as envelopes call it."""

_OR_FORCE = "force the recorded tokens with a golden mode"
RESPONSE_FORMAT, TOOL_CHOICE = "response_format", "tool_choice"

TEMPLATE_FIELDS = ("chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message")
"""What a chat template gets beside messages and tools."""

_WITHOUT_EFFECT = frozenset(
    {
        # Names, accounting, priority.
        "model", "user", "metadata", "store", "service_tier", "safety_identifier", "priority", "rid",
        "request_id", "prompt_cache_key", "prompt_cache_retention", "cache_salt", "extra_key", "session_id",
        "session_params",
        # How the answer is returned.
        "stream", "stream_options", "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs",
        "logprobs", "top_logprobs", "return_logprob", "logprob_start_len", "top_logprobs_num",
        "return_text_in_logprobs", "return_hidden_states", "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output", "no_stop_trim", "detokenize", "include_reasoning", "separate_reasoning",
        "stream_reasoning", "parallel_tool_calls", "echo", "log_metrics", "vllm_xargs",
        "kv_transfer_params", "n_probs", "return_tokens",
    }
)  # fmt: skip
"""Fields that change no token of an answer."""

_SHAPE_THE_PROMPT = frozenset(
    {
        "chat_template",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "reasoning_effort",
        "mm_processor_kwargs",
    }
)
"""Fields whose work is done where the token ids of the prompt are known."""


def structured_output(envelope: Envelope) -> tuple[str, dict[str, Any]] | None:
    """The constraint on the answer that a client stated: the field that it stands in, and the constraint as
    `sampling.structured_outputs` holds it; None: there is none, or the sampling states it already.

    Raises:
        BadInput: It has a form that no API has.
    """
    request = envelope.request or {}
    if envelope.sampling.structured_outputs:
        return None
    for name, kind in _GRAMMARS.items():
        if request.get(name):
            return name, {kind: _as_text(request[name]) if kind == "structural_tag" else request[name]}
    form = request.get(RESPONSE_FORMAT)
    if not form or form == {"type": "text"}:
        return None
    form_type = form.get("type") if isinstance(form, dict) else None
    if form_type == "json_object":
        return RESPONSE_FORMAT, {"json_object": True}
    if form_type == "json_schema":
        holder = form.get("json_schema")
        schema = holder.get("schema", holder.get("json_schema")) if isinstance(holder, dict) else None
        if schema is not None:
            return RESPONSE_FORMAT, {"json": schema}
    if form_type == "structural_tag":
        return RESPONSE_FORMAT, {"structural_tag": _as_text(form)}
    raise BadInput(
        f"request.{RESPONSE_FORMAT} has a form that is not known: {_as_text(form)[:80]}",
        "correct it, or replay through the OpenAI API (--engine openai), which sends it as it is",
    )


def forced_tool(envelope: Envelope) -> str | None:
    """The tool call that a client forced: `required`, or the name of the tool; None: the model may choose."""
    stated = (envelope.request or {}).get(TOOL_CHOICE)
    if isinstance(stated, dict):
        function = stated.get("function")
        return str(function.get("name") if isinstance(function, dict) else stated.get("name", "required"))
    return None if stated in (None, "auto", "none") else str(stated)


def check_honoured(envelope: Envelope, grammars: bool) -> None:
    """Refuse a request whose answer this engine could not constrain as the client stated.

    Args:
        grammars: The engine supports `sampling.structured_outputs`.

    Raises:
        BadInput: It forces a tool call, or states a grammar that the engine cannot keep to.
    """
    if (tool := forced_tool(envelope)) is not None:
        raise BadInput(
            f"request.{TOOL_CHOICE} forces a tool call ({tool}), which this engine does not support",
            f"replay through the server's OpenAI API (--engine openai), or {_OR_FORCE}",
        )
    if not grammars and (stated := structured_output(envelope)) is not None:
        raise BadInput(
            f"request.{stated[0]} constrains the answer, which this engine does not support",
            f"replay on vLLM or SGLang, through an OpenAI API (--engine openai), or {_OR_FORCE}",
        )


def template_arguments(envelope: Envelope) -> dict[str, Any]:
    """What a client gave the chat template beside messages and tools."""
    request = envelope.request or {}
    return {name: request[name] for name in TEMPLATE_FIELDS if name in request}


def unsent_fields(envelope: Envelope) -> Mapping[str, Any]:
    """Fields that may change the answer and are in no request of rip's own: name → value as it was stated."""
    known = {*_GRAMMARS, RESPONSE_FORMAT, TOOL_CHOICE, *TEMPLATE_FIELDS, *_WITHOUT_EFFECT}
    if envelope.prompt_token_ids is not None:
        known |= _SHAPE_THE_PROMPT
    return {name: value for name, value in (envelope.request or {}).items() if name not in known}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
