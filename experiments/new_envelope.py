"""New envelopes: prompt and sampling as a user states them, tokenized, with the hashes of the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from ..schemas.errors import BadInput, stated_option
from ..schemas.files import append_private, report_disk_errors
from ..schemas.open_files import open_stream, read_text
from .model_identity import identity_fields, identity_of, runtime_fields
from .progress import Progress

if TYPE_CHECKING:
    from ..schemas.envelope import Envelope
    from ..schemas.fingerprint import Fingerprint


_MOST_NAMED = 5
"""Requests that a warning names."""
_SHOWN_EVERY = 100
"""Prompts between two reports of progress."""


@dataclass(frozen=True)
class Prompt:
    """A text that is taken as it is, or messages that go through the chat template."""

    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    request_id: str | None = None
    """None: made from the content."""
    where: str = "the prompt"
    """File and line, for errors."""


def read_prompt(
    prompt: str | None, prompt_file: Path | None, chat: str | None, messages: Path | None
) -> Prompt:
    """The one prompt among the options.

    Raises:
        BadInput: None or several of them are stated, or a file cannot be used.
    """
    if sum(stated is not None for stated in (prompt, prompt_file, chat, messages)) != 1:
        raise BadInput(
            "exactly one prompt is needed", "give one of --prompt, --prompt-file, --chat, --messages"
        )
    if chat is not None:
        return Prompt(messages=[{"role": "user", "content": chat}])
    if prompt is not None:
        return Prompt(prompt)
    path = prompt_file or messages
    try:
        text = read_text(Path(str(path)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(
            f"{path}: cannot be read: {reason}", "check the path, its permissions and encoding"
        ) from None
    if prompt_file is not None:
        return Prompt(text)
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path}: not JSON: {error.msg} (line {error.lineno})", "correct the file there"
        ) from None
    except (ValueError, RecursionError):
        raise BadInput(
            f"{path}: a number of too many digits, or nested too deeply", "give a plain list of messages"
        ) from None
    if parsed == [] or not isinstance(parsed, list) or not all(isinstance(item, dict) for item in parsed):
        found = "the list of messages is empty" if parsed == [] else "a list of messages was expected"
        raise BadInput(f"{path}: {found}", 'for example [{"role": "user", "content": "Hi"}]')
    return Prompt(messages=parsed)


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a file, read line by line; empty lines are left out.

    Args:
        path: Text with a prompt a line, or `.jsonl` with `prompt`, `chat` or `messages`, and perhaps `id`.

    Raises:
        BadInput: It cannot be read, has none, or a line states no prompt.
    """
    number = 0
    is_empty = True
    try:
        # A byte order mark is none of the prompt.
        with TextIOWrapper(BufferedReader(open_stream(path)), "utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip("\n")
                if text.strip():
                    is_empty = False
                    where = f"{path}:{number}"
                    yield (
                        _stated_prompt(text, where) if path.suffix == ".jsonl" else Prompt(text, where=where)
                    )
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not UTF-8 text, after line {number}", "save it as UTF-8") from None
    if is_empty:
        raise BadInput(f"{path}: no prompt in it", "give one a line")


def _stated_prompt(line: str, where: str) -> Prompt:
    """The prompt that a line of JSON states."""
    from ..schemas.base import parse_json_object

    stated = parse_json_object(line, where)
    name = stated.get("id")
    text, chat, messages = (stated.get(key) for key in ("prompt", "chat", "messages"))
    if isinstance(chat, str):
        messages = [{"role": "user", "content": chat}]
    is_list = isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)
    if isinstance(text, str) == bool(is_list) or not isinstance(name, str | None):
        raise BadInput(f"{where}: no prompt that can be read", 'give {"prompt": "…"}, "chat" or "messages"')
    return Prompt(text if isinstance(text, str) else None, messages if is_list else None, name, where)


