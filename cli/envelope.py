"""`rip envelope`: make, show and check the record of a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import BadInput, OutputFailed

if TYPE_CHECKING:
    from ..schemas.envelope import Envelope
    from ..schemas.fingerprint import Fingerprint

app = typer.Typer(
    no_args_is_help=True,
    help="Make, show and check envelopes: the immutable records of requests that rip replays.",
)


@app.command("create")
def create(
    model: Annotated[
        str, typer.Option("--model", metavar="DIR|FILE.gguf|HUB-ID", help="Whose tokenizer and template make the ids.")
    ],
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="A prompt, taken as it is.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="The same, from a UTF-8 file.")
    ] = None,
    chat: Annotated[
        str | None, typer.Option("--chat", metavar="TEXT", help="One user message, put through the chat template.")
    ] = None,
    messages: Annotated[
        Path | None, typer.Option("--messages", metavar="FILE.json", help="A JSON list of chat messages.")
    ] = None,
    request_id: Annotated[str | None, typer.Option("--id", help="Request id. [default: from the content]")] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option("--sampling", metavar="KEY=VALUE", help="A sampling field, for example temperature=0. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A .json file, or a .jsonl set to append to. [default: stdout]"),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Keep digests of the text in place of it; token ids stay.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a .json file.")] = False,
) -> None:
    """Make an envelope from a prompt or chat messages: token ids from the real tokenizer, hashes filled in.

    \b
    Examples:
      rip envelope create --model ./SmolLM2 --chat "What is a tie in sampling?" --sampling temperature=0 \\
          --sampling max_tokens=64 -o request.json
      rip envelope create --model ./SmolLM2 --prompt-file long.txt --sampling seed=42 -o set.jsonl
    """
    from .console import refuse_overwrite, stderr_console, write_private

    text, spoken = _content(prompt, prompt_file, chat, messages)
    if out is not None and out.suffix != ".jsonl":
        refuse_overwrite(out, force)

    from ..fingerprint.model_ref import resolve
    from ..replay.prompt import load_local_tokenizer, tokenize

    reference = resolve(model)
    fingerprint = identity_of(model)
    tokenizer = load_local_tokenizer(reference.path, str(_known(fingerprint, "model", "sha256")))
    ids = tokenize(tokenizer, text, spoken, None)
    envelope = identified_envelope(fingerprint, request_id, ids, text, spoken, _sampling(sampling or []))
    if redact:
        envelope = envelope.redacted(keep_token_ids=True)
    if out is None:
        print(envelope.to_json(), end="")
        return
    if out.suffix == ".jsonl":
        _append(out, envelope)
    else:
        write_private(out, envelope.to_json())
    stderr_console().print(f"Wrote {out}: {envelope.request_id}, {len(ids)} prompt tokens", soft_wrap=True)


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to show.")],
    as_json: Annotated[bool, typer.Option("--json", help="One complete JSON document per envelope, a line each.")] = False,
) -> None:
    """Show envelopes: identity, prompt, sampling as asked, what is silent and what is unknown.

    \b
    Examples:
      rip envelope show request.json
      rip envelope show set.jsonl --json | head -1
    """
    from ..schemas.base import exactly_representable
    from ..schemas.envelope import is_placeholder, iter_request_set

    for envelope in iter_request_set(path):
        if as_json:
            print(json.dumps(exactly_representable(envelope.to_object()), ensure_ascii=False))
            continue
        print(f"{envelope.request_id}  (id {envelope.sha256()})")
        for field in ("model_artifact_sha256", "tokenizer_sha256", "chat_template_sha256"):
            value = getattr(envelope, field)
            print(f"  {field:22} {'not stated' if value is None or is_placeholder(value) else value}")
        ids = envelope.prompt_token_ids
        print(f"  {'prompt':22} {'text only, no token ids' if ids is None else f'{len(ids)} token ids'}")
        for name, part in (("sampling", envelope.sampling), ("runtime", envelope.runtime)):
            stated = part.model_dump(exclude_none=True)
            print(f"  {name:22} {', '.join(f'{key}={value}' for key, value in stated.items()) or 'silent'}")
        if envelope.expected is not None and envelope.expected.token_ids is not None:
            print(f"  {'expected':22} {len(envelope.expected.token_ids)} tokens")
        if envelope.unknown_fields():
            print(f"  {'unknown, kept':22} {', '.join(envelope.unknown_fields())}")


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(metavar="ENVELOPE.json|SET.jsonl", help="What to check.")],
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR|FILE.gguf|HUB-ID", help="Compare its hashes as well.")
    ] = None,
) -> None:
    """Check that envelopes are valid and complete enough to replay.

    Exit code 0: they are, and the model's hashes agree; 1: valid, but something is missing or differs;
    2: a file or line is invalid.

    \b
    Examples:
      rip envelope check set.jsonl
      rip envelope check request.json --model ./SmolLM2
    """
    from ..replay.contract import completeness, identity_differences
    from ..schemas.envelope import load_requests

    envelopes = load_requests(path)
    fingerprint = identity_of(model) if model else None
    faults = 0
    for envelope in envelopes:
        found = completeness(envelope)
        if fingerprint is not None:
            found += identity_differences(envelope, fingerprint)
        faults += bool(found)
        for finding in found:
            print(f"{envelope.request_id}: {finding}")
    print(f"{len(envelopes)} valid, {len(envelopes) - faults} complete")
    raise typer.Exit(1 if faults else 0)


def _content(
    prompt: str | None, prompt_file: Path | None, chat: str | None, messages: Path | None
) -> tuple[str | None, list[dict[str, Any]] | None]:
    if sum(given is not None for given in (prompt, prompt_file, chat, messages)) != 1:
        raise BadInput("say what was asked, once", "give one of --prompt, --prompt-file, --chat, --messages")
    if chat is not None:
        return None, [{"role": "user", "content": chat}]
    if prompt is not None:
        return prompt, None
    path = prompt_file or messages
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"{path}: cannot be read: {reason}", "check the path, its permissions and encoding") from None
    if prompt_file is not None:
        return text, None
    try:
        spoken = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}: not JSON: {error.msg} (line {error.lineno})", "correct the file there") from None
    if not isinstance(spoken, list) or not spoken or not all(isinstance(item, dict) for item in spoken):
        raise BadInput(f"{path}: a list of messages was expected", 'for example [{"role": "user", "content": "Hi"}]')
    return None, spoken


def _sampling(pairs: list[str]) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadInput(f"--sampling {pair}: not KEY=VALUE", "for example --sampling temperature=0")
        try:
            stated[key] = json.loads(text)
        except json.JSONDecodeError:
            stated[key] = text
    return stated


def identified_envelope(
    fingerprint: Fingerprint,
    request_id: str | None,
    ids: list[int],
    text: str | None,
    messages: list[dict[str, Any]] | None,
    sampling: dict[str, Any],
) -> Envelope:
    """An envelope with the hashes and versions at hand filled in, and a request id made from its content."""
    from ..schemas.base import sha256_of
    from ..schemas.envelope import Envelope

    raw: dict[str, Any] = {
        "model_artifact_sha256": _known(fingerprint, "model", "sha256"),
        "tokenizer_sha256": _known(fingerprint, "tokenizer", "sha256"),
        "chat_template_sha256": _known(fingerprint, "template", "sha256"),
        "prompt_token_ids": ids,
        "prompt_text": text,
        "messages": messages,
        "sampling": sampling,
        "runtime": {
            "engine": "hf",
            "engine_version": _known(fingerprint, "engine", "version"),
            "torch_version": _known(fingerprint, "frameworks", "torch"),
            "quantization": _known(fingerprint, "model", "quantization_method"),
        },
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    envelope = Envelope.from_object({"request_id": request_id or f"req-{sha256_of(raw)[:12]}", **raw}, "the new envelope")
    unknown = [name for name in envelope.unknown_fields() if name.startswith("sampling.")]
    if unknown:
        raise BadInput(f"no such sampling field: {', '.join(unknown)}", "docs/formats.md lists the fields of an envelope")
    return envelope


def _append(path: Path, envelope: Envelope) -> None:
    """Add a line to a request set that is created with mode 0600."""
    import os

    from ..schemas.base import exactly_representable
    from ..schemas.envelope import iter_request_set

    if path.exists() and any(other.request_id == envelope.request_id for other in iter_request_set(path)):
        raise BadInput(f"{path} holds a request {envelope.request_id!r} already", "choose another one with --id")
    line = json.dumps(exactly_representable(envelope.to_object()), ensure_ascii=False) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise OutputFailed(f"{path} could not be written: {error.strerror}", "check the folder and free space") from None


def identity_of(model: str) -> Fingerprint:
    """The fingerprint of this environment and a model, with progress while its files are hashed."""
    from ..fingerprint.collect import collect
    from ..fingerprint.model_ref import resolve
    from .console import progress_bar, stderr_console

    with progress_bar(stderr_console()) as bar:
        task = bar.add_task("hashing the model", total=None, note="")
        return collect(resolve(model), progress=lambda done, total: bar.update(task, completed=done, total=total))


def _known(fingerprint: Fingerprint, section: str, field: str) -> Any:
    found = fingerprint.get(section, field)
    return None if found is None or found.unavailable is not None else found.value
