"""A recorded request under the attribute names of OpenTelemetry's GenAI semantic conventions.

Only what the envelope states: a default that an engine filled in was not requested. The trace has those.
"""

from __future__ import annotations

from typing import Any

from ...schemas.envelope import Envelope


def attributes(envelope: Envelope) -> dict[str, Any]:
    """Attribute name → value of one request, and of the response that was recorded with it."""
    sampling = envelope.sampling
    stop = sampling.stop_strings() if sampling else []
    found: dict[str, Any] = {"gen_ai.operation.name": "chat" if envelope.messages else "text_completion"}
    if sampling is not None:
        found |= {
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.stop_sequences": stop or None,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.choice.count": sampling.n,
        }
    model = (envelope.model_extra or {}).get("model")
    found["gen_ai.request.model"] = model if isinstance(model, str) else None
    if envelope.expected is not None and envelope.expected.finish_reason is not None:
        found["gen_ai.response.finish_reasons"] = [envelope.expected.finish_reason]
    return {name: value for name, value in found.items() if value is not None}