def read_sampling(pairs: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts: JSON where it is JSON, else the text itself.

    Raises:
        BadInput: No such field, or a value that does not fit it.
    """
    from pydantic import ValidationError

    from ..schemas.base import describe_validation_error
    from ..schemas.envelope import Sampling

    stated: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        about = stated_option("sampling", pair)
        if not equals or not key:
            raise BadInput("not KEY=VALUE", "for example --sampling temperature=0", about)
        if key not in Sampling.model_fields:
            raise BadInput("no such field", f"choose one of: {', '.join(Sampling.model_fields)}", about)
        try:
            stated[key] = json.loads(text)
        except (ValueError, RecursionError):  # no JSON, or an integer of thousands of digits
            stated[key] = text
        try:
            Sampling.model_validate({key: stated[key]})
        except ValidationError as error:
            problem = describe_validation_error(error, names=False)
            raise BadInput(problem, "docs/formats.md describes the sampling fields", about) from None
    _check_runnable(stated)
    return stated


def _check_runnable(stated: dict[str, Any]) -> None:
    """Refuse what each field may hold, but no engine can run."""
    most, least = stated.get("max_tokens"), stated.get("min_tokens")
    exceeds = most is not None and least is not None and least > most
    in_every_text = "an empty string is part of every text"
    for name, is_wrong, problem, fix in (
        ("max_tokens", most == 0, "there is nothing to generate", "give at least 1"),
        ("min_tokens", exceeds, "more than max_tokens", "lower it"),
        ("allowed_token_ids", stated.get("allowed_token_ids") == [], "no token may follow", "name some"),
        ("stop", "" in _as_list(stated.get("stop")), in_every_text, "leave it out"),
        ("bad_words", "" in _as_list(stated.get("bad_words")), in_every_text, "leave it out"),
    ):
        if is_wrong:
            about = stated_option("sampling", f"{name}={json.dumps(stated[name], ensure_ascii=False)}")
            raise BadInput(f"cannot run: {problem}", fix, about)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def new_envelopes(
    model: str, prompts: Iterable[Prompt], sampling: dict[str, Any], progress: Progress
) -> Iterator[Envelope]:
    """Envelopes of prompts, tokenized with a model's own tokenizer, its hashes filled in.

    Args:
        model: Folder, GGUF file or hub id.
        prompts: Read one by one. One that repeats an earlier one gets a number after its request id.
        sampling: Fields of all of them.
        progress: Notes what a user should know of the prompts, at the end.

    Raises:
        BadInput: No such model or tokenizer, or a prompt without tokens.
    """
    from ..fingerprint.model.ref import resolve
    from ..fingerprint.present.warnings import clock_warning
    from ..replay.engines.model_files import load_local_tokenizer, tokenize

    fingerprint = identity_of(model, progress)
    tokenizer = load_local_tokenizer(resolve(model).path, str(fingerprint.flat()["model_sha256"]))
    made: Counter[str] = Counter()
    doubled: list[str] = []
    has_messages = False
    for number, prompt in enumerate(prompts):
        if number % _SHOWN_EVERY == 0:
            progress.stage("tokenizing", detail=f"{number:,} prompts")
        ids = tokenize(tokenizer, prompt.text, prompt.messages, {})
        if not ids:
            raise BadInput(f"{prompt.where} has no tokens", "give a text that is not empty")
        envelope = _identified(fingerprint, prompt.request_id, ids, prompt, sampling)
        made[envelope.request_id] += 1
        if prompt.request_id is None and (again := made[envelope.request_id]) > 1:
            envelope = envelope.model_copy(update={"request_id": f"{envelope.request_id}-{again}"})
        has_messages = has_messages or prompt.messages is not None
        if len(doubled) <= _MOST_NAMED and _begins_twice(tokenizer, ids):
            doubled.append(envelope.request_id)
        yield envelope
    if has_messages and (clock := clock_warning(fingerprint)):
        progress.note(f"warning: {clock}")
    if doubled:
        named = ", ".join(doubled[:_MOST_NAMED]) + ("…" if len(doubled) > _MOST_NAMED else "")
        progress.note(
            f"warning: {named}: the prompt begins with {getattr(tokenizer, 'bos_token', 'BOS')} twice: the "
            "text holds it, and the tokenizer adds it; take it out of the text, or give --chat or --messages"
        )


def _begins_twice(tokenizer: Any, ids: list[int]) -> bool:
    """Whether a prompt begins with the token for the beginning of a text, and then with it again."""
    begin = getattr(tokenizer, "bos_token_id", None)
    return begin is not None and ids[:2] == [begin, begin]


def _identified(
    fingerprint: Fingerprint, request_id: str | None, ids: list[int], prompt: Prompt, sampling: dict[str, Any]
) -> Envelope:
    """An envelope with the known hashes and versions, and a request id made from its content."""
    from ..schemas.base import sha256_of
    from ..schemas.envelope import Envelope

    known = runtime_fields(fingerprint)
    runtime = {name: known.get(name) for name in ("engine_version", "torch_version", "quantization")}
    raw: dict[str, Any] = {
        **identity_fields(fingerprint),
        "prompt_token_ids": ids,
        "prompt_text": prompt.text,
        "messages": prompt.messages,
        "sampling": sampling,
        "runtime": {"engine": "hf", **runtime},
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    return Envelope.from_object(
        {"request_id": request_id or f"req-{sha256_of(raw)[:12]}", **raw}, "the new envelope"
    )


def append_envelopes(path: Path, envelopes: Iterable[Envelope]) -> None:
    """Add envelopes to a request set, which is created where it does not exist: all of them, or none.

    Raises:
        BadInput: Two requests have one id, in the set or among the new ones.
        OutputFailed: It cannot be written.
    """
    from ..schemas.envelope import iter_request_set

    known = {other.request_id for other in iter_request_set(path)} if path.exists() else set()
    with report_disk_errors(path), TemporaryFile(dir=path.parent) as lines:
        for envelope in envelopes:
            if envelope.request_id in known:
                raise BadInput(
                    f"{path} holds a request {envelope.request_id!r} already", "choose another one with --id"
                )
            known.add(envelope.request_id)
            lines.write(envelope_line(envelope).encode())
        lines.seek(0)
        append_private(path, iter(lambda: lines.read(1 << 20), b""))


def envelope_line(envelope: Envelope) -> str:
    """The line of a request set that holds an envelope."""
    from ..schemas.base import exactly_representable

    return json.dumps(exactly_representable(envelope.to_object()), ensure_ascii=False) + "\n"
