"""`--set` of server engines: settings of the client, arguments and variables of a server that is started."""

from __future__ import annotations

import pytest
from rip.replay.engines.http.settings import (
    CACHE,
    CLIENT_SETTINGS,
    parse_settings,
    resolve_settings,
    server_arguments,
    server_environment,
)
from rip.schemas.errors import BadInput

OWN = {"cache": CACHE}


def parsed(*pairs: str, starts: bool = True) -> dict[str, object]:
    return parse_settings(pairs, OWN, starts)


def test_what_the_client_does_not_know_is_an_argument_of_the_server() -> None:
    given = parsed("max_model_len=2048", "enforce-eager=true", "enable-prefix-caching=false", "timeout=5")
    assert given["timeout"] == 5
    assert server_arguments(given, OWN) == [
        "--max-model-len",
        "2048",
        "--enforce-eager",
        "--no-enable-prefix-caching",
    ]


def test_variables_of_the_environment() -> None:
    given = parsed("env.OMP_NUM_THREADS=1", "env.EMPTY=", "cache=warm")
    assert server_environment(given) == {"OMP_NUM_THREADS": "1", "EMPTY": ""}
    assert server_arguments(given, OWN) == []


def test_the_last_one_of_a_key_applies() -> None:
    assert parsed("timeout=5", "timeout=6") == {"timeout": 6}


@pytest.mark.parametrize("pair", ["max-model-len=2048", "env.X=1", "port=1", "ready_timeout=1"])
def test_a_server_that_runs_already_cannot_be_given_arguments(pair: str) -> None:
    with pytest.raises(BadInput, match="not a setting of a server that is already running") as caught:
        parsed(pair, starts=False)
    assert "batch_size, cache, timeout" in caught.value.fix
    assert parsed("cache=warm", "batch_size=2", starts=False) == {"cache": "warm", "batch_size": 2}


@pytest.mark.parametrize(
    "pair",
    [
        "timeout=0",
        "timeout=x",
        "timeout",
        "=1",
        "batch_size=-1",
        "arrival=soon",
        "cache=",
        "env.1=2",
        "a b=1",
    ],
)
def test_values_that_do_not_fit_are_refused(pair: str) -> None:
    with pytest.raises(BadInput):
        parsed(pair)


def test_values_of_variables_that_sound_secret_are_not_kept() -> None:
    settings = resolve_settings(parsed("env.HF_TOKEN=hf_abc", "env.OMP_NUM_THREADS=1"), CLIENT_SETTINGS)
    assert "hf_abc" not in str(settings)
    assert settings["env.OMP_NUM_THREADS"].resolved == "1"
    assert settings["batch_size"].source == "engine default"
    assert settings["env.HF_TOKEN"].source == "lane"
