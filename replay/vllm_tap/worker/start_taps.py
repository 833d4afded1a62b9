"""One vLLM worker gets its taps: when its model is ready, the sites are found and the observation begins.

It knows the worker, its configuration and its rank. It is imported in workers only.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ....schemas.trace import Site
from ...row_summaries.row_hash_and_sketch import ROW_HASH_NAME, SKETCH_NAME
from ...row_summaries.summarise import prepare_kernel
from .model_runners import observe_runner
from .module_taps import ModuleTaps
from .rank_writer import RankFolder
from .recorder import Recorder, TapSettings
from .row_block import Columns
from .sites import FoundSites, canonical_path, find_sites

PROBE_TOKENS = 11
"""Tokens of the dummy pass that shows the sites: no model has an axis of 11."""

LOG = logging.getLogger("vllm.rip_tap")


def tap_worker(worker: Any) -> None:
    """Have a worker observed as soon as it is ready to serve. Never raises.

    Args:
        worker: A worker whose device is initialised; its model need not be loaded.
    """
    warm_up = worker.compile_or_warm_up_model

    @functools.wraps(warm_up)
    def then_tap(*args: Any, **kwargs: Any) -> Any:
        result = warm_up(*args, **kwargs)
        try:
            _start(worker)
        except Exception as error:  # whatever it is, the worker serves
            LOG.warning("rip observes nothing here: %s: %s", type(error).__name__, error)
            _leave_reason(worker, error)
        return result

    worker.compile_or_warm_up_model = then_tap


def _start(worker: Any) -> None:
    """Observe a worker that is about to serve."""
    config = worker.vllm_config
    engine = TappedEngine(_coordinates(config), _identity(config), *_channel(config))
    observe(worker.model_runner, TapSettings.of(os.environ), engine)


def _leave_reason(worker: Any, error: Exception) -> None:
    """Write why there are no taps, so that whoever reads the folder does not take an older engine's."""
    config = getattr(worker, "vllm_config", None)
    world = int(getattr(getattr(config, "parallel_config", None), "world_size", 1))
    rank = int(getattr(worker, "rank", 0))
    coordinates = {"tp_rank": rank, "tp_size": world, "pp_rank": 0, "pp_size": 1, "dp_rank": 0, "dp_size": 1}
    instance = str(getattr(config, "instance_id", "") or os.getpid())
    facts = {**coordinates, "instance": instance, "channel": "", "row_hash": "", "sketch": ""}
    try:
        folder = RankFolder(Path(os.environ["RIP_TAP"]), rank, facts, 0, lambda *_: None)
        folder.write_state("failed", f"{type(error).__name__}: {error}", error)
    except Exception as second:  # there is a state already, or nowhere to write one; the log says why
        LOG.debug("rip could not write that: %s", second)


@dataclass(frozen=True)
class TappedEngine:
    """What is known of the engine that a worker belongs to.

    Attributes:
        coordinates: `tp_rank tp_size pp_rank pp_size dp_rank dp_size rank` of this process.
        identity: What sets this engine apart from another one in the same folder: `instance model vllm`.
        channel: How the model runs. Modules can be tapped where it is `eager`.
        why: Why they cannot.
    """

    coordinates: Mapping[str, int]
    identity: Mapping[str, Any]
    channel: str = "eager"
    why: str = ""


