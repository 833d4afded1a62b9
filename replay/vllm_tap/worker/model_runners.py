"""vLLM's two model runners: where a forward pass begins and ends, and which tokens it is about to compute.

It knows their methods and attributes as of vLLM 0.32 (`v1/worker/gpu_model_runner.py`, from which the CPU
runner derives, and `v1/worker/gpu/model_runner.py`), and imports neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .step import StepInputs

if TYPE_CHECKING:
    import torch

    from .recorder import Recorder


def observe_runner(runner: Any, observer: Recorder) -> None:
    """Report to the observer of a rank what its runner does, from now on.

    Raises:
        ValueError: A runner of a kind that is not known.
    """
    if hasattr(runner, "_model_forward") and hasattr(runner, "input_batch"):
        _observe_first(runner, observer)
    elif hasattr(runner, "prepare_inputs") and hasattr(runner, "req_states"):
        _observe_second(runner, observer)
    else:
        raise ValueError(f"{type(runner).__name__} is not a model runner that rip knows")
    _after(runner, "sample_tokens", lambda *_: observer.sampled())
    model = runner.get_model()
    untapped = model.compute_logits

    @functools.wraps(untapped)
    def compute_logits(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = untapped(hidden_states, *args, **kwargs)
        observer.logits(hidden_states, logits)
        return logits

    model.compute_logits = compute_logits


def _observe_first(runner: Any, observer: Recorder) -> None:
    """The runner in `gpu_model_runner.py`: it prepares a batch, then calls `_model_forward`."""
    scheduled: list[Any] = [None]
    execute_model, model_forward = runner.execute_model, runner._model_forward

    @functools.wraps(execute_model)
    def tapped_execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled[0] = scheduler_output
        observer.scheduled(scheduler_output)
        return execute_model(scheduler_output, *args, **kwargs)

    @functools.wraps(model_forward)
    def tapped_forward(*args: Any, **kwargs: Any) -> Any:
        observer.forward(lambda: first_inputs(runner, scheduled[0], kwargs.get("positions")))
        output = model_forward(*args, **kwargs)
        observer.forwarded(output)
        return output

    runner.execute_model, runner._model_forward = tapped_execute, tapped_forward


def first_inputs(runner: Any, scheduler_output: Any, positions: torch.Tensor | None) -> StepInputs:
    """The step that the first runner has prepared."""
    batch = runner.input_batch
    request_ids = list(batch.req_ids)
    counts = [scheduler_output.num_scheduled_tokens[name] for name in request_ids]
    total = sum(counts)
    counts_tokens = positions is not None and positions.dim() == 1
    return StepInputs(
        request_ids=request_ids,
        counts=counts,
        drafts=[len(scheduler_output.scheduled_spec_decode_tokens.get(name, ())) for name in request_ids],
        token_ids=runner.input_ids.gpu[:total].clone(),
        # As the device knows them: with speculative decoding the host only guesses.
        positions=positions[:total].clone() if counts_tokens and positions is not None else None,
        computed=[int(item) for item in batch.num_computed_tokens_cpu[: len(request_ids)]],
        padded=total if positions is None else positions.shape[-1],
    )


def _observe_second(runner: Any, observer: Recorder) -> None:
    """The runner in `gpu/model_runner.py`: `prepare_inputs` gives the batch, the model runs behind it.

    Dummy runs go through `execute_model` too, with `dummy_run`, and prepare no inputs.
    """
    execute_model, prepare_inputs = runner.execute_model, runner.prepare_inputs

    @functools.wraps(execute_model)
    def tapped_execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dummy_run"):
            return execute_model(scheduler_output, *args, **kwargs)
        observer.scheduled(scheduler_output)
        output = execute_model(scheduler_output, *args, **kwargs)
        state = runner.execute_model_state
        observer.forwarded(None if state is None else state.hidden_states)
        return output

    @functools.wraps(prepare_inputs)
    def tapped_prepare(*args: Any, **kwargs: Any) -> Any:
        batch = prepare_inputs(*args, **kwargs)
        observer.forward(lambda: second_inputs(batch))
        return batch

    runner.execute_model, runner.prepare_inputs = tapped_execute, tapped_prepare


def second_inputs(batch: Any) -> StepInputs:
    """The step that the second runner has prepared."""
    counts = [int(item) for item in batch.num_scheduled_tokens]
    total = sum(counts)
    drafts = batch.num_draft_tokens_per_req
    return StepInputs(
        request_ids=list(batch.req_ids),
        counts=counts,
        drafts=[0] * len(counts) if drafts is None else [int(item) for item in drafts],
        token_ids=batch.input_ids[:total].clone(),
        positions=batch.positions[:total].clone(),
        computed=[int(item) for item in batch.num_computed_tokens_np],
        padded=int(batch.num_tokens_after_padding),
    )


def _after(target: Any, name: str, then: Callable[..., object]) -> None:
    """Have `then` called after a method, with its arguments."""
    method = getattr(target, name)

    @functools.wraps(method)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        then(*args)
        return result

    setattr(target, name, tapped)
