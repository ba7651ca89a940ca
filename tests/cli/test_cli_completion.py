"""Shell completions, computed by click's own classes, and how quickly they appear."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from autobatch import policies
from autobatch.backends import NAMES
from autobatch.cli.main import commands
from autobatch.models import MODELS
from autobatch.models.data.dataset import GENERATORS

EVERY_COMMAND = ["train", "eval", "predict", "bench", "explain", "models", "data", "doctor"]


def offered(*words: str) -> list[tuple[str, str]]:
    """Return the (type, value) pairs offered to complete the last of these words."""
    *before, incomplete = words
    shell = BashComplete(commands, {}, "autobatch", "_AUTOBATCH_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(before, incomplete)]


def names_offered(*words: str) -> list[str]:
    return [value for kind, value in offered(*words) if kind == "plain"]


def test_commands_and_options_are_offered() -> None:
    assert set(EVERY_COMMAND) <= set(names_offered(""))
    assert {"--checkpoint", "--checkpoint-steps"} == set(names_offered("train", "--check"))


@pytest.mark.parametrize("command", ["train", "eval", "predict", "bench", "explain"])
def test_models_are_offered_by_name(command: str) -> None:
    assert names_offered(command, "") == list(MODELS)
    assert "tree-lstm" in names_offered(command, "tree")
    assert "bilstm-tagger" not in names_offered(command, "tree")


def test_policies_are_offered_one_by_one_or_several() -> None:
    assert names_offered("train", "tree-lstm", "--policy", "") == ["auto", *policies.names()]
    assert names_offered("train", "tree-lstm", "--policy", "dep") == ["depth"]
    assert names_offered("bench", "tree-lstm", "--policy", "dep") == ["depth"]
    assert names_offered("bench", "tree-lstm", "--policy", "depth,unb") == ["depth,unbatched"]
    assert "depth,depth" not in names_offered("explain", "tree-lstm", "--policy", "depth,")


def test_backends_are_offered() -> None:
    assert names_offered("bench", "--backend", "") == ["auto", *NAMES]


def test_generators_and_paths_are_offered() -> None:
    assert names_offered("train", "tree-lstm", "--data", "li") == ["listops"]
    assert names_offered("bench", "--data", "") == list(GENERATORS)
    assert offered("train", "tree-lstm", "--data", "path/to")[-1] == ("file", "path/to")


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
def test_each_shell_gets_a_script(shell: type[BashComplete]) -> None:
    source = shell(commands, {}, "autobatch", "_AUTOBATCH_COMPLETE").source_template
    assert "%(complete_var)s" in source


def test_the_command_itself_answers_a_shell_without_slow_imports(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPROFILEIMPORTTIME": "1",
        "_AUTOBATCH_COMPLETE": "bash_complete",
        "COMP_WORDS": "autobatch train tree-lstm --policy ag",
        "COMP_CWORD": "4",
    }
    arguments = [sys.executable, "-m", "autobatch.cli.main"]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,agenda\n"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"llvmlite", "torch", "matplotlib", "rich.progress", "tensorboard"}