def observe(runner: Any, settings: TapSettings, engine: TappedEngine) -> Recorder:
    """Find the sites, make the folder, put the taps on. What fails on the way is written there.

    The dummy pass comes first: all ranks run it together, so nothing that may fail on one of them alone
    (a folder, a kernel's cache) may stand before it.

    Args:
        runner: vLLM's model runner, its model loaded.

    Raises:
        OSError: There is no folder to write to.
    """
    found, output, problem = _find_sites(runner, settings, engine)
    taps = ModuleTaps(found.sources, lambda error: recorder.fail_with_error(error))
    coordinates = engine.coordinates
    facts = {**engine.identity, "channel": engine.channel, "row_hash": ROW_HASH_NAME, "sketch": SKETCH_NAME}
    folder = RankFolder(
        settings.folder,
        coordinates["rank"],
        {**coordinates, **facts},
        settings.most_bytes,
        lambda why, error: recorder.fail(why, error),
    )
    has_logits = coordinates["tp_rank"] == 0 and coordinates["pp_rank"] == coordinates["pp_size"] - 1
    recorder = Recorder(folder, settings, found, taps, output, has_logits)
    try:
        if problem is not None:
            raise problem
        kernel = prepare_kernel(runner.device, getattr(runner, "dtype", None))
        sites = [site.model_dump() for site in found.sites]
        folder.write_sites(json.dumps({"sites": sites, "not_seen": found.not_seen, "kernel": kernel}))
        observe_runner(runner, recorder)
        taps.attach()
        folder.write_state("ready")
    except Exception as error:  # whatever it is, the worker serves
        recorder.fail_with_error(error)
        return recorder
    atexit.register(recorder.close)
    LOG.info("rip observes %d sites (%s) and writes to %s", len(found.sites), engine.channel, folder.path)
    return recorder


def _find_sites(
    runner: Any, settings: TapSettings, engine: TappedEngine
) -> tuple[FoundSites, Columns | None, Exception | None]:
    """The sites, where the model's own output goes, and what failed (reported once there is a folder)."""
    model = runner.get_model()
    if engine.channel != "eager":
        return *output_only(model, settings.sites, engine.why), None
    tp = engine.coordinates["tp_rank"], engine.coordinates["tp_size"]
    try:
        return find_sites(model, lambda: runner._dummy_run(PROBE_TOKENS), settings.sites, tp), None, None
    except Exception as error:
        return FoundSites([], [], []), None, error


def _coordinates(config: Any) -> dict[str, int]:
    """Which rank of its engine this process is."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp, pp = get_tp_group(), get_pp_group()
    return {
        "rank": torch.distributed.get_rank() if torch.distributed.is_initialized() else 0,
        "tp_rank": tp.rank_in_group,
        "tp_size": tp.world_size,
        "pp_rank": pp.rank_in_group,
        "pp_size": pp.world_size,
        "dp_rank": int(config.parallel_config.data_parallel_rank),
        "dp_size": int(config.parallel_config.data_parallel_size),
    }


def _identity(config: Any) -> dict[str, Any]:
    """What sets this engine apart from another one that wrote into the same folder."""
    import vllm

    return {
        "instance": str(config.instance_id),
        "model": str(config.model_config.model),
        "vllm": str(vllm.__version__),
    }


def _channel(config: Any) -> tuple[str, str]:
    """How the model runs, and why its modules cannot be tapped; no reason where they can."""
    compilation = config.compilation_config
    if int(compilation.mode or 0) != 0:
        return "compiled", f"the model is compiled ({_name(compilation.mode)})"
    graphs = compilation.cudagraph_mode
    if graphs is not None and _name(graphs) != "NONE":
        return "graph", f"the model runs in CUDA graphs ({_name(graphs)})"
    return "eager", ""


def _name(value: Any) -> str:
    return str(getattr(value, "name", value))


def output_only(
    model: nn.Module, wanted: re.Pattern[str] | None, why: str
) -> tuple[FoundSites, Columns | None]:
    """The one site of a model whose modules run where no tap reaches: its output, which is its last norm's.

    Args:
        why: Why its modules cannot be tapped.
    """
    not_seen = [f"{why}, so only its output and its logits were observed: start vLLM with --enforce-eager"]
    norms = [
        (path, module)
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and "." not in canonical_path(path)
    ]
    if not norms:
        return FoundSites([], [], not_seen), None
    path, module = norms[-1]
    weight = next(module.parameters(), None)
    if weight is None:
        return FoundSites([], [], not_seen), None
    site = Site(
        name=canonical_path(path),
        module=type(module).__name__,
        dtype=str(weight.dtype).removeprefix("torch."),
        width=weight.numel(),
    )
    if wanted is not None and not wanted.search(site.label()):
        return FoundSites([], [], not_seen), None
    return FoundSites([site], [], not_seen), ((0, 0, site.width),)
