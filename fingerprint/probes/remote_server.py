"""A live server that was named by its address: which engine it is, and what it reports of itself.

Only requests that change nothing are sent. Of the machine it runs on, nothing is known from here: the
sections that a server does not report say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...schemas.errors import EngineFailed
from ...schemas.fingerprint import FLAT_KEYS, NOT_VISIBLE_FROM_SERVER, Observed, Section, fact
from ..engine_arguments.meaning import EXPECTED
from ..remote import server_tables, vllm
from ..remote.client import Client, NoAnswer, Unreachable
from ..remote.server_reading import NOT_REPORTED, ServerReading, part, rows, text_or_empty

if TYPE_CHECKING:
    from .context import Context

_HOST = "a server does not tell of its machine: run rip fingerprint --pid there"
_NOT_EVERYWHERE = (
    "model.served",
    "model.served_name",
    "model.adapters",
    "tokenizer.probe",
    "template.sha256",
    "sampling.server_defaults",
    "engine.name",
    "engine.version",
    "replica.weight_version",
    *(f"{section}.{field}" for section, field in (*EXPECTED, *FLAT_KEYS.values())),
)
"""Fields that some servers report and others do not."""
_OF_THE_HOST = (
    "frameworks.torch",
    "libraries.cuda",
    "libraries.cublas",
    "gpus.name_and_compute_capability",
    "driver.version",
    "kernels.triton",
    "cpu.model",
    "os.kernel",
    "determinism.batch_invariance",
)
_OWNERS: dict[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "tensorrt-llm",
    "library": "ollama",
}
"""What `/v1/models` calls the owner of a model → the engine."""
_READERS: dict[str, Callable[[ServerReading], None]] = {
    "vllm": vllm.read,
    "sglang": server_tables.read_sglang,
    "llama.cpp": server_tables.read_llama,
    "tgi": server_tables.read_tgi,
    "ollama": server_tables.read_ollama,
    "tensorrt-llm": server_tables.read_tensorrt_llm,
}


def probe(context: Context) -> dict[str, Section]:
    """All sections, from what the server answers.

    Raises:
        BadInput: Its address is none.
        EngineFailed: Nothing there answers as an inference server does.
    """
    assert context.server is not None
    client = Client(context.server, context.stop)
    reading = ServerReading(client, (context.server.api_key,) if context.server.api_key else ())
    models, reason = _list_models(reading)
    name = _engine(client, models)
    if name is not None:
        reading.add("engine.name", name, "its endpoints")
        _READERS[name](reading)
    elif not _is_list_of_models(models):
        raise _unreadable(client, reason)
    else:
        reading.add_absent(
            ["engine.name"], "no endpoint of an engine that rip knows answers", "its endpoints"
        )
        # Several engines answer `/version` alike: it does not say whose version that is.
        reading.ask_version()
    _add_model_names(models, reading)
    reading.add_volatile("replica.refused", client.refused or None, "HTTP status")
    reading.add_volatile("replica.url", client.url, "--url")
    return _complete(reading)


def _list_models(reading: ServerReading) -> tuple[Any, NoAnswer]:
    """What `/v1/models` answers, which almost every server has; and why it names no models, if so."""
    try:
        reply = reading.client.get("/v1/models")
        reading.add("replica.server_header", reply.headers.get("server"), "HTTP header")
        return reply.json(), NoAnswer("its /v1/models is no list of models")
    except NoAnswer as reason:
        if isinstance(reason, Unreachable):
            raise _unreadable(reading.client, reason) from None
        reading.add_absent(["model.served_name", "model.served"], str(reason), "/v1/models")
        return None, reason


def _is_list_of_models(models: Any) -> bool:
    """Whether that is the list of the OpenAI API; it may be empty."""
    listed = part(models, "data")
    if listed == []:
        return bool(part(models, "object") == "list")
    return any(isinstance(model.get("id"), str) for model in rows(listed))


def _unreadable(client: Client, reason: NoAnswer) -> EngineFailed:
    """The error of a server of which nothing could be read: why, and what to do about it."""
    if client.uses_tls():
        return EngineFailed(
            f"{client.url} speaks TLS, not plain HTTP", f"--url https{client.url.removeprefix('http')}"
        )
    if isinstance(reason, Unreachable):
        return EngineFailed(f"{client.url} cannot be asked: {reason}", reason.fix)
    if reason.absent and client.refused:
        reason = client.refusal()
    return EngineFailed(
        f"{client.url} does not answer as an inference server does: {reason.reason}", reason.fix
    )


def _engine(client: Client, models: Any) -> str | None:
    """The engine: as the owner of its models, else by an endpoint that only it has."""
    owners = {
        _OWNERS.get(text_or_empty(model.get("owned_by")).lower()) for model in rows(part(models, "data"))
    }
    known = [owner for owner in owners if owner is not None]
    if len(known) == 1 and len(owners) == 1:
        return known[0]
    for path, recognise in (
        ("/info", server_tables.recognise_tgi),
        ("/props", server_tables.recognise_llama),
        ("/api/version", server_tables.recognise_ollama),
        ("/server_info", server_tables.recognise_sglang),
        ("/load", vllm.recognise),
    ):
        try:
            name = recognise(client.get(path).json())
        except NoAnswer:
            continue
        if name is not None:
            return name
    return known[0] if len(known) == 1 else None


def _add_model_names(models: Any, reading: ServerReading) -> None:
    """Base models and adapters, as the OpenAI API lists them. A provider lists many: they are one list."""
    listed = [model for model in rows(part(models, "data")) if isinstance(model.get("id"), str)]
    bases = [model for model in listed if not model.get("parent")]
    names = [model["id"] for model in bases]
    adapters = {model["id"]: model.get("root") for model in listed if model.get("parent")}
    source = "/v1/models"
    reading.add("model.served_name", names[0] if len(names) == 1 else sorted(names) or None, source)
    if adapters:
        reading.add("model.adapters", adapters, source)
    if len(names) == 1:
        reading.add("model.served", bases[0].get("root"), source)
        reading.add("engine.max_model_len", bases[0].get("max_model_len"), source)


def _complete(reading: ServerReading) -> dict[str, Section]:
    """Every field that a fingerprint is expected to have, known or not."""
    reading.add_absent(
        ["sampling.contract_version"], "the server samples by its own rules, not by rip's", "rip"
    )
    reading.add_absent(["replica.id"], "the server does not name its replica", NOT_VISIBLE_FROM_SERVER)
    only_generated = "it comes with generated answers only: replay a request"
    reading.add_absent(["replica.system_fingerprint"], only_generated, NOT_VISIBLE_FROM_SERVER)
    reading.add_absent(_OF_THE_HOST, _HOST, NOT_VISIBLE_FROM_SERVER)
    reading.add_absent(_NOT_EVERYWHERE, NOT_REPORTED, NOT_VISIBLE_FROM_SERVER)
    sections = reading.sections()
    sections["process"] = Section(facts={"observed": fact(Observed.SERVER.value, "rip")})
    return sections
