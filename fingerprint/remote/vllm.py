"""What a vLLM server tells (seen with 0.32): version, models, cache settings, and in development mode all.

`/server_info` exists only with VLLM_SERVER_DEV_MODE=1, which exposes more than it should: use it where it is
on, never ask for it.
"""

from __future__ import annotations

import re
from typing import Any

from ...schemas.fingerprint import NOT_VISIBLE_FROM_SERVER
from ..fields.variables import VARIABLES
from .client import Client, NoAnswer
from .server_facts import PROBE_MESSAGES, PROBE_TEXT, Told, part, table, words
from .vllm_config_text import settings_of

_CONFIG = "/server_info vllm_config (resolved)"
_ENV = "/server_info vllm_env (resolved)"
_SYSTEM = "/server_info system_env"
_METRICS = "/metrics"
_LABELS = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_PLAIN = (str, int, float, bool)
_MAX_METRICS_LINES = 100_000
_FROM_SETTINGS = (
    ("engine", "dtype"),
    ("engine", "attention_backend"),
    ("engine", "quantization"),
    ("engine", "speculative_decoding"),
    ("parallelism", "tensor_parallel_size"),
)
"""Fields that only its settings tell."""
_BOOKKEEPING = frozenset({"engine", "model_name"})


def recognise(load: Any) -> str | None:
    """By `/load`. Its `/version` answers as that of TensorRT-LLM does, whose metrics must not be read."""
    return "vllm" if "server_load" in table(load) else None


def read(client: Client, told: Told) -> None:
    """Ask everything that changes nothing."""
    try:
        told.say("engine", "version", part(client.get("/version").json(), "version"), "/version")
    except NoAnswer as reason:
        told.lacks("engine", "version", str(reason), "/version")
    _read_config(client, told)
    _read_metrics(client, told)
    ask_tokenizer(client, told)
    try:
        info = client.get("/tokenizer_info").json()
        told.text_digest("template", "sha256", part(info, "chat_template"), "/tokenizer_info")
    except NoAnswer as reason:
        hint = "only with --enable-tokenizer-info-endpoint" if reason.absent else str(reason)
        told.lacks("template", "sha256", hint, "/tokenizer_info")


def ask_tokenizer(client: Client, told: Told) -> None:
    """What the tokenizer makes of a text, and with the template of a conversation; nothing is generated."""
    source = "/tokenize"
    try:
        reply = client.post(source, {"prompt": PROBE_TEXT}).json()
        told.tokens(part(reply, "tokens"), source)
        told.say("engine", "max_model_len", part(reply, "max_model_len"), source)
    except NoAnswer as reason:
        told.lacks("tokenizer", "probe", str(reason), source)
        told.lacks("template", "probe_tokens", str(reason), source)
        return
    try:
        reply = client.post(source, {"messages": list(PROBE_MESSAGES)}).json()
        told.prompt_tokens(part(reply, "tokens"), source)
    except NoAnswer as reason:
        told.lacks("template", "probe_tokens", str(reason), source)


def _read_config(client: Client, told: Told) -> None:
    try:
        info = client.get("/server_info?config_format=json").json()
    except NoAnswer as reason:
        _lacks_settings(
            told, "only servers in development mode tell their settings" if reason.absent else str(reason)
        )
        return
    said = part(info, "vllm_config")
    if isinstance(said, str):
        written = settings_of(said)
        if written is None:
            _lacks_settings(told, "its settings come as a text that cannot be taken apart")
        else:
            _say_settings(written, told)
    elif isinstance(said, dict) and said:
        _read_settings(said, told)
    else:
        _lacks_settings(told, "its answer has no vllm_config")
    _read_variables(table(part(info, "vllm_env")), told)
    _read_system(table(part(info, "system_env")), told)


def _lacks_settings(told: Told, reason: str) -> None:
    for section, field in _FROM_SETTINGS:
        told.lacks(section, field, reason, NOT_VISIBLE_FROM_SERVER)


def _read_settings(config: dict[str, Any], told: Told) -> None:
    """The settings as JSON, grouped."""
    settings: dict[str, Any] = {}
    for name in ("model_config", "cache_config", "parallel_config", "scheduler_config", "kernel_config"):
        settings |= {key: said for key, said in table(config.get(name)).items() if not isinstance(said, dict)}
    settings["device"] = part(config, "device_config", "device")
    settings["load_format"] = part(config, "load_config", "load_format")
    attention = table(config.get("attention_config"))
    settings["attention_config.backend"] = attention.get("backend")
    for name in ("optimization_level", "compilation_config", "speculative_config"):
        if name in config:
            settings[name] = config[name]
    _say_settings(settings, told)
    if "backend" in attention:
        told.lacks("engine", "attention_backend", "set to automatic: its log says which one runs", _CONFIG)
    told.now("replica", "instance_id", config.get("instance_id"), _CONFIG)


