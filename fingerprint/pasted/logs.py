"""Readers of start-up logs: vLLM, SGLang, llama.cpp, Ollama, Text Generation Inference."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from typing import Any

from ...schemas.fingerprint import NOT_SET, unavailable
from ..engine_arguments.command_line import split
from ..fields.known_names import ALL_VARIABLES
from ..remote.vllm import settings_of
from .paste import Paste

_NUMBER = r"\d{1,12}"


def _between(text: str, opening: str, closing: str) -> str | None:
    """What stands between the first opening mark and the last closing one."""
    start, end = text.find(opening), text.rfind(closing)
    return text[start + len(opening) : end] if 0 <= start < end else None


def _matched(pattern: str, *names: str, engine: str | None = None) -> Callable[[str, Paste], bool]:
    """A reader that searches a pattern and keeps each group as the field of its name."""
    compiled = re.compile(pattern)

    def read(line: str, paste: Paste) -> bool:
        match = compiled.search(line[:2000])
        if match is None:
            return False
        if engine is not None:
            paste.state("engine.name", engine)
        for name, value in zip(names, match.groups(), strict=True):
            paste.state(name, int(value) if value and re.fullmatch(_NUMBER, value) else value)
        return True

    return read


# vLLM ----------------------------------------------------------------------------------------------------


def read_vllm_version(line: str, paste: Paste) -> bool:
    """`vLLM API server version 0.8.4`."""
    version = line.rpartition("version ")[2].split()
    if not version or not version[0][:1].isdigit():
        return False
    paste.state("engine.name", "vllm")
    paste.state("engine.version", version[0])
    return True


def read_vllm_arguments(line: str, paste: Paste) -> bool:
    """`args: Namespace(…)` and `non-default args: {…}`."""
    if line.startswith("args: Namespace("):
        settings = settings_of(_between(line, "Namespace(", ")") or "")
    else:
        settings = _dictionary(line)
    if not settings:
        return False
    # What is left to the engine is stated where it has decided.
    paste.state_settings("vllm", {name: value for name, value in settings.items() if value != "auto"})
    return True


def read_vllm_config(line: str, paste: Paste) -> bool:
    """`Initializing a V1 LLM engine (v0.8.4) with config: model=…`."""
    head, sign, text = line.partition(" with config: ")
    if not sign:
        return False
    version = _between(head, "(v", ")")
    paste.state("engine.name", "vllm")
    paste.state("engine.version", version)
    settings = settings_of(text) or {}
    if isinstance(dtype := settings.get("dtype"), str):
        settings["dtype"] = dtype.removeprefix("torch.")
    if "chunked_prefill_enabled" in settings:
        settings["enable_chunked_prefill"] = settings["chunked_prefill_enabled"]
    paste.state_settings("vllm", settings)
    return bool(settings)


_BACKENDS = (
    re.compile(r"Using (\w{1,40}) attention backend"),
    re.compile(r"Using ([A-Z][\w ]{1,40}) backend(?: on V1 engine)?\.?$"),
    re.compile(r"Using (\w{1,40}) backend on V1 engine"),
)
_SAME_BACKEND = {"Flash Attention": "FLASH_ATTN", "FlashInfer": "FLASHINFER", "XFormers": "XFORMERS"}


def read_vllm_backend(line: str, paste: Paste) -> bool:
    """`Using Flash Attention backend on V1 engine.`"""
    for pattern in _BACKENDS:
        if match := pattern.match(line):
            paste.state("engine.attention_backend", _SAME_BACKEND.get(match[1], match[1]))
            return True
    return False


def read_vllm_defaults(line: str, paste: Paste) -> bool:
    """Sampling defaults that the server takes from the model's generation config."""
    defaults = _dictionary(line)
    paste.state("sampling.server_defaults", defaults)
    return bool(defaults)


def _dictionary(line: str) -> dict[str, Any] | None:
    """The Python dictionary in a line, as JSON values; None where there is none that can be read."""
    text = _between(line, "{", "}")
    if text is None:
        return None
    try:
        found = ast.literal_eval("{" + text + "}")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None


# SGLang --------------------------------------------------------------------------------------------------


def read_sglang_arguments(line: str, paste: Paste) -> bool:
    """`server_args=ServerArgs(model_path=…)`."""
    settings = settings_of(_between(line, "ServerArgs(", ")") or "")
    if not settings:
        return False
    paste.state_settings("sglang", settings)
    return True


