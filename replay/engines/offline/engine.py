"""The `Engine` around an offline engine: settings, batches, and outputs that are checked before they count.

The protocol itself is in offline.py.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ....schemas.envelope import Sampling
from ....schemas.errors import BadInput, EngineFailed
from ....schemas.trace import Mode, Setting, Site
from ...request.batches import Batch, PlannedSequence
from ...request.contract import GENERATION_CONFIG
from ...row_summaries.trace_rows import ExecutionShape, Rows, SamplerRecord, TopK
from ..base import Finished, Opening
from .output import CheckedOutput
from .protocol import DOCUMENT, OfflineKind, OfflineOutput, OfflineSampling

TOLD = frozenset({"n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos"})
"""Sampling fields of an envelope that `OfflineSampling` has a word for, and `n`, which rip repeats itself."""


class OfflineLane:
    """An offline engine, opened.

    Args:
        kind: Which.
        opening: What to open; the model's folder or file is handed to its constructor.

    Raises:
        BadInput: No model, or a setting that the engine does not have.
        EngineFailed: It cannot be opened, or lacks what the protocol asks for.
        MissingPackage: A package that it needs is not installed.
    """

    unsupported_sampling = frozenset(Sampling.model_fields) - TOLD
    channel = row_hash = sketch = ""
    pid = None

    def __init__(self, kind: OfflineKind, opening: Opening) -> None:
        self._kind, self._opening = kind, opening
        self.capabilities = kind.capabilities
        if opening.url is not None or opening.python is not None:
            raise BadInput(
                f"the engine {kind.name} runs in this process: it takes no --url and no --python",
                "run rip in the environment of the engine, or choose another one with --engine",
            )
        if opening.model is None:
            raise BadInput(f"the engine {kind.name} needs a model", "give it with --model")
        given = {name: value for name, value in opening.given.items() if name != "batch_size"}
        check_arguments(kind, str(opening.model), given)
        with kind.doing("it opened the model"):
            self._engine: Any = kind.offline(str(opening.model), **given)
        self._tokenizer = self._load_tokenizer()
        self.vocab_size = self._size("vocab_size")
        self.context_length = self._size("context_length")
        self.settings = self._settings(given)
        self.sampling_defaults = self._generation_config()
        self.sampling_defaults_from = GENERATION_CONFIG
        self.sites: list[Site] = []
        self.findings: list[str] = []
        self.not_seen: list[str] = []
        if self.capabilities.logprobs == "none":
            self.not_seen.append(f"{kind.name} tells no log-probabilities: only tokens can be compared")
        elif self.capabilities.logprobs == "processed" and opening.mode == "free":
            self.not_seen.append(
                f"{kind.name} tells log-probabilities after temperature, top-p and the like, not the raw ones"
            )

    @property
    def name(self) -> str:
        """What the trace calls the engine."""
        return self._kind.name

    def reset(self) -> None:
        """Nothing: every sequence carries its own seed."""

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt, through the tokenizer of the model's folder.

        Raises:
            BadInput: It holds no tokenizer or no template.
        """
        from ...request.prompt import tokenize

        return tokenize(self._tokenizer, text, messages, tools)

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display."""
        if self._tokenizer is None:
            return {}
        return {token: str(self._tokenizer.decode([token])) for token in token_ids}

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words could be looked for."""
        return self._tokenizer is not None

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Generate for one batch in one call (see `base.Engine.run`).

        Raises:
            EngineFailed: The engine fails, or gives something else than the protocol says.
        """
        asked = [self._asked(plan, mode) for plan in batch.sequences]
        with self._kind.doing(f"it generated for {batch.sequences[0].request_id}"):
            outputs = self._engine.generate([list(plan.prompt) for plan in batch.sequences], asked)
        if not isinstance(outputs, Sequence) or len(outputs) != len(asked):
            count = f"{len(outputs)} outputs" if isinstance(outputs, Sequence) else type(outputs).__name__
            raise EngineFailed(f"{self.name}.generate gave {count} for {len(asked)} prompts", DOCUMENT)
        for plan, params, output in zip(batch.sequences, asked, outputs, strict=True):
            if plan.recorded:
                yield from self._recorded(plan, params, output)

    def close(self) -> None:
        """Let the engine free what it holds. May be called twice."""
        close = getattr(self._engine, "close", None)
        self._engine = None
        if close is not None:
            with self._kind.doing("it closed"):
                close()

    def _recorded(
        self, plan: PlannedSequence, params: OfflineSampling, output: OfflineOutput
    ) -> Iterator[Rows | Finished]:
        """The rows of one sequence, and its end."""
        checked = CheckedOutput(self._kind, self.vocab_size, plan, params, output)
        tokens = [*plan.prompt, *checked.token_ids]
        forced = params.golden_token_ids is not None
        no_samplers: list[SamplerRecord | None] = [None] * len(tokens)
        no_shapes: list[ExecutionShape | None] = [None] * len(tokens)
        # What a token was chosen from stands one row earlier, and nothing follows the last token.
        topk: list[TopK | None] = [*checked.prompt_topk, *checked.topk, None]
        yield Rows(
            sequence=plan.sequence,
            first_position=0,
            token_ids=np.array(tokens, dtype=np.int32),
            forced=forced,
            topk=topk,
            samplers=no_samplers,
            shapes=no_shapes,
        )
        text = checked.text
        if text is None and self._tokenizer is not None:
            text = str(self._tokenizer.decode(checked.token_ids, skip_special_tokens=True))
        unseeded = params.seed is None and params.temperature > 0 and not forced
        yield Finished(
            plan.sequence,
            "golden" if forced else checked.finish_reason,
            text,
            findings=(f"{self.name} has no seeds: other draws come with every run",) if unseeded else (),
        )

    def _asked(self, plan: PlannedSequence, mode: Mode) -> OfflineSampling:
        seed = int(str(plan.value("seed"))) + plan.seed_offset if self._kind.told.seeds else None
        if mode == "golden-decode" and plan.recorded:
            # Neither sampler nor stop rule decides, and even processed log-probabilities are the raw ones.
            return OfflineSampling(
                max_tokens=plan.most_tokens,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                seed=seed,
                stop_token_ids=(),
                ignore_eos=True,
                golden_token_ids=plan.golden,
                top_logprobs=self._opening.topk,
            )
        temperature = float(plan.value("temperature"))
        return OfflineSampling(
            max_tokens=plan.most_tokens,
            temperature=temperature,
            top_p=float(plan.value("top_p")) if temperature else 1.0,  # without draws nothing is cut
            top_k=max(0, int(plan.value("top_k"))) if temperature else 0,
            seed=seed,
            stop_token_ids=tuple(plan.value("stop_token_ids")),
            ignore_eos=bool(plan.value("ignore_eos")),
            golden_token_ids=None,
            top_logprobs=self._opening.topk,
        )

    def _size(self, attribute: str) -> int:
        try:
            size = operator.index(getattr(self._engine, attribute, None))  # type: ignore[arg-type]
        except TypeError:
            size = 0
        if size < 1:
            raise EngineFailed(f"{self.name} has no attribute {attribute} that is a size", DOCUMENT)
        return size

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Setting]:
        """Every setting as it was asked for, as it was passed on, and as the engine reports it."""
        version = getattr(self._engine, "version", None)
        if not isinstance(version, str):
            raise EngineFailed(f"{self.name} has no attribute version that is a text", DOCUMENT)
        observed = getattr(self._engine, "observed", {})
        if not isinstance(observed, Mapping):
            raise EngineFailed(f"{self.name}: its attribute observed is no mapping of settings", DOCUMENT)
        size = self._opening.given.get("batch_size")
        recorded = self._opening.runtime.engine_version
        settings = {
            "batch_size": Setting(
                requested=size, resolved=size or 1, source="lane" if size else "engine default"
            ),
            "engine_version": Setting(
                requested=recorded, resolved=version, observed=version, source="environment"
            ),
        }
        for name in dict.fromkeys([*given, *map(str, observed)]):
            told = _plain(observed.get(name))
            value = _plain(given.get(name))
            settings[name] = (
                Setting(requested=value, resolved=value, observed=told, source="lane")
                if name in given
                else Setting(resolved=told, observed=told, source="engine default")
            )
        return settings

    def _generation_config(self) -> Mapping[str, Any]:
        """What applies where an envelope is silent, as servers take it from the model's files."""
        from ....schemas.base import parse_json_object

        assert self._opening.model is not None
        path = self._opening.model / "generation_config.json"
        return parse_json_object(path.read_bytes(), str(path)) if path.is_file() else {}

    def _load_tokenizer(self) -> Any | None:
        """The tokenizer of a model folder; None where there is none, or no package that reads it."""
        model, digest = self._opening.model, self._opening.model_sha256
        if model is None or digest is None or not model.is_dir() or find_spec("transformers") is None:
            return None
        from ...request.prompt import load_local_tokenizer

        return load_local_tokenizer(model, digest)


def _plain(value: Any) -> Any:
    """A value as a trace can hold it."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def check_arguments(kind: OfflineKind, model: str, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the constructor does not have, before it loads anything.

    Raises:
        BadInput: It has no such argument, or needs one that was not given.
    """
    try:
        inspect.signature(kind.offline).bind(model, **settings)
    except TypeError as error:
        raise BadInput(
            f"{kind.name} cannot be opened with these settings: {error}", "correct --set KEY=VALUE"
        ) from None
