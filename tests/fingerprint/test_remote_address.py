"""The address of a server: TLS, redirects to it, paths, and addresses that are none."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import servers
from fakes.served_readings import ask, value
from fakes.servers import endless, serve, serve_raw
from rip.fingerprint.collect import collect
from rip.fingerprint.drift import drift, not_compared
from rip.fingerprint.remote import client as bounded_http
from rip.fingerprint.remote.address import Server
from rip.schemas.errors import BadInput, EngineFailed


@pytest.fixture
def https_server(tmp_path: Path) -> Iterator[str]:
    """A TLS server with a certificate that nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except (OSError, ssl.SSLError):
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


def test_a_certificate_that_is_not_trusted_is_an_error_with_its_mend(https_server: str) -> None:
    with pytest.raises(EngineFailed, match=r"not trusted \(self.signed certificate\).*SSL_CERT_FILE"):
        collect(server=Server(https_server))


def test_http_to_a_tls_port_is_told_to_use_https(https_server: str) -> None:
    with pytest.raises(EngineFailed, match="speaks TLS, not plain HTTP") as raised:
        collect(server=Server(https_server.replace("https:", "http:")))
    assert raised.value.fix == f"--url {https_server}"


def test_https_to_a_plain_server_is_an_error() -> None:
    with serve(servers.VLLM) as served, pytest.raises(EngineFailed, match="is it http"):
        collect(server=Server(served.url.replace("http:", "https:")))


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://host/", "http://", "http://host:99999", "http://u:p@host"),
        *("http://ho st/", "file:///etc/passwd", "http://host\r\nX: y", "http://[::1", "http://host#x"),
        "http://host/?a=1",
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(BadInput):
        collect(server=Server(url))


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "/"])
def test_the_address_may_be_that_of_the_api(suffix: str) -> None:
    with serve(servers.TGI) as served:
        assert value(collect(server=Server(served.url + suffix)), "engine.name") == "tgi"


def test_an_address_with_a_path_keeps_it() -> None:
    behind = {name.replace(" /", " /replica-3/"): said for name, said in servers.TGI.items()}
    with serve(behind) as served:
        assert value(collect(server=Server(f"{served.url}/replica-3/v1")), "engine.name") == "tgi"


def test_the_server_is_asked_no_more_when_it_falls_silent(short: None) -> None:
    asked: list[str] = []
    with (
        serve_raw(endless(b"", b"", 0.05)) as url,
        pytest.raises(EngineFailed, match="does not answer as an inference"),
    ):
        collect(server=Server(url, on_request=asked.append))
    assert len(asked) == bounded_http.MAX_SILENT


def test_what_only_one_server_tells_is_not_a_change() -> None:
    plain, telling = ask(servers.VLLM), ask(servers.VLLM_DEVELOPMENT)
    places = {(change.section, change.field) for change in drift(plain, telling)}
    assert ("parallelism", "executor") not in places
    assert ("frameworks", "torch") not in places
    assert ("engine", "kv_cache_dtype") in places, "both tell it"
    assert "frameworks.torch" in not_compared(plain, telling)
