"""Running the proxy: its port, its signals, how the upstream is identified, and its end."""

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
from .call import Upstream
from .forward import Proxy
from .recorder import Recorder, is_known

RETRY_S = 2.0
"""Pause before an upstream that did not answer is identified again."""
PATIENCE_S = 10.0
"""Longest time that listening, or a request to be recorded, waits until the upstream is identified."""
CONNECT_S = 10.0
IDLE_S = 2.0
"""Unused connections are closed before servers close them (5 s is usual), which would lose a request."""
BACKLOG = 2048
GRACE_S = 30
"""Seconds that running requests have to end after the first Ctrl-C; the second ends them at once."""
SWITCH_S = 0.0005
"""Longest time that the writing thread keeps the interpreter from serving; 5 ms is Python's own."""
_POLL_S = 0.1
"""How often a wait checks whether it should end."""
Identify = Callable[[], Upstream | None]
"""Identifies the upstream; None while it does not answer."""


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
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process gets SIGINT or SIGTERM.

    Nothing is served before the upstream is identified, or took too long: what is added to the first requests
    depends on it. Clients that connect meanwhile wait.

    Args:
        listener: From `listening_socket`.
        upstream: Its address, without a final slash.
        recorder: Gets every request that passes, and what the upstream is.
        identify: Called in a thread of its own, at the start and after the upstream was gone.
        on_start: Called when clients are about to be served.
    """
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_serve(listener, upstream, recorder, identify, on_start))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal once it has shut down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


async def _serve(
    listener: socket.socket,
    upstream: str,
    recorder: Recorder,
    identify: Identify,
    on_start: Callable[[], None],
) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
    # A generation may take as long as it does; the client decides how long it waits.
    timeout = httpx.Timeout(None, connect=CONNECT_S)
    async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
        proxy = Proxy(upstream, client, recorder)
        known = _Known(proxy, recorder, identify)
        proxy.until_known = known.wait
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
        identifying = asyncio.create_task(known.keep())
        try:
            with server.capture_signals():  # the first Ctrl-C ends it also while it still identifies
                await known.wait(lambda: server.should_exit)
                if not server.should_exit:
                    on_start()
                    await server.serve(sockets=[listener])
        finally:
            identifying.cancel()


class _Known:
    """Keeps the upstream identified: until it answers, and again after it was gone, as it may be a different
    one then."""

    def __init__(self, proxy: Proxy, recorder: Recorder, identify: Identify) -> None:
        self._proxy, self._recorder, self._identify = proxy, recorder, identify
        self._is_known = self._reported_silence = False
        self._task: asyncio.Task[None] | None = None
        self._slow = False
        """The identification that runs takes too long."""

    async def keep(self) -> None:
        """Identify the upstream whenever that is needed; never ends."""
        while True:
            if self._is_needed():
                await asyncio.wait((self._current(),))
            await asyncio.sleep(RETRY_S)

    async def wait(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Until the upstream is identified, does not answer, or takes too long."""
        if not self._is_needed() or self._slow:
            return
        current, ends = self._current(), asyncio.get_running_loop().time() + PATIENCE_S
        while not current.done() and not gives_up():
            left = ends - asyncio.get_running_loop().time()
            if left <= 0:
                self._slow = True
                return
            await asyncio.wait((current,), timeout=min(left, _POLL_S))

    def _is_needed(self) -> bool:
        return not self._is_known or self._proxy.was_unreachable

    def _current(self) -> asyncio.Task[None]:
        """The identification that runs, or a new one."""
        if self._task is None or self._task.done():
            self._is_known = self._slow = self._proxy.was_unreachable = False
            self._recorder.upstream = Upstream(self._recorder.upstream.url)
            self._task = asyncio.create_task(self._run())
        return self._task

    async def _run(self) -> None:
        found = await _in_thread(self._identify)
        if found is not None:
            self._is_known, self._reported_silence = True, False
            self._recorder.upstream = found
            self._recorder.say(_describe(found, self._recorder.passive))
        elif not self._reported_silence:
            self._reported_silence = True
            self._recorder.say(f"{self._recorder.upstream.url} does not answer yet; rip keeps trying")


def _describe(found: Upstream, passive: bool) -> str:
    name = " ".join(str(part) for part in (found.engine, found.runtime.get("engine_version")) if part)
    if passive:
        return f"upstream: {name or 'of an unknown kind'}; nothing is added to requests"
    if is_known(found.engine):
        return f"upstream: {name}; token ids and log-probabilities are requested, and removed from answers"
    return f"upstream: {name or 'of an unknown kind'}; what to add for it is not known, so nothing is added"


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
