"""Causes that the sampling contract, the weights and the chosen tokens show."""

from __future__ import annotations

from .describe_module import beyond_rounding, label_of, size_of
from .evidence import Evidence
from .finding import Confidence, Finding
from .routing import is_choice

_OF_DRAWS = ("top_p", "top_k", "min_p", "seed", "seed_scope")
"""Sampling fields that change nothing where the likeliest token is always taken."""
_TENSORS = 6
"""Changed tensors that a sentence names."""


def nonfinite(e: Evidence) -> Finding | None:
    if not e.nonfinite:
        return None
    others = [] if e.seen.pattern is None else e.seen.pattern.others.told()
    site = e.first_site
    there = site is not None and e.nonfinite[0].startswith(f"{site.site} at")
    label = f"Non-finite values, first in {e.first_place}" if there else None
    return Finding([*e.nonfinite, *others], "high", confirm=e.query_norms(), direct=True, label=label)


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


def near_tie(e: Evidence) -> Finding | None:
    token = e.first_token
    if token is None or token.step is None or e.ended or e.logits_equal:
        return None
    seen = e.seen.pattern
    if beyond_rounding(seen) or (seen is not None and is_choice(seen.site)):
        return None  # a drift that is no rounding swaps tokens that are no tie
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
    return Finding(evidence, confidence, confirm=e.replay("golden-decode"), of_choice=True)


def weights(e: Evidence) -> Finding | None:
    changed = e.changed_fields("model", ("sha256", "weights", "tensors"))
    if not changed or not e.differs:
        return None
    evidence = [f"changed in the fingerprint: {name}" for name in changed]
    tensors = e.changed_tensors
    if tensors:
        more = f" and {len(tensors) - _TENSORS} more" if len(tensors) > _TENSORS else ""
        evidence.append(f"tensors that changed: {', '.join(tensors[:_TENSORS])}{more}")
    site = e.first_site
    # GPT-2's checkpoints call their layers h.
    paths = () if site is None else (f".{site.site}.", f".{site.site.replace('layers.', 'h.', 1)}.")
    own = [name for name in tensors if any(path in f".{name}" for path in paths)]
    if own:
        evidence.append(f"{own[0]} belongs to the module where the difference begins: {e.first_place}")
    return Finding(evidence, "high", confirm=e.drift(), direct=True)


def config(e: Evidence) -> Finding | None:
    """The model's configuration differs, and its weights do not."""
    changed = e.changed_fields("model", ("config_sha256",))
    if not changed or not e.differs or weights(e) is not None:
        return None
    evidence = [
        "config.json differs while the weights are the same: an epsilon, a base of the positions, a scale, …",
        *(f"changed in the fingerprint: {name}" for name in changed),
    ]
    seen, site = e.seen.pattern, e.first_site
    if site is not None:
        evidence.append(f"the difference begins at {e.first_place}")
    if seen is not None:
        evidence += size_of(seen)
    label = None if seen is None else f"The model's configuration differs, and acts first in {label_of(seen)}"
    found: Confidence = "high" if site is not None and site.is_origin else "medium"
    return Finding(evidence, found, confirm=e.drift(), direct=True, label=label)
