"""The key of a server, out of the environment variable that the user named; the key itself is no option."""

from __future__ import annotations

import os

from ..schemas.errors import BadInput


def server_key(url: str | None, api_key_env: str | None) -> str | None:
    """The key for `url`, None where none was named.

    Raises:
        BadInput: There is no server, or the variable is not set.
    """
    if api_key_env is None:
        return None
    if url is None:
        raise BadInput("--api-key-env: there is no server that needs a key", "add --url")
    key = os.environ.get(api_key_env)
    if not key:
        raise BadInput(
            f"--api-key-env: the variable {api_key_env} is not set",
            "export it; give its name, not the key itself",
        )
    return key
