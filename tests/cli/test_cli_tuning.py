"""The command line chooses threads and variants, pins them, and refuses what is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autobatch.cli.main import commands

SMALL = ("tree-lstm", "--dim", "4", "--batch-size", "8")
SHORT = ("--minibatches", "1", "--repeats", "1")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["train", "eval", "predict", "bench", "explain"])
def test_every_command_that_runs_a_model_can_be_told(command: str) -> None:
    told = call(command, "--help").output
    assert "--threads" in told
    assert "--tune off|auto|FILE" in told


def test_bench_chooses_before_it_measures(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    told = call("bench", *SMALL, "--policy", "score", "--tune", "auto", "--threads", "auto", "--json", out, *SHORT)
    assert told.exit_code == 0, told.output
    assert "BLAS threads: auto" in told.output
    assert json.loads(out.read_text())["threads"] == "auto"


def test_explain_tells_what_is_pinned(tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps({"share": True, "stacks": False, "sums": False}))
    told = call("explain", *SMALL, "--policy", "score", "--tune", path)
    assert told.exit_code == 0, told.output
    assert "share on, stacks off, sums off (pinned)" in told.output
    assert "nodes shared" in told.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["bench", *SMALL, "--threads", "0"], "'0' is no number of threads; give one of at least 1, or auto."),
        (["bench", *SMALL, "--threads", "many"], "'many' is no number of threads"),
        (["bench", "--peers", "--threads", "auto"], "--peers compares at given numbers of threads; give one."),
        (["bench", "--peers", "--tune", "auto"], "--peers takes no --tune; leave it out."),
    ],
)
def test_what_is_no_choice_is_refused(arguments: list[str], why: str) -> None:
    told = call(*arguments)
    assert told.exit_code == 2
    assert why in told.output


def test_decisions_are_read_before_anything_else(tmp_path: Path) -> None:
    """Nothing is loaded for a choice that there is not: no such data, but that is not what is told."""
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps({"speed": 1}))
    for tune, why in (("nofile.json", "tune='nofile.json' is neither"), (path, "there is no choice 'speed'")):
        told = call("train", *SMALL, "--data", "no/such/data", "--tune", tune)
        assert told.exit_code != 0
        assert why in str(told.exception)


def test_a_file_that_holds_no_decisions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    path.write_text("{}}")
    told = call("train", *SMALL, "--tune", path)
    assert told.exit_code != 0
    assert f"reading decisions from {str(path)!r}" in str(told.exception)
