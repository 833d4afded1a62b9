"""`rip.tap(model)`: a trace of a PyTorch program that runs its own loop.

It knows how a program calls its model, and what a trace of that needs. The sites are found by `taps.py`, what
was fed is kept by `fed_sequences.py`. Axes: B sequences in the batch, T columns of a pass, V vocabulary.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from ...schemas.errors import BadInput, RipError
from ...schemas.fingerprint import Fingerprint
from ..capture.modules import replace_calls
from ..capture.site_discovery import Axes
from ..capture.taps import Taps
from .arguments import are_ids, check_model, check_output, matrix, positions_like, site_pattern
from .program_header import ProgramHeader, Prompt
from .program_passes import ProgramPasses

TokenIds = torch.Tensor | Sequence[int] | Sequence[Sequence[int]]


class Tap:
    """Records what a model computes while a program of your own runs it.

    Use it in a `with` statement. Each call of the model is a forward pass: the rows of every module are
    hashed and sketched as they are computed, and no value is changed. See `docs/own-programs.md`.

    Args:
        model: Any module that is fed token ids. Not compiled by torch.compile.
        out: The trace to write. It appears when the `with` statement ends; if the program dies, what was
            recorded until then lies in `OUT.parts`.
        request_id: The name of the sequence, by which traces are compared. For a batch, one for each of its
            sequences, or one for all: then they are called `NAME/0`, `NAME/1`, ….
        prompt: The prompt's token ids, for a batch those of each sequence. None: what the first pass feeds.
        topk: How many of the most likely tokens `logits` keeps.
        sites: Observe only modules whose name matches this pattern somewhere; None observes all.
        argument: The argument of the model's forward that holds the token ids; None: `input_ids` where there
            is one, else the first that is a two-dimensional tensor of integers.
        axes: `batch-first` or `time-first`, where two axes of a tensor are equally long.
        fingerprint: The environment, as `rip fingerprint -o FILE` wrote it.
        lane: A name for this way to run.
        force: Replace a trace of that name, and what is left of an unfinished one.

    Raises:
        BadInput: The model is compiled, or an argument does not fit.
        OutputFailed: The trace exists already, or its folder does not.
    """

    def __init__(
        self,
        model: nn.Module,
        out: Path | str,
        *,
        request_id: str | Sequence[str] = "request",
        prompt: Prompt = None,
        topk: int = 20,
        sites: str | None = None,
        argument: str | None = None,
        axes: Axes | None = None,
        fingerprint: Fingerprint | Path | str | None = None,
        lane: str = "default",
        force: bool = False,
    ) -> None:
        self._model, self._name = check_model(model), type(model).__name__
        path = Path(out)
        check_output(path, force)
        if topk < 1:
            raise BadInput(f"topk={topk}: at least one token must be kept", "give a number from 1 on")
        self._topk = topk
        self._signature = inspect.signature(model.forward)
        if argument is not None and argument not in self._signature.parameters:
            raise BadInput(
                f"argument={argument!r}: {self._name}.forward has none of that name",
                f"name one of: {', '.join(self._signature.parameters)}",
            )
        self._argument = argument or ("input_ids" if "input_ids" in self._signature.parameters else None)
        self._header = ProgramHeader(model, lane, fingerprint, sites or "")
        self._header.begin(request_id, prompt)
        self._passes = ProgramPasses(Taps(model, site_pattern(sites)), axes, self._header, path, force)
        self._on = ExitStack()
        self._state = "not open"
        self._started = 0.0

    def __enter__(self) -> Self:
        self._on.enter_context(replace_calls({self._model: self._as_a_pass}))
        self._on.callback(self._passes.detach)
        self._state, self._started = "open", time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on.close()
        self._state = "not open"
        try:
            if error is None:
                self._finish()
            else:
                self._keep(error)
        finally:
            if self._passes.writer is not None:
                self._passes.writer.close()

    def request(self, request_id: str | Sequence[str], prompt: Prompt = None) -> None:
        """The next pass begins a new request.

        Args:
            request_id: As in the constructor. A name that was used before is another sample of that request.
            prompt: As in the constructor.

        Raises:
            BadInput: It is called inside a forward pass, or the tap is not open.
        """
        self._check_open("tap.request")
        self._passes.end_request()
        self._header.begin(request_id, prompt)

    def forward(
        self, token_ids: TokenIds, positions: torch.Tensor | Sequence[Sequence[int]] | None = None
    ) -> AbstractContextManager[None]:
        """A pass whose token ids are stated, around whatever runs the model's modules.

        It serves a model that is called with something else than token ids, or through another method than
        its call, and batches with padding.

        Args:
            token_ids: [B, T], or [T] for a single sequence.
            positions: [B, T], of each token in its sequence; −1 for padding. Positions that have a row are
                not recorded again. None: the tokens follow the last ones, or repeat all of them.

        Raises:
            BadInput: On entering, what is stated does not fit together or to what was fed before. On leaving
                the first pass, nothing can be observed.
            OutputFailed: The trace cannot be written.
        """
        self._check_open("tap.forward")
        ids_BT = matrix(token_ids, "token_ids")
        return self._pass(ids_BT, positions_like(positions, ids_BT))

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Record the distributions of the next token that the last pass gave.

        Args:
            logits: Raw logits [B, T, V] of all columns of that pass; or [B, V] or [B, 1, V], of the last
                token of each sequence.

        Returns:
            The logits, unchanged.

        Raises:
            BadInput: There was no pass, or the logits are not of its shape.
        """
        self._check_open("tap.logits")
        shape, batch, columns = list(logits.shape), len(self._passes.sequences), self._passes.columns
        every = len(shape) == 3 and shape[1] == columns
        fits = every or len(shape) == 2 or (len(shape) == 3 and shape[1] == 1)
        if not self._passes.new_rows or not fits or shape[0] != batch:
            after = (
                f"after a pass of [{batch}, {columns}] tokens" if self._passes.new_rows else "before any pass"
            )
            raise BadInput(
                f"tap.logits was given {shape} {after}",
                "give it the logits [B, T, V] or [B, V] of the pass that has just ended",
            )
        for new in self._passes.new_rows:
            count = len(new.token_ids)
            if not count:
                continue
            own = logits[new.batch_row].detach()
            rows_RV = own[new.first_column : new.first_column + count] if every else own.view(1, -1)
            new.sequence.set_logits(rows_RV, self._topk)
        return logits

    def last(self, token_ids: torch.Tensor | Sequence[int]) -> None:
        """The tokens that were chosen last and are not fed to the model any more.

        A generated token becomes a row when it is fed. Without this call the trace ends one token early.

        Args:
            token_ids: [B] or [B, 1].

        Raises:
            BadInput: There was no pass, or its number of sequences differs.
        """
        self._check_open("tap.last")
        ids = [row[0] for row in matrix(torch.as_tensor(token_ids).reshape(-1, 1), "token_ids")]
        if len(ids) != len(self._passes.sequences):
            raise BadInput(
                f"tap.last was given {len(ids)} tokens for {len(self._passes.sequences)} sequences",
                "call it after the last pass of a request, with one token for each sequence",
            )
        self._passes.add_last(ids)

    def _as_a_pass(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The model's call, as a forward pass."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if self._state != "open" or torch.compiler.is_compiling():
                return call(*args, **kwargs)
            ids_BT = self._ids_among(args, kwargs)
            with self._pass(ids_BT, [None] * len(ids_BT)):
                return call(*args, **kwargs)

        return called

    def _ids_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[int]]:
        if self._argument is not None:
            value = self._signature.bind(*args, **kwargs).arguments.get(self._argument)
            if value is not None:
                return matrix(value, self._argument)
        else:
            for value in (*args, *kwargs.values()):
                if are_ids(value):
                    return matrix(value, "token_ids")
        raise BadInput(
            f"{self._name} was called without token ids: "
            + (
                f"no {self._argument}"
                if self._argument
                else "no argument is a 2-dimensional tensor of integers"
            ),
            "name the argument (argument=…), or state the ids: with tap.forward(ids): …",
        )

    @contextmanager
    def _pass(self, ids_BT: list[list[int]], at_BT: Sequence[list[int] | None]) -> Iterator[None]:
        self._state = "inside a forward pass"
        try:
            with self._passes.forward_pass(ids_BT, at_BT):
                yield
        finally:
            self._state = "open"

    def _finish(self) -> None:
        writer = self._passes.writer
        if writer is None:
            raise BadInput(
                f"{self._name} was not called while it was tapped, so nothing was recorded",
                "call the model itself (not model.forward, and not a compiled copy of it), or state the "
                "pass: with tap.forward(ids): …",
            )
        self._passes.hand_over()
        seconds = {"tapped": round(time.perf_counter() - self._started, 6)}
        writer.finish(self._passes.header().model_copy(update={"seconds": seconds}))

    def _keep(self, error: BaseException) -> None:
        """The program failed: its error goes on, and says where what was recorded lies."""
        writer = self._passes.writer
        if writer is None:
            return
        try:
            self._passes.hand_over()
        except RipError as failed:
            error.add_note(f"rip: {failed.message}")
        kept = writer.abandon()
        if kept is not None:
            error.add_note(f"rip: {writer.rows_written} rows are kept in {kept}")

    def _check_open(self, what: str) -> None:
        if self._state != "open":
            raise BadInput(
                f"{what} was called while the tap is {self._state}",
                "call it between two forward passes, in the with statement of the tap",
            )
