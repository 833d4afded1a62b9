"""What the first screen of a result holds. Texts are plain: whoever shows them escapes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["differs", "moved", "equal", "unknown"]
"""Of the answers. `moved`: they are equal, and numbers behind them are not."""
Decided = Literal["open", "confirmed", "refuted", "not decided"]
MARKS: dict[State, str] = {"differs": "✗", "moved": "≈", "equal": "✓", "unknown": "?"}
LEVEL_MARKS = {"holds": "✓", "fails": "✗"}
"""Any other state: a dash."""


@dataclass(frozen=True)
class Course:
    """How the drift goes through the model: one number a site, in execution order."""

    drifts: tuple[float | None, ...]
    """Median relative drift of a site's differing rows; 0: equal, inf: not finite, None: not observed."""
    end: str
    """What it shows, in two words; empty where a row of its own says it."""


NO_COURSE = Course((), "")
"""No site was compared."""


@dataclass(frozen=True)
class Row:
    """One row of the screen."""

    name: str
    """`cause`; empty: it goes on with the row above."""
    text: str
    aside: str = ""
    """What stands beside it: a judgement, a size."""
    command: bool = False
    """The text is a command: it is shown as one, and never broken."""
    course: Course | None = None
    decided: Decided = "open"
    """Of a cause: what an experiment decided."""


@dataclass(frozen=True)
class FirstScreen:
    """The answer of a comparison, as short as it can be said."""

    state: State
    headline: str
    tokens: tuple[str, str] | None
    """What the first different choice was in A and in B, quoted; None: no token was chosen differently."""
    prompt: str
    """First words of the prompt of the request that the headline names; empty: not known."""
    rows: tuple[Row, ...]
    levels: tuple[tuple[str, str], ...]
    """Level and state."""
    safe: str
    """`safe under: token`."""
    judged: str
    """Whether the drift is rounding or a regression; empty: there is none."""
    next: tuple[Row, ...]
    """What to do now."""
