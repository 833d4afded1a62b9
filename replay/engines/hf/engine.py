"""Engine `hf`: transformers and torch in this process. Loading, settings and samplers; the decode loop
itself is in decode_loop.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ....schemas.errors import BadInput
from ....schemas.trace import Mode
from ...capture.taps import Taps
from ...request.batches import Batch, PlannedSequence
from ...request.contract import PROGRAMS
from ...request.resolve_request import UNKNOWN_LENGTH
from ...row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from ...row_summaries.rows import Rows
from ..base import Engine, Finished, Opening, no_such_site, refuse_server
from ..model_files import load_tokenizer, loadable_folder, read_config
from .decode_loop import BatchRun
from .model import Forward, load_model, model_errors
from .padding import StateCheck
from .sampling import Sampler, StopRule, UniformDraws
from .settings import CAPABILITIES, resolve_settings


class HfEngine(Engine):
    """A causal language model in this process.

    Args:
        opening: What to open; its model is a folder or a GGUF file.

    Raises:
        EngineFailed, BadInput: The model cannot be loaded or a setting does not fit.
    """

    capabilities = CAPABILITIES
    unsupported_sampling = PROGRAMS
    channel = "eager"
    row_hash, sketch = ROW_HASH_NAME, SKETCH_NAME

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        refuse_server("hf", opening)
        if opening.model is None or opening.model_sha256 is None:
            raise BadInput("the engine hf needs a model", "give a folder or a GGUF file with --model")
        folder = loadable_folder(opening.model, opening.model_sha256)
        self.keep_positions = opening.keep_positions
        self.settings = resolve_settings(opening.settings, opening.runtime, _config_dtype(folder))
        self._before = _process_state()
        try:
            self._open(folder, opening.sites)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path, sites: re.Pattern[str] | None) -> None:
        """Load the model under the resolved settings and find its sites."""
        _set_process_state(
            int(self.settings["threads"].resolved),
            str(self.settings["matmul_precision"].resolved),
            self.settings["deterministic"].resolved == "true",
        )
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
        self._eos = _as_list(
            getattr(generation, "eos_token_id", None) or getattr(config, "eos_token_id", None)
        )
        self.pad = padding_id(getattr(config, "pad_token_id", None), self.vocab_size)
        self.state_check = StateCheck(
            lambda: Forward(self.model), dtype, self.vocab_size, self.pad, self.device
        )
        self._worker_draws: UniformDraws | None = None
        self._observe_settings()
        self.taps: Taps | None = None
        """What observes the model; None where it was opened without sites."""
        if sites is not None:
            self.taps = Taps(self.model, sites)
            with model_errors():
                self.taps.discover(self._trial_pass, self.vocab_size, self.device)
            self.sites, self.not_seen = self.taps.sites, self.taps.not_seen
            if not self.sites:
                raise no_such_site(sites)

    def _trial_pass(self, ids: torch.Tensor) -> object:
        return self.model(input_ids=ids, use_cache=False)

    def _observe_settings(self) -> None:
        """Fill in what the loaded model and the process report."""
        weight = next(self.model.parameters())
        threads, precision, deterministic = _process_state()
        observed = {
            "dtype": str(weight.dtype).removeprefix("torch."),
            "device": str(weight.device),
            "attention": getattr(self.model.config, "_attn_implementation", None),
            "threads": threads,
            "matmul_precision": precision,
            "deterministic": "true" if deterministic else "false",
        }
        for name, value in observed.items():
            known = self.settings[name]
            resolved = value if name == "attention" and known.resolved is None else known.resolved
            self.settings[name] = known.model_copy(update={"resolved": resolved, "observed": value})

    def reset(self) -> None:
        """As after opening: a seed whose scope is the worker starts again."""
        self._worker_draws = None

    def close(self) -> None:
        """Free the model and give the process back its threads and modes. May be called twice."""
        _set_process_state(*self._before)
        self.model = None
        self.taps = None

    def run(self, batch: Batch, mode: Mode, observe: bool) -> Iterator[Rows | Finished]:
        """Execute one batch (see `base.Engine.run`).

        Raises:
            BadInput: A request that this engine cannot run.
            EngineFailed: The model fails, or overwrites what is observed.
        """
        taps = self.taps if observe else None
        with taps.attached() if taps else nullcontext():
            run = BatchRun(self, batch, mode, taps)
            yield from run.score() if mode == "golden-prefill" else run.generate()

    def sampler_for(self, sequence: PlannedSequence) -> Sampler:
        """A sampler with the sequence's own stream of draws, or the worker's shared one."""
        draws = UniformDraws(sequence.seed)
        if sequence.value("seed_scope") == "worker":
            draws = self._worker_draws = self._worker_draws or draws
        encode = self._encode if self.tokenizer is not None else None
        return Sampler(sequence, draws, self._eos, self.vocab_size, encode)

    def stop_rule_for(self, sequence: PlannedSequence) -> StopRule:
        """When this sequence ends."""
        return StopRule(sequence, self._eos, self._whole_text if self.tokenizer is not None else None)

    def decode(self, tokens: list[int]) -> str:
        """Text of generated tokens; empty without a tokenizer."""
        return self.text_of(tokens) or ""

    def _encode(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _whole_text(self, tokens: list[int]) -> str:
        """Text of generated tokens, special ones too: a stop string may be one."""
        assert self.tokenizer is not None
        return str(self.tokenizer.decode(tokens))


def _process_state() -> tuple[int, str, bool]:
    """What an engine changes in the whole process: threads, float32 matmul precision, deterministic mode."""
    return (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _set_process_state(threads: int, matmul_precision: str, deterministic: bool) -> None:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul_precision)
    if deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(deterministic)  # it loads the compiler: over a second


def _config_dtype(folder: Path) -> str | None:
    """The dtype that config.json names, if it is one that rip can run."""
    config = read_config(folder / "config.json", "give a whole model folder")
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