def read_sglang_sizes(line: str, paste: Paste) -> bool:
    """`max_total_num_tokens=…, chunked_prefill_size=…, max_prefill_tokens=…, context_len=…`."""
    settings = settings_of(line) or {}
    if "max_total_num_tokens" not in settings:
        return False
    if "context_len" in settings:
        settings["context_length"] = settings.pop("context_len")
    paste.state_settings("sglang", settings)
    return True


# llama.cpp -----------------------------------------------------------------------------------------------

_KEY_VALUE = re.compile(
    r"llama_model_loader: - kv\s{1,4}\d{1,5}:\s{1,80}([\w.]{1,100}) (\S{1,20})\s{0,20}= (.*)"
)
_TYPE = re.compile(r"llama_model_loader: - type\s{1,8}(\w{1,16}):\s{1,8}(\d{1,6}) tensors")
_SETTING = re.compile(r"\w{1,60}: ([\w ]{1,40}?)\s{1,20}= (.*)")
_LLAMA_DEVICE = re.compile(
    r"(?:ggml_\w{1,20}_init: )?Device (\d{1,3}): ([^,]{1,100}), compute capability (\d{1,3}\.\d{1,2})"
)
_FEATURE = re.compile(r"([A-Z][A-Z0-9_]{1,30}) = ([01])")
_CONTEXT = {
    "n_ctx": "engine.max_model_len",
    "n_batch": "engine.max_batched_tokens",
    "n_ubatch": "engine.micro_batch_size",
    "n_seq_max": "engine.max_sequences",
    "flash_attn": "engine.flash_attention",
    "kv_unified": "cache.unified",
    "freq_scale": "engine.rope_scale",
    "n_ctx_train": "model.context_length",
    "n_vocab": "model.vocab_size",
    "arch": "model.architecture",
    "file type": "model.quantization_method",
    "model ftype": "model.quantization_method",
    "ftype": "model.quantization_method",
    "seed": "determinism.engine_seed",
}
"""What llama.cpp calls a setting → the field."""


_LLAMA_VERSION = re.compile(
    r"(?:main: )?(?:build info: |version|build)\s{0,4}[:=]?\s{0,4}"
    r"b?(\d{3,6})[ -]\(?([0-9a-f]{7,40})\)?(.*)"
)


def read_llama_version(line: str, paste: Paste) -> bool:
    """`version: 6271 (4c37636b)`, `main: build = 2477 (f9c7ba34)`, `build: 6271 (…) with …`."""
    match = _LLAMA_VERSION.match(line)
    if match is None:
        return False
    paste.state("engine.name", "llama.cpp")
    paste.state("engine.version", f"b{match[1]}-{match[2]}")
    paste.state("engine.commit", match[2])
    if compiler := match[3].strip().removeprefix("with "):
        paste.enter("engine.build", "compiler", compiler)
    return True


def read_llama_compiler(line: str, paste: Paste) -> bool:
    """`built with cc (Ubuntu …) 13.3.0 for x86_64-linux-gnu`."""
    paste.enter("engine.build", "compiler", line.partition("built with ")[2])
    return True


def read_llama_model(line: str, paste: Paste) -> bool:
    """Lines of llama.cpp's model loader: the file, its metadata, how many tensors are stored how."""
    if " from " in line and "loaded meta data" in line:
        paste.state("engine.name", paste.place.get("engine", "llama.cpp"))
        paste.state("model.served", line.partition(" from ")[2].partition(" (version")[0])
        return True
    if match := _TYPE.match(line):
        paste.enter("model.tensor_dtypes", match[1].upper(), int(match[2]))
        return True
    match = _KEY_VALUE.match(line)
    if match is None:
        return False
    name, value = match[1], match[3].strip()
    if name == "general.architecture":
        paste.state("model.architecture", value)
    elif name.endswith(".context_length") and value.isdigit():
        paste.state("model.context_length", int(value))
    elif name.startswith("tokenizer.") or match[2].startswith("arr"):
        return False
    else:
        paste.enter("model.metadata", name, value[:200])
    return True


def read_llama_setting(line: str, paste: Paste) -> bool:
    """`llama_context: n_ctx = 512` and its like."""
    match = _SETTING.match(line[:2000])
    field = _CONTEXT.get(match[1].strip()) if match is not None else None
    if match is None or field is None:
        return False
    words = match[2].split()
    text = match[2].strip() if field.startswith("model.") else words[0] if words else ""
    if re.fullmatch(_NUMBER, text):
        paste.state(field, int(text))
    else:
        paste.state(field, {"true": True, "false": False}.get(text, text))
    return True


