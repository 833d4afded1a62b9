"""Engine `hf`: transformers and torch in this process. Loading, settings and samplers; the decode loop
itself is in decode_loop.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ....schemas.errors import BadInput
from ....schemas.trace import Finding, Mode, Site
from ...capture.taps import Taps
from ...request.batches import Batch, PlannedSequence
from ...request.contract import GENERATION_CONFIG, PROGRAMS
from ...request.resolve import UNKNOWN_LENGTH, Capabilities
from ...row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from ...row_summaries.rows import Rows
from ..base import Finished, Opening, refuse_server
from ..model_files import folder_of, load_tokenizer, text_of, texts_of, tokenize
from .decode_loop import BatchRun
from .model import check_attention, load_model, model_errors
from .sampling import Sampler, StopRule, UniformDraws
from .settings import parse_settings, resolve_settings


class HfEngine:
    """A causal language model in this process.

    Args:
        opening: What to open; its model is a folder or a GGUF file.

    Raises:
        EngineFailed, BadInput: The model cannot be loaded or a setting does not fit.
    """

    capabilities = Capabilities(
        modes=("free", "golden-decode", "golden-prefill"), sites=True, logits_hash=True, seed=True
    )
    unsupported_sampling = PROGRAMS
    channel = "eager"
    pid = None

    def __init__(self, opening: Opening) -> None:
        refuse_server("hf", opening)
        if opening.model is None or opening.model_sha256 is None:
            raise BadInput("the engine hf needs a model", "give a folder or a GGUF file with --model")
        folder = folder_of(opening.model, opening.model_sha256)
        self.topk = opening.topk
        self.keep_positions = opening.keep_positions
        self.findings: list[Finding] = []
        self.settings = resolve_settings(opening.settings, opening.runtime, _config_dtype(folder))
        self._before = _ProcessState()
        try:
            self._open(folder, opening.sites)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def parse_settings(pairs: Sequence[str], starts: bool) -> dict[str, Any]:
        """Read `key=value` texts (see `settings.parse_settings`)."""
        return parse_settings(pairs)

    @staticmethod
    def check_start(model: Path | str | None, python: str | None, settings: Mapping[str, Any]) -> None:
        """Refuse an attention implementation that the model does not have (see `base.Engine.check_start`)."""
        if "attention" in settings and isinstance(model, Path):
            check_attention(model, settings["attention"])

    def _open(self, folder: Path, sites: re.Pattern[str] | None) -> None:
        """Load the model under the resolved settings and find its sites."""
        self._apply_process_settings()
        self.tokenizer = load_tokenizer(folder)
        dtype = getattr(torch, str(self.settings["dtype"].resolved))
        device = str(self.settings["device"].resolved)
        self.model = load_model(folder, dtype, self.settings["attention"].resolved, device)
        self.device = torch.device(device)
        config = self.model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.context_length = int(getattr(config, "max_position_embeddings", 0) or UNKNOWN_LENGTH)
        generation = self.model.generation_config
        self.sampling_defaults: dict[str, Any] = generation.to_diff_dict() if generation else {}
        self.sampling_defaults_from = GENERATION_CONFIG
        self._eos = _as_list(
            getattr(generation, "eos_token_id", None) or getattr(config, "eos_token_id", None)
        )
        self.pad = padding_id(getattr(config, "pad_token_id", None), self.vocab_size)
        self._worker_draws: UniformDraws | None = None
        self._observe_settings()
        self._taps: Taps | None = None
        self.row_hash, self.sketch = ROW_HASH_NAME, SKETCH_NAME
        self.sites: list[Site] = []
        self.not_seen: list[str] = []
        if sites is not None:
            self._taps = Taps(self.model, sites)
            with model_errors():
                self._taps.discover(self._trial_pass, self.vocab_size, self.device)
            self.sites, self.not_seen = self._taps.sites, self._taps.not_seen
            if not self.sites:
                raise BadInput(
                    f"--sites {sites.pattern!r} matches no site",
                    "see the labels with --sites '.' and rip query",
                )

    @property
    def taps(self) -> Taps | None:
        """What observes the model; None where it was opened without sites."""
        return self._taps

    def _trial_pass(self, ids: torch.Tensor) -> object:
        return self.model(input_ids=ids, use_cache=False)

    def _apply_process_settings(self) -> None:
        torch.set_num_threads(int(self.settings["threads"].resolved))
        torch.set_float32_matmul_precision(str(self.settings["matmul_precision"].resolved))
        wanted = self.settings["deterministic"].resolved == "true"
        if (
            wanted != torch.are_deterministic_algorithms_enabled()
        ):  # setting it loads the compiler: over a second
            torch.use_deterministic_algorithms(wanted)

    def _observe_settings(self) -> None:
        """Fill in what the loaded model and the process report."""
        observed = {
            "dtype": str(next(self.model.parameters()).dtype).removeprefix("torch."),
            "device": str(next(self.model.parameters()).device),
            "attention": getattr(self.model.config, "_attn_implementation", None),
            "threads": torch.get_num_threads(),
            "matmul_precision": torch.get_float32_matmul_precision(),
            "deterministic": "true" if torch.are_deterministic_algorithms_enabled() else "false",
        }
        for name, value in observed.items():
            known = self.settings[name]
            resolved = value if name == "attention" and known.resolved is None else known.resolved
            self.settings[name] = known.model_copy(update={"resolved": resolved, "observed": value})

    def tokenize(
        self, text: str | None, messages: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of a prompt text, or of chat messages and tools through the model's template.

        Raises:
            BadInput: The model folder holds no tokenizer or no template.
        """
        return tokenize(self.tokenizer, text, messages, tools)

    def texts_of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The texts of single tokens, for display."""
        return texts_of(self.tokenizer, token_ids)

    def has_tokenizer(self) -> bool:
        """Whether stop strings and bad words can be searched for."""
        return self.tokenizer is not None

    def reset(self) -> None:
        """As after opening: a seed whose scope is the worker starts again."""
        self._worker_draws = None

    def close(self) -> None:
        """Free the model and give the process back its threads and modes. May be called twice."""
        self._before.restore()
        self.model = None
        self._taps = None

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Execute one batch (see `base.Engine.run`).

        Raises:
            BadInput: A request that this engine cannot run.
            EngineFailed: The model fails, or overwrites what is observed.
        """
        taps = self._taps if observe else None
        with taps.attached() if taps else nullcontext():
            run = BatchRun(self, batch, mode, taps)
            yield from run.score() if mode == "golden-prefill" else run.generate()

    def sampler_for(self, sequence: PlannedSequence) -> Sampler:
        """A sampler with the sequence's own stream of draws, or the worker's shared one."""
        seed = sequence.seed
        if sequence.value("seed_scope") == "worker":
            self._worker_draws = self._worker_draws or UniformDraws(seed)
            draws = self._worker_draws
        else:
            draws = UniformDraws(seed)
        encode = None
        if self.tokenizer is not None:
            tokenizer = self.tokenizer
            encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
        return Sampler(sequence, draws, self._eos, self.vocab_size, encode)

    def stop_rule_for(self, sequence: PlannedSequence) -> StopRule:
        """When this sequence ends."""
        return StopRule(sequence, self._eos, self._whole_text if self.tokenizer is not None else None)

    def decode(self, tokens: list[int]) -> str:
        """Text of generated tokens; empty without a tokenizer."""
        return text_of(self.tokenizer, tokens) or ""

    def _whole_text(self, tokens: list[int]) -> str:
        """Text of generated tokens, special ones too: a stop string may be one."""
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(tokens))


class _ProcessState:
    """What an engine changes in the whole process, as it was before."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._matmul_precision = torch.get_float32_matmul_precision()
        self._deterministic = torch.are_deterministic_algorithms_enabled()

    def restore(self) -> None:
        """Set everything back."""
        torch.set_num_threads(self._threads)
        torch.set_float32_matmul_precision(self._matmul_precision)
        if self._deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(self._deterministic)


def _config_dtype(folder: Path) -> str | None:
    """The dtype that config.json names, if it is one that rip can run."""
    from ....schemas.base import parse_json_object

    path = folder / "config.json"
    try:
        config = parse_json_object(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}", "give a whole model folder") from None
    named = config.get("dtype") or config.get("torch_dtype")
    return named if named in ("float32", "bfloat16", "float16") else None


def padding_id(named: object, vocab_size: int) -> int:
    """A token id for padding. Any serves, as it is masked; some configs name one outside the vocabulary."""
    ids = _as_list(named)
    return ids[0] if ids and 0 <= ids[0] < vocab_size else 0


def _as_list(value: object) -> list[int]:
    """Token ids that a config may give as nothing, a number or a list."""
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list | tuple) else [int(str(value))]
