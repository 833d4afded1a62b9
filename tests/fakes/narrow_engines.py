"""An engine whose settings and variables are planted causes of a divergence, for `rip narrow`.

`culprits` names what is needed together (`a+env.B`): settings that are `bad`, variables that are set. `MARK`
names a file: a run that finds it takes it away and sends its parent the signal that it holds. Where `full` is
`bad`, the disk is full as long as there is a file of that name.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from .offline_engines import PlainEngine


class PlantedEngine(PlainEngine):
    """Chooses other tokens where all culprits of one group are there; groups are separated by `/`."""

    def __init__(self, model: str, culprits: str = "", needs: str = "", **settings: str) -> None:
        super().__init__(model)
        self.settings = settings
        one, _, other = needs.partition(">")
        if one and self.is_bad(one) and not self.is_bad(other):
            raise ValueError(f"{one} needs {other}")
        self.is_planted = any(all(map(self.is_bad, group.split("+"))) for group in culprits.split("/"))
        if self.is_bad("full") and Path("full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mark = Path(os.environ.get("MARK", "none"))
        if self.is_bad("marked") and mark.is_file():
            number = signal.Signals[mark.read_text()]
            mark.unlink()
            os.kill(os.getppid(), number)
            signal.pause()

    @classmethod
    def parse_settings(cls, settings: dict[str, str]) -> dict[str, str]:
        return settings

    @property
    def observed(self) -> dict[str, str]:
        return {}

    def is_bad(self, name: str) -> bool:
        return name.removeprefix("env.") in os.environ or self.settings.get(name) == "bad"

    def noises(self, batch: int) -> list[float]:
        return [50.0 if self.is_planted else 0.0] * batch


class FlakyEngine(PlantedEngine):
    """Every second run of it is as if nothing were planted: it counts them in the file `COUNT`."""

    def __init__(self, model: str, **settings: str) -> None:
        super().__init__(model, **settings)
        count = Path(os.environ["COUNT"])
        number = int(count.read_text()) if count.exists() else 0
        count.write_text(str(number + 1))
        self.is_planted = self.is_planted and number % 2 == 0


class RestlessEngine(PlantedEngine):
    """Whatever its settings, every run of it differs from the one before."""

    def __init__(self, model: str, **settings: str) -> None:
        super().__init__(model, **settings)
        count = Path(os.environ["COUNT"])
        self.depth = int(count.read_text()) if count.exists() else 0
        count.write_text(str(self.depth + 1))

    def noises(self, batch: int) -> list[float]:
        return [10.0 * self.depth] * batch
