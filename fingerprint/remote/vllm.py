"""What a vLLM server reports (seen with 0.32): version, models, cache settings, and in development mode all.

`/server_info` exists only with VLLM_SERVER_DEV_MODE=1, which exposes more than it should: use it where it is
on, never ask for it. Where it writes settings as text (`model='m', tensor_parallel_size=4, …`), only what
stands there in full is taken: a text whose quotes or brackets do not match states nothing, and neither does a
name that is given twice.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from ...schemas.fingerprint import NOT_VISIBLE_FROM_SERVER
from ..fields.known_names import VARIABLES
from .client import NoAnswer
from .server_reading import PROBE_MESSAGES, PROBE_TEXT, ServerReading, part, table, text_or_empty

_CONFIG = "/server_info vllm_config (resolved)"
_ENV = "/server_info vllm_env (resolved)"
_SYSTEM = "/server_info system_env"
_METRICS = "/metrics"
_LABELS = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_PLAIN = (str, int, float, bool)
_MAX_METRICS_LINES = 100_000
_FROM_SETTINGS = (
    "engine.dtype",
    "engine.attention_backend",
    "engine.quantization",
    "engine.speculative_decoding",
    "parallelism.tensor_parallel_size",
)
"""Fields that only its settings state."""
_OF_SYSTEM = (
    ("frameworks.torch", "torch_version"),
    ("libraries.cuda", "cuda_compiled_version"),
    ("libraries.cudart", "cuda_runtime_version"),
    ("libraries.cudnn", "cudnn_version"),
    ("driver.version", "nvidia_driver_version"),
    ("gpus.name", "nvidia_gpu_models"),
    ("os.distribution", "os"),
)
_OF_PACKAGES = {
    "transformers": "frameworks",
    "numpy": "frameworks",
    "triton": "kernels",
    "flashinfer-python": "kernels",
}
_BOOKKEEPING = frozenset({"engine", "model_name"})


def recognise(load: Any) -> str | None:
    """By `/load`. Its `/version` answers as that of TensorRT-LLM does, whose metrics must not be read."""
    return "vllm" if "server_load" in table(load) else None


def read(reading: ServerReading) -> None:
    """Ask everything that changes nothing."""
    reading.ask_version()
    _read_config(reading)
    _read_metrics(reading)
    read_tokenizer(reading)
    hint = "only with --enable-tokenizer-info-endpoint"
    info = reading.ask("/tokenizer_info", "template.sha256", if_absent=hint)
    reading.add_text_digest("template.sha256", part(info, "chat_template"), "/tokenizer_info")


def read_tokenizer(reading: ServerReading) -> None:
    """What the tokenizer makes of a text, and with the template of a conversation; nothing is generated."""
    source = "/tokenize"
    answer = reading.ask(source, "tokenizer.probe", "template.probe_tokens", body={"prompt": PROBE_TEXT})
    if answer is None:
        return
    reading.add_tokens(part(answer, "tokens"), source)
    reading.add("engine.max_model_len", part(answer, "max_model_len"), source)
    answer = reading.ask(source, "template.probe_tokens", body={"messages": list(PROBE_MESSAGES)})
    reading.add_prompt_tokens(part(answer, "tokens"), source)


def _read_config(reading: ServerReading) -> None:
    info = reading.ask(
        "/server_info?config_format=json",
        *_FROM_SETTINGS,
        if_absent="only servers in development mode tell their settings",
        source=NOT_VISIBLE_FROM_SERVER,
    )
    if info is None:
        return
    config = part(info, "vllm_config")
    written = settings_of(config) if isinstance(config, str) else None
    if isinstance(config, dict) and config:
        _read_settings(config, reading)
    elif written is not None:
        _add_settings(written, reading)
    else:
        no_parts = "its settings come as a text that cannot be taken apart"
        reason = no_parts if isinstance(config, str) else "its answer has no vllm_config"
        reading.add_absent(_FROM_SETTINGS, reason, NOT_VISIBLE_FROM_SERVER)
    _read_variables(table(part(info, "vllm_env")), reading)
    _read_system(table(part(info, "system_env")), reading)


def _read_settings(config: dict[str, Any], reading: ServerReading) -> None:
    """The settings as JSON, grouped."""
    settings: dict[str, Any] = {}
    for name in ("model_config", "cache_config", "parallel_config", "scheduler_config", "kernel_config"):
        group = table(config.get(name))
        settings |= {key: value for key, value in group.items() if not isinstance(value, dict)}
    settings["device"] = part(config, "device_config", "device")
    settings["load_format"] = part(config, "load_config", "load_format")
    settings["attention_config"] = attention = table(config.get("attention_config"))
    settings["eplb_config"] = part(config, "parallel_config", "eplb_config")
    for name in ("optimization_level", "compilation_config", "speculative_config"):
        if name in config:
            settings[name] = config[name]
    _add_settings(settings, reading)
    if "backend" in attention:
        reason = "set to automatic: its log says which one runs"
        reading.add_absent(["engine.attention_backend"], reason, _CONFIG)
    reading.add_volatile("replica.instance_id", config.get("instance_id"), _CONFIG)


def _add_settings(settings: dict[str, Any], reading: ServerReading) -> None:
    """Null says `none` only where the name is there; a name that is not there says nothing."""
    stated = {**settings, "compilation_config": _compilation(table(settings.get("compilation_config")))}
    for name in ("speculative_config", "quantization"):
        if name in stated and stated[name] is None:
            stated[name] = "none"
    stated["dtype"] = text_or_empty(stated.get("dtype")).removeprefix("torch.")
    reading.add_settings("vllm", stated, _CONFIG)
    reading.add("model.quantization_method", stated.get("quantization"), _CONFIG)
    others = [name for name in _FROM_SETTINGS if name != "engine.attention_backend"]
    reading.add_absent(others, "its settings do not name it", NOT_VISIBLE_FROM_SERVER)


def _compilation(config: dict[str, Any]) -> dict[str, Any] | None:
    """Of the compilation settings those that choose kernels and shapes."""
    names = ("mode", "backend", "cudagraph_mode", "cudagraph_capture_sizes", "compile_sizes", "custom_ops")
    more = ("splitting_ops", "pass_config", "max_cudagraph_capture_size")
    kept = {name: config[name] for name in (*names, *more) if name in config}
    return kept or None


def _read_variables(environ: dict[str, Any], reading: ServerReading) -> None:
    for name in VARIABLES["vLLM"]:
        value = environ.get(name)
        if isinstance(value, _PLAIN):
            reading.add(f"determinism.{name}", _as_written(value), _ENV)
    if isinstance(invariant := environ.get("VLLM_BATCH_INVARIANT"), _PLAIN):
        reading.add("determinism.batch_invariance", f"VLLM_BATCH_INVARIANT={_as_written(invariant)}", _ENV)
    reading.add("engine.commit", environ.get("VLLM_BUILD_COMMIT"), _ENV)


def _as_written(value: Any) -> str:
    """A resolved variable as one would set it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _read_system(system: dict[str, Any], reading: ServerReading) -> None:
    reading.add_parts(system, _OF_SYSTEM, _SYSTEM)
    python = text_or_empty(system.get("python_version")).split(" ")[0]
    reading.add("frameworks.python", python, _SYSTEM)
    reading.add("os.libc", text_or_empty(system.get("libc_version")).replace("-", " "), _SYSTEM)
    for line in text_or_empty(system.get("pip_packages")).splitlines():
        name, _, version = line.partition("==")
        if name in _OF_PACKAGES:
            reading.add(f"{_OF_PACKAGES[name]}.{name}", {"version": version}, _SYSTEM)