def read_llama_system(line: str, paste: Paste) -> bool:
    """`system_info: n_threads = 16 / 32 | AVX = 1 | …`."""
    if threads := re.search(r"n_threads = (\d{1,4})", line):
        paste.state("engine.threads", int(threads[1]))
    features = {name: value == "1" for name, value in _FEATURE.findall(line[:4000])}
    for name, value in features.items():
        paste.enter("engine.build", name, value)
    return True


def read_llama_device(line: str, paste: Paste) -> bool:
    """`Device 0: NVIDIA …, compute capability 12.0, VMM: yes`."""
    match = _LLAMA_DEVICE.match(line)
    if match is None:
        return False
    paste.enter("gpus.name", match[1], match[2])
    paste.enter("gpus.compute_capability", match[1], match[3])
    paste.place.setdefault("gpus", set()).add(match[1])
    return True


def read_llama_build(line: str, paste: Paste) -> bool:
    """`ggml_cuda_init: GGML_CUDA_FORCE_MMQ: no`."""
    name, sign, value = line.partition(": ")[2].partition(":")
    if sign and re.fullmatch(r"GGML_[A-Z0-9_]{1,40}", name):
        paste.enter("engine.build", name, value.strip())
        return True
    return "found " in line and "devices" in line


_SAMPLING = re.compile(r"([a-z_]{2,30}) = (-?\d{1,9}(?:\.\d{1,9})?)(?=,|\s|$)")


def read_llama_sampling(line: str, paste: Paste) -> bool:
    """`top_k = 40, tfs_z = 1.000, top_p = 0.950, …, temp = 0.800`: what a silent request gets."""
    found = _SAMPLING.findall(line[:2000])
    if len(found) < 3:
        return False
    for name, value in found:
        paste.enter("sampling.server_defaults", name, float(value) if "." in value else int(value))
    return True


# Ollama --------------------------------------------------------------------------------------------------

_PAIR = re.compile(r'(\w{1,40})=("(?:[^"\\]|\\.){0,8000}"|\S{1,2000})')
_BLOB = re.compile(r"sha256-([0-9a-f]{64})$")


def read_ollama(line: str, paste: Paste) -> bool:
    """One `time=… level=… msg=…` line of Ollama."""
    fields = {name: value.strip('"').replace('\\"', '"') for name, value in _PAIR.findall(line)}
    paste.place["engine"] = "ollama"
    message = fields.get("msg", "")
    if message == "server config":
        paste.state("engine.name", "ollama")
        _read_ollama_variables(fields.get("env", ""), paste)
    elif message.startswith("Listening on "):
        paste.state("engine.name", "ollama")
        version = _between(message, "(version ", ")")
        paste.state("engine.version", version)
    elif message == "inference compute":
        _read_ollama_device(fields, paste)
    elif "cmd" in fields and message.startswith("starting"):
        _read_ollama_command(fields["cmd"], paste)
    elif (blob := _BLOB.search(fields.get("model", ""))) is not None:
        paste.state("model.sha256", blob[1])
        if fields.get("parallel", "").isdigit():
            paste.state("engine.max_sequences", int(fields["parallel"]))
    else:
        return False
    return True


def _read_ollama_variables(text: str, paste: Paste) -> None:
    """`map[A:1 B: C:x y]`: Go prints a map so; an empty value is a variable that is not set."""
    found: dict[str, str] = {}
    name = ""
    for word in (_between(text, "map[", "]") or "").split(" "):
        key, sign, value = word.partition(":")
        if sign and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{1,60}", key) and (key.isupper() or key.islower()):
            name = key
            found[name] = value
        elif name:
            found[name] += f" {word}"
    for name, value in found.items():
        if name in ALL_VARIABLES:
            reading = value or unavailable(NOT_SET, paste.source)
            paste.state(f"determinism.{name}", reading)
        elif name == "CUDA_VISIBLE_DEVICES":
            paste.state(f"gpus.{name}", value or unavailable(NOT_SET, paste.source))
        elif name.startswith("OLLAMA_") and value and name not in _NOT_NUMERIC:
            paste.enter("engine.environment", name, value)


