"""Where a changed field of the fingerprint differs first: of two records only that part is evidence."""

from __future__ import annotations

from ...schemas.change import ABSENT, Change
from ...schemas.findings.execution import FieldChanged


def field_changed(change: Change) -> FieldChanged:
    """One change; of two records only the first part that differs in them."""
    if change.before is None or change.after is None:
        return FieldChanged(
            section=change.section, field=change.field, before=change.before_text, after=change.after_text
        )
    a, b = change.before.value, change.after.value
    path: list[str] = []
    others = 0
    while isinstance(a, dict) and isinstance(b, dict) and not others:
        differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        if not differing:
            break
        path.append(differing[0])
        others = len(differing) - 1
        a, b = a.get(differing[0], ABSENT), b.get(differing[0], ABSENT)
    return FieldChanged(
        section=change.section,
        field=change.field,
        path=path,
        before=str(a) if path else change.before_text,
        after=str(b) if path else change.after_text,
        others=others,
    )