def _say_settings(settings: dict[str, Any], told: Told) -> None:
    """Null says `none` only where the name is there; a name that is not there says nothing."""
    said = {**settings, "compilation_config": _compilation(table(settings.get("compilation_config")))}
    for name in ("speculative_config", "quantization"):
        if name in said and said[name] is None:
            said[name] = "none"
    said["dtype"] = words(said.get("dtype")).removeprefix("torch.")
    told.say_all("vllm", said, _CONFIG)
    told.say("model", "quantization_method", said.get("quantization"), _CONFIG)
    for section, field in _FROM_SETTINGS:
        if (section, field) != ("engine", "attention_backend"):
            told.lacks(section, field, "its settings do not name it", NOT_VISIBLE_FROM_SERVER)


def _compilation(config: dict[str, Any]) -> dict[str, Any] | None:
    """Of the compilation settings those that choose kernels and shapes."""
    names = ("mode", "backend", "cudagraph_mode", "cudagraph_capture_sizes", "compile_sizes", "custom_ops")
    kept = {name: config[name] for name in (*names, "splitting_ops", "pass_config") if name in config}
    return kept or None


def _read_variables(environ: dict[str, Any], told: Told) -> None:
    for name in VARIABLES["vllm"]:
        said = environ.get(name)
        if isinstance(said, _PLAIN):
            told.say("determinism", name, _as_written(said), _ENV)
    if isinstance(invariant := environ.get("VLLM_BATCH_INVARIANT"), _PLAIN):
        told.say("determinism", "batch_invariance", f"VLLM_BATCH_INVARIANT={_as_written(invariant)}", _ENV)
    told.say("engine", "commit", environ.get("VLLM_BUILD_COMMIT"), _ENV)


def _as_written(said: Any) -> str:
    """A resolved variable as one would set it."""
    return str(int(said)) if isinstance(said, bool) else str(said)


def _read_system(system: dict[str, Any], told: Told) -> None:
    told.say("frameworks", "torch", system.get("torch_version"), _SYSTEM)
    told.say("frameworks", "python", words(system.get("python_version")).split(" ")[0], _SYSTEM)
    told.say("libraries", "cuda", system.get("cuda_compiled_version"), _SYSTEM)
    told.say("libraries", "cudart", system.get("cuda_runtime_version"), _SYSTEM)
    told.say("libraries", "cudnn", system.get("cudnn_version"), _SYSTEM)
    told.say("driver", "version", system.get("nvidia_driver_version"), _SYSTEM)
    told.say("gpus", "name", system.get("nvidia_gpu_models"), _SYSTEM)
    told.say("os", "distribution", system.get("os"), _SYSTEM)
    told.say("os", "libc", words(system.get("libc_version")).replace("-", " "), _SYSTEM)
    for line in words(system.get("pip_packages")).splitlines():
        name, _, version = line.partition("==")
        if name in ("transformers", "numpy"):
            told.say("frameworks", name, {"version": version}, _SYSTEM)
        elif name in ("triton", "flashinfer-python"):
            told.say("kernels", name, {"version": version}, _SYSTEM)


def _read_metrics(client: Client, told: Told) -> None:
    try:
        text = client.get(_METRICS).text()
    except NoAnswer as reason:
        told.lacks("cache", "prefix_cache", str(reason), _METRICS)
        return
    engines: list[dict[str, Any]] = []
    for line in text.splitlines()[:_MAX_METRICS_LINES]:
        if line.startswith("vllm:cache_config_info{"):
            engines.append({name: _typed(said) for name, said in _LABELS.findall(line)})
        elif line.startswith("python_info{"):
            told.say("frameworks", "python", dict(_LABELS.findall(line)).get("version"), _METRICS)
        elif line.startswith("process_start_time_seconds "):
            told.now("replica", "started_unix", line.partition(" ")[2], _METRICS)
    if engines:
        told.say_all("vllm", engines[0], f"{_METRICS} vllm:cache_config_info")
        told.say("parallelism", "engines", len(engines), _METRICS)
        stable = [{name: said for name, said in one.items() if name not in _BOOKKEEPING} for one in engines]
        if any(one != stable[0] for one in stable):
            told.say("cache", "engines_differ", True, _METRICS)


def _typed(label: str) -> Any:
    if re.fullmatch(r"-?\d{1,18}", label):
        return int(label)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,9}", label):
        return float(label)
    return {"True": True, "False": False, "None": None}.get(label, label)
