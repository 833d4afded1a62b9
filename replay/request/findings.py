"""Findings of a replay, what a reader of the trace should know: kind and data, and their sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...schemas.trace import Finding, ObserverCheck, ObserverReason

_SHORT_DIGEST = 12
"""Hex digits of a digest that a sentence shows; the trace keeps it whole."""


def _unstated_identity(data: Mapping[str, Any]) -> str:
    every = data["requests"]
    fields = [
        name if count == every else f"{name} ({count} of {every})" for name, count in data["fields"].items()
    ]
    return f"not checked, because the envelope does not state it: {', '.join(fields)}"


def _unchecked_identity(data: Mapping[str, Any]) -> str:
    reasons = "; ".join(dict.fromkeys(data["fields"].values()))
    return f"could not be checked: {', '.join(data['fields'])} ({reasons})"


def differing_identity(fields: Mapping[str, Mapping[str, str]]) -> str:
    """What has changed since a request was recorded: `a different model (7ef915c9a1b2…, here d8053ca0…)`."""
    return ", ".join(
        f"a different {noun} ({short_digest(both['recorded'])}, here {short_digest(both['here'])})"
        for noun, both in fields.items()
    )


def _runtime(data: Mapping[str, Any]) -> str:
    recorded = ", ".join(f"{name}={value}" for name, value in data["recorded"].items())
    here = ", ".join("unknown" if value is None else str(value) for value in data["here"].values())
    return f"recorded with {recorded}; here {here}"


def _defaults(data: Mapping[str, Any]) -> str:
    applied = []
    for source, values in data["applied"].items():
        stated = (name if value is None else f"{name}={value}" for name, value in values.items())
        applied.append(f"{', '.join(stated)} ({source})")
    return f"the envelope does not state these fields, so defaults applied: {'; '.join(applied)}"


def _not_sent(data: Mapping[str, Any]) -> str:
    stated = ", ".join(f"{name}={value}" for name, value in data["fields"].items())
    return f"stated in the request, not sent to this engine, and may change the answer: {stated}"


def _differing_hash(data: Mapping[str, Any]) -> str:
    recorded, here = short_digest(data["recorded"]), short_digest(data["here"])
    return f"different {data['noun']}: {data['field']} is {recorded}, here {here}"


SENTENCES: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    # The request, and the environment it was recorded in.
    "identity-unstated": _unstated_identity,
    "identity-unchecked": _unchecked_identity,
    "identity-drift": lambda data: f"drift allowed: recorded with {differing_identity(data['fields'])}",
    "runtime-differs": _runtime,
    "sampling-invalid": "{field} was stated as {value}, which is not valid: it does not apply",
    "sampling-defaults": _defaults,
    "fields-not-sent": _not_sent,
    "fields-redacted": "what else the client stated was redacted: a response_format or a tool_choice among "
    "it does not apply here",
    "not-repeatable": "recorded above temperature 0 without a seed: the same answer is not expected",
    "unknown-fields": "fields that this version of rip does not know were kept: {fields}",
    "tokenized-here": "the prompt was tokenized here; the envelope has no token ids",
    # What `rip envelope check` finds before any replay.
    "identity-missing": "{fields} not stated",
    "identity-differs": _differing_hash,
    "token-ids-missing": "no prompt_token_ids: a tokenizer or template change cannot be told from a numeric "
    "difference",
    "sampling-not-valid": "{field} was stated as {value}, which is not valid: the engine's default will "
    "apply",
    "sampling-missing": "sampling does not state {fields}: defaults of the engine will apply",
    "sampling-redacted": "sampling was redacted: {fields}",
    "nothing-to-generate": "max_tokens is 0: there is nothing to generate",
    "runtime-placeholders": "runtime placeholders not filled in: {fields}",
    "refused": "{error}",
    # The engine, and how it was opened.
    "setting-without-effect": "--set {name}={requested} had no effect: the engine reports {observed}",
    "started-eager": "the server was started with --enforce-eager, so that its modules can be observed: this "
    "trace does not show what only compiled code or CUDA graphs do",
    "rip-not-installed": "rip is not installed in the environment of {python}, so no site of vLLM was "
    "observed: {python} -m pip install rip-forensics",
    "fewer-slots": "the server has {slots} slots, so at most {slots} of a batch of {batch_size} run together",
    "seed-without-effect": "the server runs without --enable-deterministic-inference: seeds have no effect",
    "seed-unsupported": "{engine} does not support seeds: every run draws different tokens",
    "taps": "{text}",
    # One answer.
    "prefix-cached": "{tokens} prompt tokens came from the server's prefix cache",
    "prompt-truncated": "the server truncated the prompt to fit its context",
    "reasoning-not-compared": "the model's reasoning is not part of the text that is compared",
    "no-system-fingerprint": "the server does not return a system_fingerprint, so a changed backend cannot "
    "be seen: use several samples (--repeat)",
    "not-streamed": "the answer was not streamed, so the times of its tokens are not known: without "
    "--incremental-streaming-output every event of a stream repeats all earlier ones",
    "logprobs-after-temperature": "the log-probabilities are those after the temperature, unless the server "
    "runs with SGLANG_RETURN_ORIGINAL_LOGPROB",
    "cold-cache-without-effect": "cache=cold had no effect: this SGLang does not support extra_key; start it "
    "with --disable-radix-cache",
}
"""Kind of a finding → its sentence: a template for its data, or what makes one of it."""


def finding(kind: str, **data: Any) -> Finding:
    """A finding about a request or the whole run.

    Raises:
        KeyError: No such kind.
    """
    assert kind in SENTENCES, kind
    return Finding(kind=kind, data=data)


def sentence(found: Finding) -> str:
    """A finding for people, with the requests that it is about: `req-1 and 7 more: …`."""
    form = SENTENCES[found.kind]
    text = (
        form(found.data) if callable(form) else form.format(**{k: _shown(v) for k, v in found.data.items()})
    )
    return f"{_requests(found.requests)}{text}"


_OBSERVER_REASONS: dict[ObserverReason, str] = {
    "no sites captured": "no sites were captured",
    "run failed": "the run without taps failed: {error}",
    "no logits": "the engine does not return logits or log-probabilities",
    "own loop": "rip cannot run a program's own loop again with its taps off",
    "requests not sent": "rip did not send these requests, so it cannot repeat them",
    "changed": "observing changed the logits, or the engine is not deterministic: check with --repeat 2",
}


def observer_in_words(check: ObserverCheck) -> ObserverCheck:
    """An observer check with its sentences beside its data, as a trace holds it."""
    compared = ""
    if check.requests:
        first, more = check.requests[0], len(check.requests) - 1
        compared = (
            f"{check.of} of {check.rows} rows of {first}"
            + (f" and {more} more" if more else "")
            + (" alone" if check.alone else "")
            + ", taps on and off"
        )
    why = None if check.reason is None else _OBSERVER_REASONS[check.reason].format(error=check.error)
    return check.model_copy(update={"compared": compared, "why": why})


class Findings:
    """Gathers findings; one that is about several requests stands once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, found: Finding, request_id: str | None = None) -> None:
        """Add a finding. Without a request id it is about the whole run."""
        key = (found.kind, json.dumps(found.data, sort_keys=True, default=str))
        known = self._found.setdefault(key, found)
        if request_id is not None:
            self._found[key] = known.model_copy(update={"requests": [*known.requests, request_id]})

    def extend(self, found: Iterable[Finding], request_id: str | None = None) -> None:
        """Add several."""
        for one in found:
            self.add(one, request_id)

    def all(self) -> list[Finding]:
        """Every finding once, in the order in which they were made."""
        return list(self._found.values())


def short_digest(digest: object) -> str:
    """Enough of a digest to tell two apart."""
    text = str(digest)
    return f"{text[:_SHORT_DIGEST]}…" if len(text) == 64 else text


def _shown(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _requests(ids: list[str]) -> str:
    if not ids:
        return ""
    return f"{ids[0]}: " if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more: "
