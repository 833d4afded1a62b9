"""What the header of a tapped program's trace says: its requests, its model, and what was not seen.

It makes the sequences too, because their names and prompts come from the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ... import __version__
from ...schemas.envelope import Envelope, Runtime
from ...schemas.errors import BadInput
from ...schemas.fingerprint import Fingerprint
from ...schemas.lane import OWN_PROGRAM, Lane, Setting
from ...schemas.trace import ObserverCheck, Request, TraceHeader
from ..capture.modules import sentence_about
from ..capture.taps import Taps
from ..request.findings import observer_in_words
from ..row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from ..row_summaries.rows import Rows
from .fed_sequences import FedSequence

Prompt = torch.Tensor | Sequence[int] | Sequence[Sequence[int]] | None


class ProgramHeader:
    """Gathers what the header needs while the program runs.

    Args:
        fingerprint: The environment, or the file that holds it.
        site_filter: The pattern that sites had to match.

    Raises:
        BadInput: The fingerprint cannot be read.
    """

    def __init__(
        self,
        model: nn.Module,
        lane: str,
        fingerprint: Fingerprint | Path | str | None,
        site_filter: str,
    ) -> None:
        self._site_filter = site_filter
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        self._fingerprint = _fingerprint(fingerprint)
        self._lane = Lane(
            name=lane, engine=OWN_PROGRAM, model=type(model).__name__, settings=_settings(model)
        )
        self._next: tuple[list[str] | str, list[int] | tuple[list[int], ...] | None] = ("", None)
        self._samples: Counter[str] = Counter()
        self._requests: dict[str, Request] = {}
        self._made = 0
        self._absent: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, np.int64)
        """Rows that each site gave none for; [0] before the first rows."""

    def begin(self, request_id: str | Sequence[str], prompt: Prompt) -> None:
        """The sequences that are made next belong to this request, or these.

        Raises:
            BadInput: An empty name, the same one twice, or a prompt that is no token ids.
        """
        names = request_id if isinstance(request_id, str) else list(request_id)
        listed = [names] if isinstance(names, str) else names
        if not listed or not all(listed) or len(set(listed)) < len(listed):
            raise BadInput(
                f"request_id={request_id!r} names no request, or one twice",
                "give every sequence a name of its own",
            )
        self._next = names, _tokens(prompt)

    def sequences(self, batch: int) -> list[FedSequence]:
        """The sequences of a batch.

        Raises:
            BadInput: There are more or fewer names or prompts than sequences.
        """
        names, prompt = self._next
        if isinstance(names, str):
            names = [names] if batch == 1 else [f"{names}/{row}" for row in range(batch)]
        prompts: Sequence[list[int] | None]
        prompts = [prompt] * batch if prompt is None or isinstance(prompt, list) else prompt
        if len(names) != batch or len(prompts) != batch:
            raise BadInput(
                f"{len(names)} names and {len(prompts)} prompts for a batch of {batch} sequences",
                "give one of each for every sequence",
            )
        made = []
        for name, tokens in zip(names, prompts, strict=True):
            made.append(FedSequence(self._made, name, self._samples[name], tokens))
            self._samples[name] += 1
            self._made += 1
        return made

    def count_absent(self, rows: Rows) -> None:
        """Note which sites gave no row where the model computed the position."""
        assert rows.summaries is not None
        computed = np.array([shape is not None for shape in rows.shapes])
        absent = (~rows.summaries.is_computed()[computed]).sum(axis=0)
        self._absent = self._absent + absent if len(self._absent) else absent

    def header(self, taps: Taps, sequences: Sequence[FedSequence]) -> TraceHeader:
        """The header as far as it is known.

        Raises:
            BadInput: A request has samples with different prompts.
        """
        for sequence in sequences:
            self._remember(sequence)
        gaps = sentence_about(
            [taps.sites[index].label() for index in np.flatnonzero(self._absent)],
            "sites gave no row at some positions, where their module did not run or returned a different "
            "shape",
        )
        return TraceHeader(
            tool_version=__version__,
            created=self._created,
            lane=self._lane,
            mode="free",
            capture="sites",
            channel="eager",
            requests=list(self._requests.values()),
            fingerprint=self._fingerprint,
            sites=taps.sites,
            site_filter=self._site_filter,
            row_hash=ROW_HASH_NAME,
            sketch=SKETCH_NAME,
            observer=observer_in_words(ObserverCheck(state="not run", reason="own loop")),
            not_seen=[*taps.not_seen, *gaps],
        )

    def _remember(self, sequence: FedSequence) -> None:
        if not sequence.prompt:
            return
        known = self._requests.get(sequence.request_id)
        if known is None:
            envelope = Envelope(
                request_id=sequence.request_id,
                prompt_token_ids=sequence.prompt,
                runtime=Runtime(engine=OWN_PROGRAM, torch_version=torch.__version__),
            )
            self._requests[sequence.request_id] = Request.of(envelope)
        elif known.envelope is not None and known.envelope["prompt_token_ids"] != sequence.prompt:
            raise BadInput(
                f"{sequence.request_id}: the prompt differs from that of an earlier sample of this request",
                "give a different prompt its own request_id, with tap.request(…)",
            )


def _settings(model: nn.Module) -> dict[str, Setting]:
    """What is known of how the program runs its model, under the names that replays use."""
    weight = next((each for each in model.parameters() if each.is_floating_point()), None)
    observed = {
        "dtype": None if weight is None else str(weight.dtype).removeprefix("torch."),
        "device": None if weight is None else str(weight.device),
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": "true" if torch.are_deterministic_algorithms_enabled() else "false",
        "training": "true" if model.training else "false",
    }
    return {
        name: Setting(resolved=value, observed=value, source="program")
        for name, value in observed.items()
        if value is not None
    }


def _fingerprint(source: Fingerprint | Path | str | None) -> Fingerprint | None:
    if source is None or isinstance(source, Fingerprint):
        return source
    path = Path(source)
    try:
        return Fingerprint.from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read: {error.strerror}", "give what rip fingerprint -o FILE wrote"
        ) from None


def _tokens(prompt: Prompt) -> list[int] | tuple[list[int], ...] | None:
    """One prompt, or one for each sequence of a batch."""
    if prompt is None:
        return None
    try:
        rows: list[Any] = [torch.as_tensor(each).tolist() for each in prompt]
    except (TypeError, ValueError, RuntimeError):
        rows = []
    each = rows if rows and all(isinstance(row, list) for row in rows) else [rows]
    if not all(row and all(isinstance(token, int) and token >= 0 for token in row) for row in each):
        raise BadInput(
            "prompt holds no token ids", "give integers [T], or [T] for each sequence of the batch"
        )
    return rows if each is not rows else (*each,)
