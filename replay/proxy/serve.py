"""Running the proxy: its port, its signals, what it asks the upstream about itself, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import httpx
import uvicorn

from ...schemas.errors import BadInput
from .additions import can_be_asked
from .call import Upstream
from .forward import Proxy
from .recorder import Recorder

ASK_AGAIN_S = 2.0
"""Pause before an upstream that did not answer is asked again what it is."""
PATIENCE_S = 10.0
"""Longest time that listening, or a request to be recorded, waits until the upstream has told what it is."""
CONNECT_S = 10.0
IDLE_S = 2.0
"""Unused connections are closed before servers close them (5 s is usual), which would lose a request."""
BACKLOG = 2048
GRACE_S = 30
"""Seconds that running requests have to end after the first Ctrl-C; the second ends them at once."""
SWITCH_S = 0.0005
"""Longest time that the writing thread keeps the interpreter from serving; 5 ms is Python's own."""
_LOOKS_S = 0.1
"""How often a wait looks whether it should end."""
Identify = Callable[[], Upstream | None]
"""Asks the upstream what it is; None while it does not answer."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which the proxy will listen.

    Raises:
        BadInput: The port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on every connection. Without it the first event of a
    # stream waits behind its headers for the client's delayed acknowledgement: some 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise BadInput(
            f"--listen {host}:{port}: {getattr(error, 'strerror', None) or error}",
            "choose another port, or an address of this machine",
        ) from None
    return listener


def serve(
    listener: socket.socket,
    upstream: str,
    recorder: Recorder,
    identify: Identify,
    begins: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process is told to end (SIGINT, SIGTERM).

    Nothing is served before the upstream was asked what it is, or took too long to tell: what the first
    requests are asked for beyond their own fields depends on it. Clients that connect meanwhile wait.

    Args:
        listener: From `listening_socket`.
        upstream: Its address, without a final slash.
        recorder: Told what goes by, and what the upstream is.
        identify: Called in a thread of its own, at the start and after the upstream was gone.
        begins: Called when clients are about to be served.
    """
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_serve(listener, upstream, recorder, identify, begins))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal once it has shut down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told_to_end)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _told_to_end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def _serve(
    listener: socket.socket, upstream: str, recorder: Recorder, identify: Identify, begins: Callable[[], None]
) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
    # A generation may take as long as it does; the client decides how long it waits.
    timeout = httpx.Timeout(None, connect=CONNECT_S)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
        proxy = Proxy(upstream, client, recorder)
        proxy.known = known = _Known(proxy, recorder, identify)
        server = _Server(
            uvicorn.Config(
                proxy,
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                log_level="critical",
                server_header=False,  # the upstream's own are passed on
                date_header=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        asking = asyncio.create_task(known.keep())
        try:
            with server.capture_signals():  # the first Ctrl-C ends it also while it still asks
                await known.wait(lambda: server.should_exit)
                if not server.should_exit:
                    begins()
                    await server.serve(sockets=[listener])
        finally:
            asking.cancel()


class _Known:
    """Keeps known what the upstream is: asks until it answers, and again after it was gone, for it may be
    another then."""

    def __init__(self, proxy: Proxy, recorder: Recorder, identify: Identify) -> None:
        self._proxy, self._recorder, self._identify = proxy, recorder, identify
        self._is_known = self._told_silence = False
        self._asking: asyncio.Task[None] | None = None
        self._slow = False
        """The question that runs has been waited for in vain."""

    async def keep(self) -> None:
        """Ask whenever there is something to ask; never ends."""
        while True:
            if self._must_ask():
                await asyncio.wait((self._asked(),))
            await asyncio.sleep(ASK_AGAIN_S)

    async def wait(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Until the upstream has told what it is, is found not to answer, or takes too long."""
        if not self._must_ask() or self._slow:
            return
        asking, ends = self._asked(), asyncio.get_running_loop().time() + PATIENCE_S
        while not asking.done() and not gives_up():
            left = ends - asyncio.get_running_loop().time()
            if left <= 0:
                self._slow = True
                return
            await asyncio.wait((asking,), timeout=min(left, _LOOKS_S))

    def _must_ask(self) -> bool:
        return not self._is_known or self._proxy.was_unreachable

    def _asked(self) -> asyncio.Task[None]:
        """The question that runs, or a new one."""
        if self._asking is None or self._asking.done():
            self._is_known = self._slow = self._proxy.was_unreachable = False
            self._recorder.upstream = Upstream(self._recorder.upstream.url)
            self._asking = asyncio.create_task(self._ask())
        return self._asking

    async def _ask(self) -> None:
        found = await _in_thread(self._identify)
        if found is not None:
            self._is_known, self._told_silence = True, False
            self._recorder.upstream = found
            self._recorder.say(_describe(found, self._recorder.passive))
        elif not self._told_silence:
            self._told_silence = True
            self._recorder.say(
                f"{self._recorder.upstream.url} does not answer yet; it is asked again until it does"
            )


def _describe(found: Upstream, passive: bool) -> str:
    name = " ".join(str(part) for part in (found.engine, found.runtime.get("engine_version")) if part)
    if passive:
        return f"upstream: {name or 'of an unknown kind'}; nothing is added to requests"
    if can_be_asked(found.engine):
        return f"upstream: {name}; token ids and log-probabilities are asked for and taken out again"
    return f"upstream: {name or 'of an unknown kind'}; what to ask it for is not known, so nothing is added"


async def _in_thread(identify: Identify) -> Upstream | None:
    """In a daemon thread, which cannot hold up the end of the process."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Upstream | None] = loop.create_future()

    def deliver(result: Upstream | None) -> None:
        if not found.done():
            found.set_result(result)

    def ask() -> None:
        result = identify()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=ask, name="rip-identify", daemon=True).start()
    return await found
