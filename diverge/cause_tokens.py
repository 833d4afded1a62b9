"""Causes that the tokens, the sampler and the model itself show."""

from __future__ import annotations

from .evidence import Evidence
from .finding import Confidence, Finding

_OF_DRAWS = ("top_p", "top_k", "min_p", "seed", "seed_scope")
"""Sampling fields that change nothing where the likeliest token is always taken."""


def prompt(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is not None or e.ended:
        return None
    evidence = [
        f"the prompts part at position {token.position}: token {token.token_a} in A, {token.token_b} in B"
    ]
    changed = e.changed("tokenizer", "template")
    evidence += [f"changed in the fingerprint: {name}" for name in changed]
    missing = (
        []
        if changed or e.has_fingerprints
        else ["no fingerprint in one of the traces, so tokenizer and template are unknown"]
    )
    return Finding(evidence, "high", missing, e.query_differing_tokens(), direct=True)


def length(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or not e.ended:
        return None
    evidence = [f"{e.ended} ends before position {token.position}; up to there all tokens are equal"]
    stops = [
        line
        for line in e.sampling_differences
        if line.startswith(("max_tokens", "stop", "ignore_eos", "min_tokens"))
    ]
    evidence += stops
    missing = [] if stops else ["the stop rules read the same in both traces: finish reasons would tell"]
    return Finding(evidence, "high", missing, e.replay(), direct=True)


def nonfinite(e: Evidence) -> Finding | None:
    if not e.nonfinite:
        return None
    return Finding(e.nonfinite, "high", confirm=e.query_norms(), direct=True)


def sampling(e: Evidence) -> Finding | None:
    in_answer = e.first_token.step is not None if e.first_token else e.first_text is not None
    differences = e.sampling_differences
    if e.greedy:
        differences = [line for line in differences if line.partition(":")[0] not in _OF_DRAWS]
    if not differences or not in_answer:
        return None
    if e.logits_equal:
        return Finding([*differences, "the deciding logits are equal"], "high", [], e.replay(), direct=True)
    missing = [] if e.logits_equal is not None else ["no logits hash of the deciding row in both traces"]
    return Finding(differences, "medium", missing, e.replay())


def no_seed(e: Evidence) -> Finding | None:
    """The answers differ, and an engine was not told with which draws to choose them."""
    in_answer = e.first_token.step is not None if e.first_token else e.first_text is not None
    if not e.without_seed or not in_answer:
        return None
    evidence = [f"{side}, takes no seed: its draws cannot be repeated" for side in e.without_seed]
    if e.greedy:
        evidence.append(
            "the requests were decoded greedily, so draws matter only if the provider ignores that"
        )
    return Finding(evidence, "low" if e.greedy else "high", confirm=e.replay(repeat=8), direct=not e.greedy)


def sampler(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is None or e.ended or not e.logits_equal:
        return None
    evidence = [
        f"the logits that chose step {token.step} are bit-identical, the chosen tokens are "
        f"{token.token_a} in A and {token.token_b} in B"
    ]
    drawn = [side.sampler for side in e.deciding] if e.deciding else [None, None]
    missing = []
    if drawn[0] and drawn[1]:
        for name, word in (
            ("draw", "uniform draw"),
            ("rng_offset", "draws before it"),
            ("top1_id", "processed top-1"),
        ):
            if drawn[0].get(name) != drawn[1].get(name):
                evidence.append(f"{word}: {drawn[0].get(name)} in A, {drawn[1].get(name)} in B")
    else:
        missing.append("the sampler's draws were not recorded on both sides")
    return Finding(evidence, "high", missing, e.replay(repeat=3), direct=True)


def near_tie(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is None or e.ended or e.logits_equal:
        return None
    margins = [margin for margin in (token.margin_a, token.margin_b) if margin is not None]
    drift, kind = token.max_abs_logit_diff, "logits"
    if drift is None:
        drift, kind = token.max_abs_logprob_diff, "logprobs"
    if len(margins) < 2 or not drift or min(margins) > drift:
        return None
    evidence = [
        f"margins {token.margin_a:.4g} in A and {token.margin_b:.4g} in B, drift of the {kind} at that step "
        f"{drift:.4g}: the drift alone is enough for the flip"
    ]
    if not e.greedy:
        evidence.append("the tokens were sampled, so the draw decides together with the margin")
    confidence: Confidence = "high" if e.greedy and max(margins) <= drift else "medium"
    return Finding(evidence, confidence, confirm=e.replay("golden-decode"))


def weights(e: Evidence) -> Finding | None:
    changed = e.changed_fields("model", ("sha256", "weights", "tensors"))
    if not changed or not e.differs:
        return None
    return Finding(
        [f"changed in the fingerprint: {name}" for name in changed], "high", confirm=e.drift(), direct=True
    )


def unexplained(e: Evidence) -> Finding | None:
    site = e.first_site
    if site is None or not site.is_origin or e.setting_differences or e.circumstances or e.shapes_differ:
        return None
    evidence = [
        f"{e.first_place} is an origin: its inputs, execution shape and recorded settings are equal, "
        "its output is not",
        "what remains is the module itself (its weights, its kernel) or a run that does not repeat itself",
    ]
    if site.position == 0:
        evidence.append("it differs from the very first position on, as changed weights do")
    missing = (
        []
        if e.has_fingerprints
        else ["no fingerprint in one of the traces, so changed weights cannot be excluded"]
    )
    return Finding(evidence, "medium", missing, e.replay(repeat=3))
