"""What a first difference is: which kind of module it lies in, and how large it is beside rounding."""

from __future__ import annotations

import re

from ...schemas.trace import SKETCH_SIZE
from ..present.format import plural
from .evidence import Evidence
from .row_pattern import Pattern
from .size import ANOTHER, FEWER_BITS, ROUNDING

_KINDS: tuple[tuple[str, str], ...] = (
    (r":attn$", "the attention"),
    (r"(^|\.)(embed_tokens|wte)$|Embedding$", "the table of embeddings"),
    (r"[Rr]otary|(^|\.)wpe", "the table of positions"),
    (r"Router|(^|\.)gate(:|$)", "the router"),
    (r"Experts|(^|\.)experts$", "the experts"),
    (r"[Nn]orm(\s|$)|(^|\.)ln_", "the norm"),
    (r"lm_head", "the output head"),
    (r"Linear|Conv1D|_proj(\s|$)", "the linear layer"),
    (r"[Aa]ct", "the activation function"),
)
"""What a site is, by its label and the class of its module."""


def kind_of(seen: Pattern) -> str:
    """What kind of module the first difference lies in; empty: none that is known."""
    text = f"{seen.site.label()} {seen.site.module}"
    if seen.site.part == "attn":
        return "the attention"
    name = re.sub(r":\d+$", "", seen.site.label())
    for pattern, kind in _KINDS:
        if re.search(pattern, name) or re.search(pattern, seen.site.module):
            if kind == "the table of embeddings" and re.search(r"wpe|[Rr]otary", text):
                continue
            return kind
    return ""


def what_is_wrong(seen: Pattern) -> str:
    """The module and what is wrong with it, as far as the rows tell: the headline of a cause."""
    kind = kind_of(seen) or "the module"
    name = f"{kind} {label_of(seen)}" if kind != f"the {label_of(seen)}" else f"the module {label_of(seen)}"
    subject = name[0].upper() + name[1:]
    units = seen.in_epsilons
    rounding = units is not None and units <= ROUNDING
    if seen.relation.endswith("signs flipped") and seen.lanes == 1:
        return f"{subject}: the sign of one output channel is flipped"
    if seen.relation:
        row = f"{seen.relation} A's row" if seen.relation.endswith("times") else seen.relation
        return f"{subject}: B's row is {row}"
    if seen.along.constant:
        return f"{subject}: a constant is added or missing, as a bias is"
    if seen.experts:
        numbers = ", ".join(map(str, seen.experts))
        return f"{subject}: only rows of expert{'s' * (len(seen.experts) > 1)} {numbers} differ"
    if 0 < seen.moved.moved <= len(seen.moved.tokens):
        tokens = ", ".join(str(token) for token, _, _ in seen.moved.tokens)
        return f"{subject}: the row{'s' * (seen.moved.moved > 1)} of token {tokens}"
    if seen.lanes == 1:
        within = ", within rounding" if rounding else ""
        return f"{subject}: one output channel is off{within}, as one row of weights or one bias moves it"
    if rounding:
        weights = "" if is_attention(seen) else ", or the last bit of a weight"
        return f"{subject}, within rounding: another kernel or order of its sums{weights}"
    return f"{subject} itself: {_what_remains(seen)}"


def _what_remains(seen: Pattern) -> str:
    """What of a module can be wrong where its inputs are equal and its output is beyond rounding."""
    kind = kind_of(seen)
    if kind == "the attention":
        if seen.position == 0:
            return "its values, heads or kernel: with one key, mask, scale and positions play no part"
        if seen.position == 1:
            return "its scale, mask or positions: the row that sees one key only is equal"
        if seen.equal_before:
            return f"its mask, window or positions: the first {seen.equal_before} rows are equal"
    if is_another(seen) and kind in ("the linear layer", "the output head"):
        return "its weights"
    if is_another(seen) and kind == "the norm":
        return "its weights or its epsilon"
    if kind == "the table of embeddings":
        return f"its row of token {seen.token}"
    return {
        "the attention": "its kernel, mask, scale or positions",
        "the norm": "its weights, its epsilon or the precision it is computed in",
        "the activation function": "another function",
        "": "something that it adds to what its parts compute",
    }.get(kind, "its weights, or the precision they are computed in")


def is_another(seen: Pattern) -> bool:
    """Most of the first differing row is something else: no loss of precision."""
    return seen.drift is not None and seen.drift >= ANOTHER


def label_of(seen: Pattern) -> str:
    """The site of the first difference, for people."""
    return seen.site.label()


def is_attention(seen: Pattern | None) -> bool:
    """The first difference is the output of an attention, before its projection."""
    return seen is not None and seen.site.part == "attn"


