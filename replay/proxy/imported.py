"""Requests that others recorded, as envelopes: OpenAI batch files and logs, SGLang dumps and logs.

Lines of several files are joined: the input and the output of a batch are two files with one `custom_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from ...schemas.base import parse_json_object
from ...schemas.choices import ImportFormat
from ...schemas.envelope import MAX_ENVELOPE_BYTES, Envelope
from ...schemas.errors import BadInput
from ...schemas.jsontext import list_of_lines, whole_document
from ...schemas.open_files import open_stream
from ..wire import invalid_sampling, shortened
from . import plain_pickle, sglang_dump
from .engine_log import EngineLog
from .exchange import Answer, Circumstances, Json, compose, context_of, error_text, read_request

_PICKLE_START = b"\x80"
_PIECE_BYTES = 1 << 20
_FIX = (
    "give lines of an OpenAI batch (custom_id, body), of {request, response}, request bodies with messages "
    "or prompt, a dump or JSON log of SGLang, or vLLM's log with --enable-log-requests"
)


@dataclass
class Imported:
    """What the files contain.

    Attributes:
        envelopes: In the order of the requests.
        passed_over: Requests that are not text generations, and log events that add nothing.
        unclaimed: `custom_id` of every answer whose request is in none of the files.
        unread: Where sampling fields have values that are not valid, and which: kept as they were stated.
    """

    envelopes: list[Envelope] = field(default_factory=list)
    passed_over: int = 0
    unclaimed: list[str] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """A line of a file, or the file itself."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return str(self.path) + self._number

    @property
    def name(self) -> str:
        """Without its folder: `log.jsonl:3`."""
        return self.path.name + self._number

    @property
    def _number(self) -> str:
        return "" if self.line is None else f":{self.line}"


@dataclass
class _Exchange:
    """One OpenAI request and what is known of its answer."""

    place: _Place
    body: Json
    url: str
    name: str | None
    response: Json | None = None
    status: int | None = None
    error: Any = None


def import_files(
    paths: list[Path], form: ImportFormat, identity: Json, is_secret: Callable[[str], bool]
) -> Imported:
    """Read files of requests.

    Args:
        paths: JSONL, or pickle files that SGLang dumped.
        form: What they hold; `auto` detects it.
        identity: Hashes of the model, for every envelope.
        is_secret: Whether a field of that name holds a secret.

    Raises:
        BadInput: At the first line that is not a request, named by file and line.
    """
    reading = _Reading(form, identity, is_secret)
    for path in paths:
        if _is_pickle(path):
            reading.take_pickle(path)
            continue
        for place, line in _lines(path):
            reading.take_line(place, line)
    reading.join_answers()
    return reading.found


class _Reading:
    """What has been read of the files so far."""

    def __init__(self, form: ImportFormat, identity: Json, is_secret: Callable[[str], bool]) -> None:
        self._form = form
        self._identity = identity
        self._is_secret = is_secret
        self._waiting: list[_Exchange] = []
        self._by_name: dict[str, _Exchange] = {}
        self._answers: list[tuple[str, str, Json]] = []
        """Where, `custom_id`, and the line, of answers whose requests are lines of their own."""
        self._seen: set[str] = set()
        self.found = Imported()

    def take_pickle(self, path: Path) -> None:
        """Read a dump of SGLang."""
        if self._form == "openai":
            raise BadInput(f"{path}: a pickle, not an OpenAI file", "leave out --format")
        for dumped in sglang_dump.read_dump(_content(path), str(path)):
            self._add_sglang(dumped, dumped.where)

    def take_line(self, place: _Place, line: Json) -> None:
        """Read a line: of SGLang's log, a request, or an answer."""
        where = str(place)
        if self._form != "openai" and ("event" in line or "obj" in line):
            logged = sglang_dump.from_log_line(line, where)
            if logged is None:
                self.found.passed_over += 1
            else:
                self._add_sglang(logged, where)
            return
        if self._form == "sglang":
            raise BadInput(f"{where}: not a line of SGLang's JSON request log", "leave out --format")
        if "custom_id" in line and "body" not in line and "request" not in line:
            self._answers.append((where, str(line["custom_id"]), line))
            return
        exchange = _exchange(line, place)
        if exchange.name is not None and "custom_id" in line:
            if exchange.name in self._by_name:
                raise BadInput(f"{where}: the custom_id {exchange.name!r} occurs twice", "give each its own")
            self._by_name[exchange.name] = exchange
        self._waiting.append(exchange)

    def join_answers(self) -> None:
        """Give every answer to its request, and make envelopes of the OpenAI requests."""
        for where, name, line in self._answers:
            if name in self._by_name:
                _take_answer(self._by_name[name], line.get("response"), line.get("error"))
                continue
            self.found.unclaimed.append(name)
            if len(self.found.unclaimed) == len(self._answers):
                raise BadInput(
                    f"{where}: an answer to {name!r}, whose request is in none of the files",
                    "also give the file of requests: the batch's input",
                )
        for exchange in self._waiting:
            for raw in self._envelopes_of(exchange):
                self._add(raw, str(exchange.place))

    def _add_sglang(self, exchange: sglang_dump.Exchange, where: str) -> None:
        for raw in sglang_dump.envelopes_of(exchange, self._identity, self._is_secret):
            self._add(raw, where)

    def _envelopes_of(self, exchange: _Exchange) -> Iterator[Json]:
        body = exchange.body
        chat = "messages" in body
        if "prompt" not in body and not chat:  # an embedding, a response, a moderation
            self.found.passed_over += 1
            return
        request = read_request(body, chat, self._is_secret)
        if not request.prompts:
            raise BadInput(f"{exchange.place}: the prompt has a form that an envelope cannot hold", _FIX)
        answer = Answer()
        if exchange.response is not None:
            answer.add(exchange.response)
        if exchange.error is not None:
            answer.error = error_text({"error": exchange.error}) or "error"
        context = context_of(answer, exchange.status)
        if exchange.url:
            context["route"] = exchange.url
        known = Circumstances(exchange.status in (None, 200), context=context, identity=self._identity)
        name = exchange.name or answer.response_id or exchange.place.name
        yield from compose(request, answer, name, known)

    def _add(self, raw: Json, where: str) -> None:
        """Add an envelope, under a request id of its own."""
        base, number = raw["request_id"], 1
        while raw["request_id"] in self._seen:
            number += 1
            raw = {**raw, "request_id": f"{base}~{number}"}
        self._seen.add(raw["request_id"])
        envelope = Envelope.from_object(raw, where)
        self.found.envelopes.append(envelope)
        if unread := _unread(envelope):
            self.found.unread[where] = unread


