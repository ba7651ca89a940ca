"""The example scripts are short, run to their end, and print that they have learned or worked.

`cli/test_on_ray.py` runs those of Ray, and `in_torch/test_torch_examples.py` the twins of a how-to page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from example_outputs import output_of
from helpers.runs.ways import each

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TWINS = ("torch_before", "torch_after")
MEASURED = re.compile(r"\S*\d\S*|\b[BIO]{5,}\b")
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled code, shared by all scripts to save time."""
    return tmp_path_factory.mktemp("cache")


def run(name: str, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script on the reference backend."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "AUTOBATCH_CACHE": str(cache)}
    environment = {**os.environ, "AUTOBATCH_BACKEND": "reference", "AUTOBATCH_COMPILE_WAIT": "inf", **paths, **more}
    words = [sys.executable, str(EXAMPLES / f"{name}.py")]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def told(name: str, cache: Path) -> str:
    """Return the output of a script; it must succeed, and equal the output on the site except for numbers."""
    found = run(name, cache)
    assert found.returncode == 0, found.stderr
    shown = output_of(name).read_text(encoding="utf-8")
    assert MEASURED.sub("#", shown) == MEASURED.sub("#", found.stdout)
    return found.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """Return the numbers matched by the groups of a pattern, in all its matches."""
    found = [float(number) for match in re.finditer(pattern, text) for number in match.groups()]
    assert found, f"{pattern!r} is not in {text!r}"
    return found


@each("name", [name for name in NAMES if name not in TWINS])
def test_it_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert f"python examples/{name}.py" in text.split('"""')[1]


@each("name", NAMES)
def test_the_table_has_it(name: str) -> None:
    assert f"[{name}.py]({name}.py)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_labels_of_all_nodes_are_learned(cache: Path) -> None:
    text = told("sentiment_trees", cache)
    losses = numbers(r"loss (\S+)", text)
    assert losses[-1] < losses[0] / 5
    assert numbers(r"new trees: (\S+)%", text)[0] > 95


@pytest.mark.slow
def test_names_in_lattices_are_found(cache: Path) -> None:
    found, meant, wrong = numbers(r"(\d+) of (\d+) names found, (\d+)", told("ner_lattice", cache))
    assert found > 0.9 * meant
    assert wrong < 0.15 * meant


def test_sentences_with_any_number_of_dependents_are_judged(cache: Path) -> None:
    text = told("dependency_trees", cache)
    assert numbers(r"new sentences: (\S+)%", text)[0] > 90
    nodes, batches = numbers(r"(\d+) nodes ran in (\d+) batches", text)
    assert batches < nodes / 50


def test_a_number_of_molecules_is_predicted(cache: Path) -> None:
    constant, *learned = numbers(r"error (\S+) eV", told("molecules", cache))
    assert learned[-1] < constant / 3


def test_words_are_written_backwards(cache: Path) -> None:
    text = told("seq2seq_beam", cache)
    losses, (one, four) = numbers(r"loss (\S+)", text), numbers(r": (\d+) of 200 words", text)
    assert losses[-1] < losses[0] / 3
    assert one > 150
    assert four > 150


@pytest.mark.slow
def test_questions_are_answered_by_modules(cache: Path) -> None:
    pytest.importorskip("torch", reason="its modules are those of PyTorch")
    right, base = numbers(r"questions: (\S+)% right; (\S+)%", told("module_network", cache))
    assert right > 90 > 80 > base


def test_a_policy_of_ones_own_reaches_the_bound(cache: Path) -> None:
    bound, depth, agenda, own = numbers(r" (\d+)\n", told("own_policy", cache))
    assert bound <= own < agenda < depth


def test_an_agent_learns_to_batch(cache: Path) -> None:
    pytest.importorskip("gymnasium", reason="its environment needs the extra rl")
    rows = dict(re.findall(r"  (\w+(?: \w+)?) +(\d+\.\d)\n", told("gym_agent", cache)))
    policies = ("lower bound", "trained", "agenda", "depth")
    batches = [float(rows[name]) for name in policies]
    assert batches == sorted(batches)
    assert batches[1] < float(rows["untrained"])


def test_without_gymnasium_a_sentence_says_what_is_missing(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise ImportError('not installed')\n")
    found = run("gym_agent", cache, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "examples/gym_agent.py needs Gymnasium; run pip install 'autobatch-nn[rl]'.\n"
