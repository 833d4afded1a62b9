"""Servers on this machine that answer as inference engines do, and hostile ones that do not end, lie or loop.

The answers of vLLM and llama.cpp were recorded from real servers and shortened; those of the others are
written after their documentation.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Any
"""JSON, or text, or bytes, or a status code, or (status, headers, bytes)."""
Answers = Mapping[str, Answer]
"""`GET /path` or `POST /path` → answer; whatever is not listed is not found."""
API_KEY = "sk-a-key-that-must-never-be-kept"


@dataclass
class Served:
    """A server that runs while a test does."""

    url: str
    questions: list[str] = field(default_factory=list)
    """`METHOD /path` of every question, in order."""
    keys: list[str | None] = field(default_factory=list)
    """The Authorization header of every question."""


@contextmanager
def serve(answers: Answers) -> Iterator[Served]:
    """An HTTP server with these answers, on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer("POST")

        def _answer(self, method: str) -> None:
            question = f"{method} {self.path}"
            served.questions.append(question)
            served.keys.append(self.headers.get("Authorization"))
            status, headers, body = _as_http(answers.get(question, answers.get("*", 404)))
            with contextlib.suppress(OSError):  # the client may hang up early
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Served(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def _as_http(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    if isinstance(answer, tuple):
        return answer
    if type(answer) is int:
        return answer, {}, b"{}"
    if isinstance(answer, bytes):
        return 200, {"Content-Type": "application/json"}, answer
    if isinstance(answer, str):
        return 200, {"Content-Type": "text/plain"}, answer.encode()
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


@contextmanager
def serve_raw(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that does with every connection what the test says, until the event is set. Gives its URL."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=attend, args=(connection,), daemon=True).start()

    def attend(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            _read_question(connection)
            behave(connection, ended)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.close()


def _read_question(connection: socket.socket) -> None:
    """All of it: what is left unread when a socket is closed resets the connection, answer included."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    wanted = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    while wanted and len(body) < int(wanted[1]) and (more := connection.recv(65536)):
        body += more


def endless(
    head: bytes, piece: bytes, pause_s: float = 0.0
) -> Callable[[socket.socket, threading.Event], None]:
    """Sends a beginning and then the same piece again and again."""

    def behave(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.wait(pause_s):
            connection.sendall(piece)

    return behave


_METRICS = """# HELP python_info Python platform information
python_info{implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"} 1.0
process_start_time_seconds 1.79602724591e+09
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.92",num_gpu_blocks="364",num_gpu_blocks_override="None",\
prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0
vllm:num_requests_running{engine="0",model_name="smol"} 0.0
"""

VLLM: Answers = {
    "GET /v1/models": {
        "object": "list",
        "data": [
            {"id": "smol", "owned_by": "vllm", "root": "/models/smol", "parent": None, "max_model_len": 1024},
            {"id": "terse", "owned_by": "vllm", "root": "/adapters/terse", "parent": "smol"},
        ],
    },
    "GET /version": {"version": "0.32.0"},
    "GET /load": {"server_load": 0},
    "GET /metrics": _METRICS,
    "POST /tokenize": {"count": 3, "max_model_len": 1024, "tokens": [19556, 216, 267], "token_strs": None},
}
VLLM_DEVELOPMENT: Answers = {
    **VLLM,
    "GET /server_info?config_format=json": {
        "vllm_config": {
            "model_config": {
                "model": "/models/smol",
                "dtype": "torch.bfloat16",
                "seed": 0,
                "quantization": None,
                "enforce_eager": True,
                "hf_token": "hf_ABCDEFGHIJKLMNOPQRSTUV",
                "max_model_len": 1024,
            },
            "cache_config": {"enable_prefix_caching": True, "cache_dtype": "fp8", "block_size": 128},
            "parallel_config": {"tensor_parallel_size": 2, "disable_custom_all_reduce": True},
            "scheduler_config": {"max_num_batched_tokens": 2048, "enable_chunked_prefill": True},
            "attention_config": {"backend": "FLASH_ATTN"},
            "compilation_config": {"mode": 3, "cudagraph_mode": 2, "local_cache_dir": "/home/user/.cache"},
            "speculative_config": None,
            "instance_id": "1796027257143499646",
        },
        "vllm_env": {"VLLM_BATCH_INVARIANT": True, "VLLM_HOST_IP": "10.0.0.7", "VLLM_USE_DEEP_GEMM": False},
        "system_env": {
            "torch_version": "2.13.0+cu130",
            "cuda_compiled_version": "13.0",
            "nvidia_driver_version": "580.159.03",
            "python_version": "3.11.7 (main) [GCC 12.2.0] (64-bit runtime)",
            "pip_packages": "numpy==2.3.5\ntransformers==5.19.0",
            "env_vars": "VLLM_API_KEY=sk-another-secret-key",
        },
    },
    "GET /tokenizer_info": {"chat_template": "{{ messages }}", "tokenizer_class": "GPT2TokenizerFast"},
}
SGLANG: Answers = {
    "GET /v1/models": {
        "data": [{"id": "qwen", "owned_by": "sglang", "root": "qwen", "max_model_len": 32768}]
    },
    "GET /server_info": {
        "model_path": "Qwen/Qwen3-8B",
        "tp_size": 2,
        "dtype": "auto",
        "api_key": API_KEY,
        "admin_api_key": "adm1n",
        "ssl_keyfile_password": "hunter2",
        "hf_token": None,
        "attention_backend": None,
        "disable_radix_cache": True,
        "disable_cuda_graph": False,
        "disable_overlap_schedule": False,
        "enable_deterministic_inference": True,
        "chunked_prefill_size": 4096,
        "random_seed": 1234567890123456789012,
        "host": "0.0.0.0",
        "port": 30000,
        "note": f"started with --api-key {API_KEY}",
        "launch_command": f"--model-path Qwen/Qwen3-8B --api-key {API_KEY} --admin-api-key adm1n",
        "startup_time": {"load_weight": 1.909, "scheduler_e2e": 23.232, "tokenizer_e2e": 138.039},
        "engine_info_bootstrap_port": 6789,
        "quantization": None,
        "internal_states": [{"attention_backend": "fa3", "last_gen_throughput": 12.5}],
        "version": "0.5.10",
    },
    "GET /model_info": {
        "model_path": "Qwen/Qwen3-8B",
        "tokenizer_path": "Qwen/Qwen3-8B",
        "weight_version": "step-400",
        "architectures": ["Qwen3ForCausalLM"],
    },
    "POST /tokenize": {"tokens": [1, 2, 3], "count": 3, "max_model_len": 32768},
}
LLAMA_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LLAMA: Answers = {
    "GET /v1/models": {
        "object": "list",
        "data": [
            {
                "id": "/models/smol.gguf",
                "owned_by": "llamacpp",
                "meta": {
                    "n_vocab": 49152,
                    "n_ctx_train": 8192,
                    "n_params": 134515008,
                    "size": 96576768,
                    "n_ctx": 1024,
                },
            }
        ],
    },
    "GET /props": {
        "default_generation_settings": {
            "params": {"seed": 4294967295, "temperature": 0.8, "top_k": 40, "speculative.types": "none"},
            "n_ctx": 1024,
        },
        "total_slots": 2,
        "model_alias": "/models/smol.gguf",
        "model_ftype": "Q4_1",
        "model_path": "/models/smol.gguf",
        "media_marker": "<__media_kEkDOyBBp3det794hy6UK2PPJwRS2U99__>",
        "chat_template": LLAMA_TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "build_info": "b6789-1a2b3c4d",
        "is_sleeping": False,
    },
    "GET /slots": [
        {"id": 0, "n_ctx": 1024, "is_processing": True, "prompt": "what a user asked"},
        {"id": 1, "n_ctx": 1024, "is_processing": False},
    ],
    "GET /lora-adapters": [{"id": 0, "path": "/adapters/terse.gguf", "scale": 0.5}],
    "POST /tokenize": {"tokens": [19556, 216, 267]},
    "POST /apply-template": {"prompt": "You are terse.Say hi.\n"},
}
TGI: Answers = {
    "GET /v1/models": {"data": [{"id": "org/model", "owned_by": "org/model"}]},
    "GET /info": {
        "model_id": "org/model",
        "model_sha": "0f1e2d3c",
        "model_dtype": "torch.float16",
        "model_device_type": "cuda",
        "max_concurrent_requests": 128,
        "max_total_tokens": 4096,
        "max_batch_total_tokens": 16384,
        "waiting_served_ratio": 0.3,
        "version": "3.3.5",
        "sha": "abc123",
        "docker_label": "sha-abc123",
    },
    "POST /tokenize": [
        {"id": 1, "text": "H", "start": 0, "stop": 1},
        {"id": 7, "text": "i", "start": 1, "stop": 2},
    ],
    "POST /chat_tokenize": {"tokenize_response": [{"id": 5}, {"id": 6}], "templated_text": "Hi"},
}
OLLAMA: Answers = {
    "GET /v1/models": {"object": "list", "data": [{"id": "smol:latest", "owned_by": "library"}]},
    "GET /api/version": {"version": "0.13.1"},
    "GET /api/ps": {
        "models": [{"name": "smol:latest", "digest": "ab" * 32, "size_vram": 1, "context_length": 4096}]
    },
    "POST /api/show": {
        "template": "{{ .Prompt }}",
        "parameters": 'stop    "<|end|>"\nstop    "</s>"\ntemperature    0.2',
        "details": {"quantization_level": "Q4_K_M", "parameter_size": "134.5M"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 8192},
    },
}
TRTLLM: Answers = {
    "GET /v1/models": {"object": "list", "data": [{"id": "llama", "owned_by": "tensorrt_llm"}]},
    "GET /version": {"version": "1.1.0"},
    "GET /server_info": {"disaggregated_params": None, "max_batch_size": 8, "tp_size": 4},
}
UNKNOWN: Answers = {
    "GET /v1/models": {"data": [{"id": "gpt-large", "owned_by": "somebody"}, {"id": "gpt-small"}]},
}
BY_ENGINE: dict[str, Answers] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llama.cpp": LLAMA,
    "tgi": TGI,
    "ollama": OLLAMA,
    "tensorrt-llm": TRTLLM,
}
