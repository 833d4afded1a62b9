"""The `Engine` around an offline engine: settings, batches, outputs that are checked before they count."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ....schemas.envelope import Sampling
from ....schemas.errors import BadInput, EngineFailed
from ....schemas.lane import Setting
from ....schemas.trace import Mode
from ...request.batches import Batch, PlannedSequence
from ...request.findings import finding
from ...row_summaries.rows import Rows, TopK
from ..base import Engine, Finished, Opening, refuse_server
from ..model_files import generation_config, load_local_tokenizer
from .output import CheckedOutput
from .protocol import DOCUMENT, OfflineClass, OfflineOutput, OfflineSampling, find_class, own_settings

SUPPORTED = frozenset(
    {"n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos"}
)
"""Sampling fields of an envelope that `OfflineSampling` has, and `n`, which rip repeats itself."""


class OfflineKind(OfflineClass):
    """The class of an offline engine; calling it opens the engine."""

    def __call__(self, opening: Opening) -> OfflineAdapter:
        """The opened engine.

        Raises:
            BadInput, EngineFailed, MissingPackage: It cannot be opened.
        """
        return OfflineAdapter(self, opening)


def load_offline(name: str) -> OfflineKind:
    """The offline engine `module:Class`.

    Raises:
        BadInput, EngineFailed, MissingPackage: As `find_class`; or the class does not satisfy the protocol.
    """
    return OfflineKind(name, find_class(name))


class OfflineAdapter(Engine):
    """An offline engine, opened.

    Args:
        opening: What to open; the model's folder or file is handed to its constructor.

    Raises:
        BadInput: No model, or a setting that the engine does not have.
        EngineFailed: It cannot be opened, or lacks what the protocol requires.
        MissingPackage: A package that it needs is not installed.
    """

    unsupported_sampling = frozenset(Sampling.model_fields) - SUPPORTED

    def __init__(self, kind: OfflineClass, opening: Opening) -> None:
        super().__init__(opening)
        self._kind = kind
        self.capabilities = kind.capabilities
        refuse_server(kind.name, opening)
        if opening.model is None:
            raise BadInput(f"the engine {kind.name} needs a model", "give it with --model")
        settings = own_settings(opening.settings)
        kind.check_arguments(str(opening.model), settings)
        with kind.foreign_errors("opening the model"):
            self._engine: Any = kind.offline(str(opening.model), **settings)
        self.tokenizer = self._load_tokenizer()
        self.vocab_size = self._size("vocab_size")
        self.context_length = self._size("context_length")
        self.settings = self._settings(settings)
        self.sampling_defaults: Mapping[str, Any] = generation_config(opening.model) or {}
        if self.capabilities.logprobs == "none":
            self.not_seen.append(f"{kind.name} does not return log-probabilities: only tokens are compared")
        elif self.capabilities.logprobs == "processed" and opening.mode == "free":
            self.not_seen.append(
                f"{kind.name} returns log-probabilities after temperature and filters, not the raw ones"
            )

    @property
    def name(self) -> str:
        """What the trace calls the engine."""
        return self._kind.name

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Generate for one batch in one call (see `base.Engine.run`).

        Raises:
            EngineFailed: The engine fails, or its outputs break the protocol.
        """
        params = [self._params(plan, mode) for plan in batch.sequences]
        with self._kind.foreign_errors(f"generating for {batch.sequences[0].request_id}"):
            outputs = self._engine.generate([list(plan.prompt) for plan in batch.sequences], params)
        if not isinstance(outputs, Sequence) or len(outputs) != len(params):
            count = f"{len(outputs)} outputs" if isinstance(outputs, Sequence) else type(outputs).__name__
            raise EngineFailed(f"{self.name}.generate returned {count} for {len(params)} prompts", DOCUMENT)
        for plan, one, output in zip(batch.sequences, params, outputs, strict=True):
            if plan.recorded:
                yield from self._recorded(plan, one, output)

    def close(self) -> None:
        """Let the engine free what it holds (see `base.Engine.close`)."""
        close = getattr(self._engine, "close", None)
        self._engine = None
        if close is not None:
            with self._kind.foreign_errors("closing"):
                close()

    def _recorded(
        self, plan: PlannedSequence, params: OfflineSampling, output: OfflineOutput
    ) -> Iterator[Rows | Finished]:
        """The rows of one sequence, and its end."""
        checked = CheckedOutput(self._kind, self.vocab_size, plan, params, output)
        tokens = [*plan.prompt, *checked.token_ids]
        forced = params.golden_token_ids is not None
        # What a token was chosen from stands one row earlier, and nothing follows the last token.
        topk: list[TopK | None] = [*checked.prompt_topk, *checked.topk, None]
        yield Rows(
            sequence=plan.sequence,
            first_position=0,
            token_ids=np.array(tokens, dtype=np.int32),
            forced=forced,
            topk=topk,
            samplers=[None] * len(tokens),
            shapes=[None] * len(tokens),
        )
        text = checked.text if checked.text is not None else self.text_of(checked.token_ids)
        unseeded = params.seed is None and params.temperature > 0 and not forced
        yield Finished(
            plan.sequence,
            "golden" if forced else checked.finish_reason,
            text,
            findings=(finding("seed-unsupported", engine=self.name),) if unseeded else (),
        )

    def _params(self, plan: PlannedSequence, mode: Mode) -> OfflineSampling:
        seed = int(str(plan.value("seed"))) + plan.seed_offset if self._kind.claims.seeds else None
        forced = mode == "golden-decode" and plan.recorded
        # Under forced tokens neither sampler nor stop rule decides, and even processed log-probabilities are
        # the raw ones at temperature 1.
        temperature = 1.0 if forced else float(plan.value("temperature"))
        draws = not forced and temperature > 0  # without draws nothing is cut
        return OfflineSampling(
            max_tokens=plan.most_tokens,
            temperature=temperature,
            top_p=float(plan.value("top_p")) if draws else 1.0,
            top_k=max(0, int(plan.value("top_k"))) if draws else 0,
            seed=seed,
            stop_token_ids=() if forced else tuple(plan.value("stop_token_ids")),
            ignore_eos=forced or bool(plan.value("ignore_eos")),
            golden_token_ids=plan.golden if forced else None,
            top_logprobs=self.opening.topk,
        )

    def _size(self, attribute: str) -> int:
        try:
            size = operator.index(getattr(self._engine, attribute, None))  # type: ignore[arg-type]
        except TypeError:
            size = 0
        if size < 1:
            raise EngineFailed(f"{self.name} has no attribute {attribute} that is a size", DOCUMENT)
        return size

    def _settings(self, stated: Mapping[str, Any]) -> dict[str, Setting]:
        """Every setting as it was requested, as it was passed on, and as the engine reports it."""
        version = getattr(self._engine, "version", None)
        if not isinstance(version, str):
            raise EngineFailed(f"{self.name} has no attribute version that is a text", DOCUMENT)
        observed = getattr(self._engine, "observed", {})
        if not isinstance(observed, Mapping):
            raise EngineFailed(f"{self.name}: its attribute observed is not a mapping of settings", DOCUMENT)
        size = self.opening.settings.get("batch_size")
        recorded = self.opening.runtime.engine_version
        settings = {
            "batch_size": Setting(
                requested=size, resolved=size or 1, source="lane" if size else "engine default"
            ),
            "engine_version": Setting(
                requested=recorded, resolved=version, observed=version, source="environment"
            ),
        }
        for name in dict.fromkeys([*stated, *map(str, observed)]):
            reported, value = _plain(observed.get(name)), _plain(stated.get(name))
            settings[name] = (
                Setting(requested=value, resolved=value, observed=reported, source="lane")
                if name in stated
                else Setting(resolved=reported, observed=reported, source="engine default")
            )
        return settings

    def _load_tokenizer(self) -> Any | None:
        """The tokenizer of a model folder; None where there is none, or no package that reads it."""
        model, digest = self.opening.model, self.opening.model_sha256
        if model is None or digest is None or not model.is_dir() or find_spec("transformers") is None:
            return None
        return load_local_tokenizer(model, digest)


def _plain(value: Any) -> Any:
    """A value as a trace can hold it."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