def _unread(envelope: Envelope) -> list[str]:
    """Stated sampling fields that are not valid, with their values."""
    stated = invalid_sampling(envelope.request)
    if envelope.sampling.max_tokens == 0 and not (envelope.request or {}).get("echo"):
        stated["max_tokens"] = 0  # a form of its own with echo: to score the prompt
    return [f"{name} {shortened(value)}" for name, value in stated.items()]


def _refuse_documents(line: Json, where: str) -> None:
    """Refuse what rip wrote itself.

    Raises:
        BadInput: An envelope, or another document of rip.
    """
    schema = line.get("schema")
    is_envelope = "request_id" in line and "prompt_token_ids" in line and "body" not in line
    if is_envelope or (isinstance(schema, str) and schema.startswith("rip.envelope/")):
        raise BadInput(
            f"{where}: already an envelope, so there is nothing to import",
            "use the file as it is: rip replay and rip envelope check read it",
        )
    if isinstance(schema, str) and schema.startswith("rip."):
        raise BadInput(f"{where}: a document of rip ({schema}), which holds no request", _FIX)


def _exchange(line: Json, place: _Place) -> _Exchange:
    """A line that holds a request, with or without its answer."""
    _refuse_documents(line, str(place))
    body = line.get("body", line.get("request", line))
    url = line.get("url")
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        url, body = body.get("url", url), body["body"]
    if not isinstance(body, dict) or not ({"messages", "prompt", "input"} & set(body)):
        raise BadInput(f"{place}: not a request in any known form", _FIX)
    if body is line:  # a request body that carries its answer
        body = {key: value for key, value in line.items() if key not in ("response", "error", "custom_id")}
    names = [line[key] for key in ("custom_id", "request_id", "id") if isinstance(line.get(key), str)]
    name = next(filter(None, names), None)
    if name is not None and "custom_id" not in line:
        body = {key: value for key, value in body.items() if key not in ("request_id", "id")}
    found = _Exchange(place, body, url if isinstance(url, str) else "", name)
    _take_answer(found, line.get("response"), line.get("error"))
    return found


def _take_answer(exchange: _Exchange, response: Any, error: Any) -> None:
    if isinstance(response, dict):
        status = response.get("status_code")
        exchange.status = status if type(status) is int else exchange.status
        inner = response.get("body")
        exchange.response = inner if isinstance(inner, dict) else response
    exchange.error = error if error is not None else exchange.error


def _lines(path: Path) -> Iterator[tuple[_Place, Json]]:
    """(place, object) of every line that is not empty, or the one object that the whole file is."""
    log = EngineLog()
    is_log = False
    with _opened(path) as file:
        for number in count(1):
            place = _Place(path, number)
            line = file.readline(MAX_ENVELOPE_BYTES + 1)
            if not line:
                return
            if len(line) > MAX_ENVELOPE_BYTES:
                raise BadInput(f"{place}: longer than {MAX_ENVELOPE_BYTES >> 20} MiB", _FIX)
            if not line.strip():
                continue
            is_object = line.lstrip()[:1] == b"{"
            is_log = is_log or (not is_object and log.is_line(line))
            if is_log and not is_object:  # of other lines of a log nothing is asked
                if (logged := log.read(line, str(place))) is not None:
                    yield place, logged
                continue
            try:
                found = parse_json_object(line, str(place))
            except BadInput:
                document = whole_document(path, line, MAX_ENVELOPE_BYTES)
                if document is None:
                    raise
                if not isinstance(document, dict):
                    raise list_of_lines(path) from None
                yield _Place(path), document
                return
            yield place, found


def _is_pickle(path: Path) -> bool:
    with _opened(path) as file:
        return file.read(1) == _PICKLE_START or path.suffix in (".pkl", ".pickle")


def _content(path: Path) -> bytes:
    pieces, size = [], 0
    with _opened(path) as file:  # by pieces: to ask for the most would take its memory for any file
        while size <= plain_pickle.MOST_BYTES and (piece := file.read(_PIECE_BYTES)):
            pieces.append(piece)
            size += len(piece)
    if size > plain_pickle.MOST_BYTES:
        raise BadInput(
            f"{path}: larger than {plain_pickle.MOST_BYTES >> 30} GiB", "dump fewer requests a file"
        )
    return b"".join(pieces)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """BadInput where it cannot be read."""
    try:
        with BufferedReader(open_stream(path)) as file:
            yield file
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None
