"""Command lines as data: only what differs from a default is written, and a shell reads them back."""

from __future__ import annotations

import shlex

from rip.schemas.command_line import DivergeCommand, QueryCommand, ReplayCommand, shell_line


def test_only_what_is_stated_is_written() -> None:
    assert ReplayCommand("r.json").arguments() == ["replay", "r.json"]
    assert DivergeCommand("a", "b").arguments() == ["diverge", "a", "b"]
    assert DivergeCommand("a", "b", "bitwise").arguments()[-2:] == ["--require", "bitwise"]
    assert QueryCommand("-out", "SELECT 1").arguments() == ["query", "./-out", "SELECT 1"]


def test_every_field_of_a_replay_is_written() -> None:
    command = ReplayCommand(
        "set.jsonl",
        out="t.parquet",
        lane="n",
        model="m",
        engine="vllm",
        url="http://h",
        api_key_env="KEY",
        python="p",
        tap="taps",
        mode="golden-decode",
        golden="-a.parquet",
        neighbours="7",
        repeat=2,
        settings=[("dtype", "float32"), ("x", "")],
        capture="tokens",
        sites="mlp",
        allow_drift=True,
        force=True,
    )
    assert " ".join(command.arguments()) == (
        "replay set.jsonl --model m --engine vllm --url http://h --api-key-env KEY --python p --tap taps "
        "--mode golden-decode --golden ./-a.parquet --neighbours 7 --repeat 2 --set dtype=float32 --set x= "
        "--capture tokens --sites mlp --lane n --allow-drift -o t.parquet --force"
    )


def test_every_field_of_a_comparison_is_written() -> None:
    command = DivergeCommand("-a", "b", "token", out="-o", force=True, reference="r", zoom=True)
    assert " ".join(command.arguments()) == "diverge ./-a b -o ./-o --force --reference r --zoom"


def test_a_line_survives_the_shell_and_a_leading_dash() -> None:
    arguments = ReplayCommand("-odd name.json", settings=[("a", "x y; z")]).arguments()
    assert arguments[1] == "./-odd name.json"
    assert shlex.split(shell_line(arguments)) == ["rip", *arguments]