def beyond_rounding(seen: Pattern | None) -> bool:
    """The first differing row is farther off than another kernel of the same module leaves it."""
    size = None if seen is None else seen.in_epsilons
    return size is not None and size > ROUNDING


def stands_alone(e: Evidence) -> bool:
    """An origin, and nothing in settings, shapes or environment differs."""
    alone = not (e.setting_differences or e.circumstances or e.shapes_differ)
    return alone and e.first_site is not None and e.first_site.is_origin and not e.nonfinite


def size_of(seen: Pattern) -> list[str]:
    """How large the drift of the module is, with equal inputs."""
    units = seen.in_epsilons
    if units is None or seen.drift is None or seen.relation.endswith(("times", "negative")):
        return []  # what the row is of A's says more than an estimate
    if units <= ROUNDING:
        told = "within rounding, as another kernel, another order of a sum or the last bit of a weight leave"
    elif FEWER_BITS[0] < seen.drift < FEWER_BITS[1] and seen.position == 0 and (seen.lanes or 16) > 1:
        told = (
            "more than rounding in this dtype leaves; fewer bits in the weights or in the computation leave "
            "as much (bfloat16 about 0.002, eight bits about 0.005)"
        )
    elif seen.drift < ANOTHER:
        told = "more than rounding in this dtype leaves"
    else:
        told = "most of the row is something else, so it is no loss of precision"
    if not seen.drift:
        return [f"its drift is below what the sketch resolves, so within rounding of {seen.site.dtype}"]
    count = f"{units:.1e}" if units >= 1e4 else f"{units:,.0f}" if units >= 100 else f"{units:.2g}"
    size = f"{count} unit{'s' * (count != '1')}" if units >= 0.01 else "less than a hundredth"
    return [f"its drift is {seen.drift:.2g}, {size} of the last place of {seen.site.dtype}: {told}"]


def row_of_b(seen: Pattern) -> list[str]:
    """What of the row differs."""
    found = []
    exact = seen.relation in ("the negative", "all zeros") or seen.relation.endswith("times")
    if seen.likeness is not None and not exact and is_another(seen):
        ratio, cosine = seen.likeness
        found.append(
            f"B's row is {ratio:.3g} times as long as A's, the cosine between them about {cosine:.1f}"
        )
    if seen.relation:
        found.append(
            f"B's row is {seen.relation} A's"
            if seen.relation.endswith("times")
            else f"B's row is {seen.relation}"
        )
    if seen.along.constant:
        found.append(
            f"the difference is one and the same vector at all {len(seen.along.far)} positions that differ"
        )
    lanes = seen.lanes_differing
    if lanes is not None and len(lanes) < SKETCH_SIZE // 2:
        if len(lanes) == 1:
            first = ", ".join(str(lanes[0] + k * SKETCH_SIZE) for k in range(3))
            found.append(f"only one output channel differs: one of {first}, and so on")
        else:
            found.append(f"only a few output channels differ, at most {len(lanes)} of {SKETCH_SIZE}")
    if seen.experts:
        experts = f"expert{'s' * (len(seen.experts) > 1)} {' and '.join(map(str, seen.experts))}"
        found.append(f"every differing row went through {experts}, no equal row did")
    return found


def moved_tokens(e: Evidence, seen: Pattern) -> list[str]:
    """Which logits differ, where the output head is all that does."""
    head = seen.moved
    if not head.moved:
        return []
    if head.moved > len(head.tokens):
        return [f"the logits of {head.moved} of {head.common} candidates that both list differ there"]
    texts = e.header_a.token_text
    told = ", ".join(
        f"token {token}{f' {text!r}' if (text := texts.get(str(token))) else ''} from {a:.4g} to {b:.4g}"
        f"{f', {b / a:.4g} times' if a else ''}"
        for token, a, b in head.tokens
    )
    one = head.moved == 1
    return [
        f"of {head.common} candidates that both list, only the logit{'' if one else 's'} of {head.moved} "
        f"differ{'s' if one else ''}: {told}"
    ]


def elsewhere(seen: Pattern) -> list[str]:
    """Where else the site differs or does not."""
    found = []
    if kind_of(seen) == "the table of embeddings":
        again = f", which stands at {plural(len(seen.again), 'later position')} too" if seen.again else ""
        found.append(f"it is looked up by token {seen.token}{again}")
    if seen.equal_before:
        found.append(
            f"its rows at {plural(seen.equal_before, 'earlier position')} are equal"
            if seen.equal_before > 1
            else "its row at the position before is equal"
        )
    if seen.equal_after:
        later = seen.equal_after + seen.differing_after
        told = f"{seen.differing_after} differ and {seen.equal_after} are equal"
        if not seen.differing_after:
            told = "none differs"
        found.append(f"of {plural(later, 'later row')} with equal inputs {told}")
    return found + ([told] if (told := seen.along.told()) else []) + seen.others.told()