_NOT_NUMERIC = frozenset(
    {"OLLAMA_DEBUG", "OLLAMA_HOST", "OLLAMA_MODELS", "OLLAMA_ORIGINS", "OLLAMA_REMOTES", "OLLAMA_KEEP_ALIVE"}
    | {"OLLAMA_LOAD_TIMEOUT", "OLLAMA_NOHISTORY", "OLLAMA_NOPRUNE", "OLLAMA_RUNNERS_DIR", "OLLAMA_TMPDIR"}
    | {"OLLAMA_MAX_QUEUE", "OLLAMA_EDITOR", "OLLAMA_NO_CLOUD"}
)
"""Ollama's variables that change no number."""


def _read_ollama_device(fields: dict[str, str], paste: Paste) -> None:
    number = str(len(paste.place.setdefault("gpus", set())))
    if fields.get("library") == "cpu":
        return
    paste.place["gpus"].add(number)
    paste.enter("gpus.name", number, fields.get("name") or fields.get("description") or "not named")
    if "compute" in fields:
        paste.enter("gpus.compute_capability", number, fields["compute"])
    if re.fullmatch(r"\d{1,3}\.\d{1,3}", fields.get("driver", "")):
        paste.state("driver.cuda_version", fields["driver"])


def _read_ollama_command(command: str, paste: Paste) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    settings = split("llama.cpp", words[1:])
    blob = _BLOB.search(str(settings.pop("model", "")))
    paste.state("model.sha256", blob[1] if blob else None)
    settings.pop("port", None)
    paste.state("engine.name", "ollama")
    paste.state_settings("llama.cpp", settings)


# Text Generation Inference -------------------------------------------------------------------------------

_RUST_FIELD = re.compile(r"\s*([a-z_]{1,60}):\s{0,4}(.*)", re.DOTALL)
_RUST_SOME = re.compile(r"Some\(\s{0,40}(.*?),?\s{0,40}\)", re.DOTALL)
_MOST_PARTS = 20_000


def read_tgi_arguments(line: str, paste: Paste) -> bool:
    """`Args { model_id: "…", num_shard: Some(2), … }`, on one line or over many."""
    parts = paste.place.get("tgi")
    if parts is None:
        if not line.startswith("Args {"):
            return False
        parts = paste.place["tgi"] = []
        line = line.removeprefix("Args {")
    elif len(parts) > _MOST_PARTS:
        return False
    parts.append(line)
    if line.rstrip().endswith("}") and not line.lstrip().startswith('"'):
        paste.place["tgi"] = None
        settings = _rust_fields(" ".join(parts).rstrip().removesuffix("}"))
        paste.state_settings("tgi", settings)
    return True


def _rust_fields(text: str) -> dict[str, Any]:
    """The fields of a struct as Rust's Debug prints it; a None is left out."""
    found = {}
    for piece in _outermost(text):
        if (match := _RUST_FIELD.match(piece)) is None:
            continue
        written = match[2].strip()
        if (inner := _RUST_SOME.fullmatch(written)) is not None:
            written = inner[1].strip()
        found[match[1]] = _rust_value(written)
    return {name: value for name, value in found.items() if value is not None}


def _outermost(text: str) -> list[str]:
    """The text at its commas outside of brackets and quotes."""
    pieces, start, depth, quoted = [], 0, 0, False
    for index, character in enumerate(text):
        if character == '"' and text[index - 1 : index] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def _rust_value(written: str) -> Any:
    if written == "None":
        return None
    if written in ("true", "false"):
        return written == "true"
    if re.fullmatch(r"-?\d{1,15}", written):
        return int(written)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,12}", written):
        return float(written)
    return written.strip('"')


BACKEND_SGLANG = _matched(r"Use (\w{1,40}) backend by default", "engine.attention_backend", engine="sglang")
KV_TOKENS = _matched(r"GPU KV cache size: ([\d,]{1,15}) tokens", "cache.tokens", engine="vllm")
CHUNKED = _matched(
    r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})",
    "engine.max_batched_tokens",
    engine="vllm",
)
ARCHITECTURE = _matched(r"Resolved architecture: (\w{1,80})", "model.architecture", engine="vllm")
PLATFORM = _matched(r"detected platform (\w{1,20})", "engine.device", engine="vllm")
LOADED = _matched(
    r"Load weight end\..{0,200}type=(\w{1,80}), dtype=torch\.(\w{1,20})", "model.architecture", "engine.dtype"
)
SLOTS = _matched(r"n_slots = (\d{1,4})", "engine.max_sequences", engine="llama.cpp")
