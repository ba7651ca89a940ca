"""Misspelled names get suggestions before any data is loaded; groups without a command show their help."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import numpy as np
import pytest

from autobatch import policies
from autobatch.backends import NAMES
from autobatch.cli.experiment import experiment
from autobatch.cli.main import commands
from autobatch.cli.words import SOME, DataType, PathType
from autobatch.models import MODELS
from helpers.runs.commands import Command


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if data is loaded."""

    def load(*args: object) -> None:
        raise AssertionError("data was loaded")

    monkeypatch.setattr("autobatch.cli.workload.find_model", load)


def groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that name each group of commands."""
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


def commands_with(name: str) -> list[tuple[str, ...]]:
    """Return the words of each command that has a parameter of this name."""
    return [
        (*path, command.name)
        for path in groups(commands)
        for command in find(path).commands.values()
        if command.name and any(parameter.name == name for parameter in command.params)
    ]


def find(path: tuple[str, ...]) -> click.Group:
    """Return a group by its words."""
    group: click.Group = commands
    for word in path:
        found = group.commands[word]
        assert isinstance(found, click.Group)
        group = found
    return group


def misspell(word: str, rng: np.random.Generator) -> str:
    """Swap two neighbouring letters that differ, or double the last letter."""
    places = [place for place in range(1, len(word) - 1) if word[place] != word[place + 1]]
    if not places:
        return word + word[-1]
    place = int(rng.choice(places))
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


@pytest.mark.parametrize("path", list(groups(commands)), ids=" ".join)
def test_a_group_without_a_command_shows_its_help(path: tuple[str, ...], command: Command) -> None:
    status, out, err = command(*path)
    assert (status, err) == (0, "")
    assert out == command(*path, "--help")[1]
    assert all(name in out for name, one in find(path).commands.items() if not one.hidden)
    status, _, err = command(*path, misspell(next(iter(find(path).commands)), np.random.default_rng(0)))
    assert status == 2
    assert "Did you mean" in err


@pytest.mark.parametrize("path", commands_with("model"), ids=" ".join)
@pytest.mark.parametrize("seed", range(3))
def test_the_nearest_model_is_named(path: tuple[str, ...], seed: int, command: Command) -> None:
    rng = np.random.default_rng(seed)
    model = str(rng.choice(list(MODELS)))
    wrong = misspell(model, rng)
    first = ("score",) if path[0] == "policy" and path[1] in ("eval", "show") else ()
    needed = ("--checkpoint", "runs", "--out", "x.ab") if path == ("export",) else ()
    status, out, err = command(*path, *first, wrong, *needed)
    assert (status, out) == (2, "")
    assert f"cannot find model {wrong!r}; did you mean " in err


@pytest.mark.parametrize("path", [*commands_with("policy"), *commands_with("policies")], ids=" ".join)
@pytest.mark.parametrize("name", ["auto", *policies.names()])
def test_the_nearest_policy_is_named(path: tuple[str, ...], name: str, command: Command) -> None:
    wrong = misspell(name, np.random.default_rng(0))
    status, out, err = command(*path, "tree-lstm", "--policy", wrong)
    assert (status, out) == (2, "")
    assert f"got {wrong!r}; did you mean {name}? " in err


@pytest.mark.parametrize("path", commands_with("backend"), ids=" ".join)
@pytest.mark.parametrize("name", NAMES)
def test_the_nearest_backend_is_named(path: tuple[str, ...], name: str, command: Command) -> None:
    wrong = misspell(name, np.random.default_rng(0))
    status, out, err = command(*path, "tree-lstm", "--backend", wrong)
    assert (status, out) == (2, "")
    assert f"did you mean {name!r}? See autobatch {' '.join(path)} --help." in err


@pytest.mark.parametrize("name", ["train", "explain"])
def test_a_command_without_its_model_names_some(name: str, command: Command) -> None:
    status, _, err = command(name)
    assert status == 2
    assert f"Give one, such as {', '.join(SOME)}; `autobatch models` lists all {len(MODELS)}" in err
    assert set(SOME) <= MODELS.keys()


def test_experiments_are_shown_in_a_checkout(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "  experiment " in command("--help")[1]
    monkeypatch.setattr(experiment, "hidden", True)
    assert "  experiment " not in command("--help")[1]


def paths() -> list[tuple[str, ...]]:
    """Return command lines that each pass an empty path to one parameter, for all parameters that are paths or data."""
    found = []
    for path in groups(commands):
        for command in find(path).commands.values():
            for asked in command.params:
                assert isinstance(asked.type, PathType) or not isinstance(asked.type, click.Path), asked
                if not isinstance(asked.type, (PathType, DataType)):
                    continue
                arguments = [x for x in command.params if isinstance(x, click.Argument)]
                given = (
                    [asked.opts[-1], ""] if asked not in arguments else ["" if x is asked else "x" for x in arguments]
                )
                found.append((*path, str(command.name), *given))
    return found


@pytest.mark.parametrize("words", paths(), ids=" ".join)
def test_an_empty_path_is_refused(words: tuple[str, ...], command: Command) -> None:
    """For example from an unset shell variable; it must not stand for another file or the current folder."""
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert err.startswith("autobatch: Invalid value for ")
    assert re.search(r": must be a (generator or a )?path, got ''; see autobatch .* --help\.$", err.strip())


def test_all_that_takes_data_refuses_an_empty_name() -> None:
    assert {words[:-2] for words in paths() if words[-2] == "--data"} == {*commands_with("data")}