def _read_metrics(reading: ServerReading) -> None:
    try:
        text = reading.client.get(_METRICS).text()
    except NoAnswer as reason:
        reading.add_absent(["cache.prefix_cache"], str(reason), _METRICS)
        return
    engines: list[dict[str, Any]] = []
    for line in text.splitlines()[:_MAX_METRICS_LINES]:
        if line.startswith("vllm:cache_config_info{"):
            engines.append({name: _typed(value) for name, value in _LABELS.findall(line)})
        elif line.startswith("python_info{"):
            reading.add("frameworks.python", dict(_LABELS.findall(line)).get("version"), _METRICS)
        elif line.startswith("process_start_time_seconds "):
            reading.add_volatile("replica.started_unix", line.partition(" ")[2], _METRICS)
    if engines:
        reading.add_settings("vllm", engines[0], f"{_METRICS} vllm:cache_config_info")
        reading.add("parallelism.engines", len(engines), _METRICS)
        stable = [{name: value for name, value in one.items() if name not in _BOOKKEEPING} for one in engines]
        if any(one != stable[0] for one in stable):
            reading.add("cache.engines_differ", True, _METRICS)


def _typed(label: str) -> Any:
    if re.fullmatch(r"-?\d{1,18}", label):
        return int(label)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,9}", label):
        return float(label)
    return {"True": True, "False": False, "None": None}.get(label, label)


_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z][\w.:/+-]{0,255}")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*\(.*\)", re.DOTALL)
_WORDS = {"None": None, "True": True, "False": False}
_AS_SETTINGS = {"max_seq_len": "max_model_len", "device_config": "device"}
"""What the text calls otherwise than the settings."""
_MAX_LITERAL = 1 << 16
_UNREADABLE = object()


def settings_of(text: str) -> dict[str, Any] | None:
    """Name → value of the outermost pairs; None where the text cannot be taken apart."""
    pieces = _pieces(text)
    if pieces is None:
        return None
    found: dict[str, Any] = {}
    twice = set()
    for piece in pieces:
        name, sign, written = (part.strip() for part in piece.partition("="))
        name = _AS_SETTINGS.get(name, name)
        value = _value(written)
        if not sign or not _NAME.fullmatch(name) or value is _UNREADABLE:
            continue
        if name in found:
            twice.add(name)
        found[name] = value
    return {name: value for name, value in found.items() if name not in twice}


def _pieces(text: str) -> list[str] | None:
    """The text at its outermost commas."""
    pieces, start = [], 0
    awaited: list[str] = []
    quote, escaped = "", False
    for index, character in enumerate(text):
        if quote:
            if not escaped and character == quote:
                quote = ""
            escaped = not escaped and character == "\\"
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            awaited.append(_CLOSING[character])
        elif character in _CLOSING.values():
            if not awaited or awaited.pop() != character:
                return None
        elif character == "," and not awaited:
            pieces.append(text[start:index])
            start = index + 1
    return None if quote or awaited else [*pieces, text[start:]]


def _value(written: str) -> Any:
    """A literal as its value; a bare word and an object of a class as they are written."""
    if written in _WORDS:
        return _WORDS[written]
    if _WORD.fullmatch(written) or _OBJECT.fullmatch(written):
        return written
    if len(written) > _MAX_LITERAL:
        return _UNREADABLE
    try:
        return json.loads(json.dumps(ast.literal_eval(written), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNREADABLE
