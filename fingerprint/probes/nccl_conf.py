"""Field `nccl_conf` of section `libraries`: settings that NCCL takes from files; no variable shows them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ...schemas import redact
from ...schemas.fingerprint import Section, fact, unavailable
from ..fields.known_names import VARIABLES
from ..process import proc, root_files
from . import locations

if TYPE_CHECKING:
    from .context import Context

SETTINGS = frozenset(VARIABLES["NCCL"]) | {
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DMABUF_ENABLE",
    "NCCL_ENV_PLUGIN",
    "NCCL_GRAPH_FILE",
    "NCCL_IB_DISABLE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_SHM_DISABLE",
    "NCCL_SINGLE_PROC_MEM_REG_ENABLE",
    "NCCL_WIN_ENABLE",
}
"""What changes algorithm, channels or paths of collectives. Other lines count in the digest only."""
_MAX_BYTES = 1 << 20


def probe(context: Context) -> dict[str, Section]:
    """Digests of the files, and the settings that count, as NCCL's `src/misc/param.cc` reads them.

    The user's file is read before the system's, and neither replaces what is set already: a variable wins
    over both. `NCCL_CONF_FILE` takes the place of `~/.nccl.conf`, and `~` is the home in `/etc/passwd`, not
    `HOME`.
    """
    files: dict[str, str] = {}
    settings: dict[str, str] = {}
    forbidden: proc.Forbidden | None = None
    for name, path in _config_files(context):
        try:
            content = root_files.read_file(context.root, locations.absolute(context, path), _MAX_BYTES)
        except proc.Forbidden as error:
            forbidden = error
            continue
        except proc.Unread:
            continue
        files[name] = hashlib.sha256(content).hexdigest()
        for line in content.decode("utf-8", "backslashreplace").split("\n"):
            key, is_setting, value = line.partition("=")
            if is_setting and not line.startswith("#") and key in SETTINGS:
                settings.setdefault(key, redact.text(value[:1023]))
    if forbidden is not None:
        read = unavailable(redact.text(str(forbidden)), "nccl.conf")
    elif files:
        read = fact({"files": files, "settings": settings}, "nccl.conf")
    elif context.environ_unread is not None:
        reason = f"whether NCCL_CONF_FILE names one is not known: {context.environ_unread}"
        read = unavailable(reason, "nccl.conf")
    else:
        read = unavailable("there is no NCCL configuration file", "nccl.conf")
    return {"libraries": Section(facts={"nccl_conf": read})}


def _config_files(context: Context) -> list[tuple[str, str]]:
    if named := context.environ.get("NCCL_CONF_FILE"):
        user = [("$NCCL_CONF_FILE", named)]
    else:
        known = locations.account(context)
        user = [("~/.nccl.conf", f"{known[1]}/.nccl.conf")] if known else []
    return [*user, ("/etc/nccl.conf", "/etc/nccl.conf")]
