"""A recording proxy in front of a server, with the model's identity and what the server reports of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..schemas.choices import Redaction
from ..schemas.errors import EngineFailed, MissingPackage
from .lanes.request import read_server_key
from .model_identity import identity_fields, identity_of, runtime_fields
from .progress import Progress

if TYPE_CHECKING:
    from ..fingerprint.remote.address import Server
    from ..replay.proxy.call import Upstream
    from ..replay.proxy.recorder import Recorder


@dataclass(frozen=True)
class RecordingRequest:
    """What `rip record` is asked for, as its options say it.

    Attributes:
        upstream: Address of the server.
        out: Folder, or a new file, of the envelopes.
        address: Host and port where clients connect; port 0 takes a free one.
        rate: Share of the requests that is recorded, 0 to 1.
        seed: Chooses which.
        rotate_bytes: Size beyond which the next file begins; None: never.
        redact: What the envelopes lose; None: nothing.
        model: The model that the server serves; its hashes go into every envelope.
        keep_raw: Keep the bytes of answers.
        longest_bytes: Longest answer that is kept.
        passive: Add nothing to requests.
        api_key_env: The environment variable that holds a key for the server.
    """

    upstream: str
    out: Path
    address: tuple[str, int]
    rate: float
    seed: int
    rotate_bytes: int | None
    redact: Redaction | None
    model: str | None
    keep_raw: bool
    longest_bytes: int
    passive: bool
    api_key_env: str | None


@dataclass(frozen=True)
class Listening:
    """A proxy that is about to serve.

    Attributes:
        address: Where clients connect.
        upstream: The server behind it.
        path: The file that is written.
    """

    address: str
    upstream: str
    path: Path


def record_traffic(
    request: RecordingRequest,
    progress: Progress,
    on_listening: Callable[[Listening], None],
    on_end: Callable[[Recorder], None],
) -> None:
    """Serve and record until the process is interrupted.

    Args:
        on_listening: Called before the first client is served.
        on_end: Called when it ends, in whatever way, with the counts.

    Raises:
        BadInput, OutputFailed: It cannot begin.
        MissingPackage: The server package is not installed.
    """
    from ..fingerprint.remote.address import Server, checked
    from ..schemas.redact import is_secret

    url = checked(request.upstream)
    server = Server(url, read_server_key(url, request.api_key_env))
    try:
        from ..replay.proxy.serve import listening_socket, serve
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"the package {error.name!r} is not installed", "pip install 'rip-forensics[record]'"
        ) from None
    from ..replay.proxy.call import Upstream
    from ..replay.proxy.recorder import Recorder
    from ..replay.proxy.store import RecordingFiles, Store, StoreOptions

    files = RecordingFiles.of(request.out)
    identity = {} if request.model is None else identity_fields(identity_of(request.model, progress))
    with listening_socket(*request.address) as listener:
        options = StoreOptions(
            dict(identity), is_secret, request.rotate_bytes, request.redact, request.keep_raw
        )
        store = Store(files, options, progress.note)
        recorder = Recorder(
            store,
            Upstream(url),
            request.rate,
            request.seed,
            request.longest_bytes,
            request.passive,
            progress.note,
        )
        host, port = listener.getsockname()[:2]
        listening = Listening(f"http://{f'[{host}]' if ':' in host else host}:{port}", url, store.path)
        try:
            serve(
                listener,
                url,
                recorder,
                lambda: _identify(server, store.keep_document),
                lambda: on_listening(listening),
            )
        finally:
            store.close()
            on_end(recorder)


def _identify(server: Server, keep_document: Callable[[str, str], None]) -> Upstream | None:
    """What the server reports of itself; None while it does not answer."""
    from ..fingerprint.collect import collect
    from ..replay.proxy.call import Upstream

    try:
        found = collect(server=server)
    except EngineFailed:
        return None
    runtime = runtime_fields(found)
    keep_document(f"fingerprint-{found.root_digest[:12]}.json", found.to_json())
    return Upstream(server.url, runtime.get("engine"), runtime, found.root_digest)
