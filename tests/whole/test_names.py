"""Missing names of the package raise helpful errors, and the package runs as a module."""

from __future__ import annotations

import subprocess
import sys

import pytest

import autobatch as ab
from autobatch.missing import INSTEAD
from helpers.runs.ways import each


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("zeros", "write np.zeros"),
        ("zeros_like", r"write np.zeros\(x.shape\)"),
        ("cat", "write ab.concat"),
        ("rellu", r"did you mean ab.relu\?"),
        ("Linaer", r"did you mean ab.Linear\?"),
    ],
)
def test_a_missing_name_says_what_to_write(name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'autobatch' has no attribute '{name}'; .*{told}$") as found:
        getattr(ab, name)
    assert found.value.name == name


@each(
    "module, name, meant",
    [("optim", "Adm", "Adam"), ("policies", "Scor", "Score"), ("readers", "read_cvs", "read_csv")],
)
def test_a_missing_name_of_a_module_has_a_suggestion(module: str, name: str, meant: str) -> None:
    told = rf"^module 'autobatch.{module}' has no attribute '{name}'; did you mean {meant}\?$"
    with pytest.raises(AttributeError, match=told):
        getattr(getattr(ab, module), name)
    assert not hasattr(getattr(ab, module), "xyzzy")


def test_policies_list_their_public_names_only() -> None:
    assert dir(ab.policies) == sorted(ab.policies.__all__)


def test_a_name_like_no_other_is_just_missing() -> None:
    with pytest.raises(AttributeError, match=r"^module 'autobatch' has no attribute 'xyzzy'$"):
        getattr(ab, "xyzzy")  # noqa: B009


@each("name", INSTEAD)
def test_names_with_advice_are_missing_and_advice_names_what_is_there(name: str) -> None:
    assert name not in dir(ab)
    for word in INSTEAD[name].replace("(", " ").replace(",", " ").replace(")", " ").split():
        if word.startswith("ab."):
            assert hasattr(ab, word.removeprefix("ab.").split(".")[0])


@each("arguments", [["--help"], ["--version"]])
def test_the_package_is_a_command(arguments: list[str]) -> None:
    given = [sys.executable, "-m", "autobatch", *arguments]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=True)
    assert "autobatch" in done.stdout
