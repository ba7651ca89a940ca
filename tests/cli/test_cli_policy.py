"""`autobatch policy`: its output, files and pictures, and its error messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch.cli import experiment
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch
from autobatch.policies.fsm.machine import WAYS, Fsm
from autobatch.policies.fsm.table import LISTED
from autobatch.policies.rules.rules import Score, Weights
from helpers.runs.commands import Command

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
SMALL = ("--dim", "4", "--batch-size", "8", "--minibatches", "2")
LEARN = ("policy", "learn", "tree-lstm-2type", *SMALL, "--held-out", "1", "--episodes", "100", "--out")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of the file that `LEARN` writes."""
    path = tmp_path_factory.mktemp("learned") / "x"
    assert run_to_the_end(lambda: dispatch([*LEARN, str(path)])) == 0
    return path.read_bytes()


@pytest.fixture
def learned(content: bytes, tmp_path: Path) -> Path:
    """Write a learned policy for trees with two types of inner nodes."""
    path = tmp_path / "two.policy.json"
    path.write_bytes(content)
    return path


def table_of(output: str, rule: str = "fsm") -> dict[str, list[str]]:
    """Return the rows of a printed table by their first column."""
    lines = [re.split(" {2,}", line) for line in output.splitlines() if line.startswith((rule, "score", "agenda"))]
    return {first: rest for first, *rest in lines}


def test_learn_writes_a_policy_and_says_how_good_it_is(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.policy.json"
    status, output, errors = command("policy", "learn", "tree-lstm", *SMALL, "--seed", 3, "--out", path)
    assert (status, errors) == (0, "")
    assert output.startswith("tree-lstm, listops: learned fsm+both+compact in ")
    table = table_of(output)
    assert [*table] == ["fsm+both+compact", "score+both+compact", "agenda (DyNet)"]
    batches, bound, gap, unseen, _ = table["fsm+both+compact"]
    assert (batches, gap, unseen) == (bound, "0.0%", "0.0%")
    policy = policies.load(path)
    assert {name: policy.about[name] for name in ("algorithm", "model", "data", "batch_size", "instances", "seed")} == {
        "algorithm": "q", "model": "tree-lstm", "data": "listops", "batch_size": 8, "instances": 16, "seed": 3,
    }  # fmt: skip


@pytest.mark.slow
def test_learn_takes_what_was_published(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "x.policy.json"
    status, _, _ = command(
        "policy", "learn", "tree-lstm", *SMALL, "--no-critical", "--no-mask", "--reward", "published",
        "--direction", "forward", "--no-compact", "--no-rival", "--encoding", "base", "--episodes", 50, "--out", path,
    )  # fmt: skip
    policy = policies.load(path)
    assert status == 0
    assert isinstance(policy, Fsm)
    assert (policy.name, len(policy.machines)) == ("fsm", 1)
    assert (policy.machine.encoding, policy.machine.critical, policy.machine.mask) == ("base", False, False)
    assert (policy.about["settings"]["reward"], policy.about["settings"]["episodes"]) == ("published", 50)
    assert [int(policy.tables[way].n_states[0]) > 0 for way in WAYS] == [True, False]


def test_the_deprecated_device_changes_nothing(command: Command, tmp_path: Path) -> None:
    for name, words in (("one", ()), ("other", ("--device", "cuda"))):
        status, _, errors = command("policy", "learn", "tree-lstm", *SMALL, "--out", tmp_path / name, *words)
        assert (status, errors.count("--device will be removed in 0.4")) == (0, bool(words))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert "--device" not in command("policy", "learn", "--help")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options", "packages", "kind"),
    [
        ("es", ("--generations", 2), ("cma",), "score+both+compact: a rule with weights"),
        ("ppo", ("--steps", 64), ("gymnasium", "sb3_contrib"), "network+both+compact: a network"),
        ("dqn", ("--steps", 64), ("gymnasium", "stable_baselines3"), "network+both+compact: a network"),
    ],
)
def test_learn_by_other_algorithms(
    command: Command, tmp_path: Path, algorithm: str, options: tuple[object, ...], packages: tuple[str, ...], kind: str
) -> None:
    for package in packages:
        pytest.importorskip(package)
    path = tmp_path / "x.policy.json"
    status, _, errors = command(
        "policy", "learn", "tree-lstm", *SMALL, "--algorithm", algorithm, *options, "--out", path
    )
    assert (status, errors) == (0, "")
    shown = command("policy", "show", path)[1].splitlines()
    assert shown[0] == kind
    assert f"algorithm {algorithm}" in shown[1]
    status, output, errors = command("policy", "learn", "tree-lstm", "--algorithm", algorithm, "--encoding", "max")
    assert (status, output) == (2, "")
    own = {"es": "--generations"}.get(algorithm, "--reward, --steps, --log-folder, --plot")
    assert f"algorithm {algorithm!r} has no option --encoding; " in errors
    assert errors.endswith(f"its options are {own}.\n")


@pytest.mark.parametrize(
    ("algorithm", "options", "packages"),
    [
        pytest.param("es", ("--generations", 1), ("cma",), marks=pytest.mark.slow),
        pytest.param("ppo", ("--steps", 64), ("gymnasium", "sb3_contrib", "tensorboard"), marks=pytest.mark.slow),
        pytest.param("dqn", ("--steps", 64), ("gymnasium", "tensorboard"), marks=pytest.mark.slow),
    ],
)
def test_learn_on_families_gives_a_policy_for_any_model(
    command: Command, tmp_path: Path, algorithm: str, options: tuple[object, ...], packages: tuple[str, ...]
) -> None:
    for package in packages:
        pytest.importorskip(package)
    path, log, plot = tmp_path / "x.policy.json", tmp_path / "log", tmp_path / "x.png"
    shown = () if algorithm == "es" else ("--log-folder", log, "--plot", plot)
    learned = ("policy", "learn", "families", "--algorithm", algorithm, *options, *shown, "--direction", "backward")
    status, output, errors = command(*learned, "--seed", 5, "--out", path)
    assert (status, errors) == (0, "")
    policy = policies.load(path)
    assert output.splitlines()[-2].startswith(f"families: learned {policy.name} in ")
    assert output.endswith(f"\nWrote the policy, which works for any model, to {path}.\n")
    assert policy.name == f"{policy.rule}+backward+compact"
    assert [policy.about[name] for name in ("algorithm", "model", "seed")] == [algorithm, "families", 5]
    if shown:
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert any(log.rglob("events*"))
    for model in ("tree-lstm", "lattice-lstm"):
        status, output, _ = command("policy", "eval", path, model, *SMALL)
        assert (status, next(iter(table_of(output, policy.rule)))) == (0, policy.name)


def test_outside_a_checkout_other_algorithms_are_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    status, output, errors = command("policy", "learn", "families", "--algorithm", "es", "--out", tmp_path / "x.json")
    assert (status, output) == (2, "")
    assert "experiments are not part of the installed package" in errors


def test_learn_names_the_file_after_the_model(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from autobatch.models.tree_lstm import TreeLSTM\nclass Mine(TreeLSTM): ...\n")
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 12) + "\n")
    status, output, _ = command("policy", "learn", "mine:Mine", "--data", "trees.txt", *SMALL, "--episodes", 50)
    assert status == 0
    assert output.endswith("Wrote the policy to mine_Mine.policy.json.\n")
    status, output, _ = command("train", "mine:Mine", "--data", "trees.txt", "--dim", 4, "--epochs", 1,
                                "--policy", "mine_Mine.policy.json")  # fmt: skip
    assert status == 0


@pytest.mark.slow
def test_the_same_command_writes_the_same_file(command: Command, learned: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    command(*LEARN, again)
    assert again.read_bytes() == learned.read_bytes()


def test_show_prints_each_state_and_what_runs(command: Command, learned: Path) -> None:
    status, output, errors = command("policy", "show", learned)
    assert (status, errors) == (0, "")
    policy = policies.load(learned)
    assert isinstance(policy, Fsm)
    lines = output.splitlines()
    assert lines[0] == (
        "fsm+both+compact: a state machine that sees the ready types, most nodes first, and which are critical, and "
        "runs critical types if any are ready"
    )
    assert "reward critical, episodes 100" in lines[1]
    for way in WAYS:
        first = next(i for i, line in enumerate(lines) if line.startswith(f"{way}, "))
        n_states = int(lines[first].split()[1])
        assert n_states == np.count_nonzero(policy.tables[way].updates.any(axis=1))
        assert re.split(" {2,}", lines[first + 1].strip()) == [LISTED["sort"], "runs", "value", "updates"]
        assert {line[:2] for line in lines[first + 1 : first + 2 + n_states]} == {"  "}
    rival = next(i for i, line in enumerate(lines) if line.startswith("rival, "))
    told = [int(line.split()[1]) for line in lines[rival:] if line.startswith(WAYS)]
    assert told == [int(table.updates.any(axis=1).sum()) for table in policy.machines[1].tables.values()]
    assert "  leaf (critical)  " in output
    assert "merge_other (critical) > " in output


@pytest.mark.slow
def test_show_draws_the_machine(command: Command, learned: Path, tmp_path: Path) -> None:
    dot, png = tmp_path / "x.dot", tmp_path / "x.png"
    status, output, errors = command("policy", "show", learned, "tree-lstm-2type", *SMALL, "--plot", dot)
    assert (status, errors) == (0, "")
    assert output.endswith(f"\nWrote the drawing to {dot}.\n")
    lines = dot.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("digraph policy {", "}")
    assert '    forward0 [label="leaf (critical)\\nruns leaf"];' in lines
    n_edges = [sum(line.strip().startswith(way) and "->" in line for line in lines) for way in WAYS]
    assert min(n_edges) > 0
    pytest.importorskip("matplotlib")
    assert command("policy", "show", learned, "tree-lstm-2type", *SMALL, "--plot", png)[0] == 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_eval_counts_on_mini_batches_that_were_not_learned_from(
    command: Command, learned: Path, tmp_path: Path
) -> None:
    results = tmp_path / "x.jsonl"
    status, output, errors = command("policy", "eval", learned, "tree-lstm-2type", *SMALL, "--json", results)
    assert (status, errors) == (0, "")
    assert output.startswith("tree-lstm-2type, listops; 2 mini-batches of 8 from item 24\n")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["policy"] for line in lines] == ["fsm+both+compact", "score+both+compact", "agenda"]
    assert [*table_of(output)] == ["fsm+both+compact", "score+both+compact", "agenda (DyNet)"]
    assert all(line["lower_bound"] <= line["batches"] and line["skip"] == 24 for line in lines)
    assert [line["unseen_share"] is None for line in lines] == [False, True, True]
    assert [f"{line['batches']:.1f}" for line in lines] == [row[0] for row in table_of(output).values()]
    skipped = command("policy", "eval", learned, "tree-lstm-2type", *SMALL, "--skip", 0)[1]
    assert "from item 0\n" in skipped
    assert table_of(skipped)["fsm+both+compact"][3] == "0.0%"


def test_diff_of_a_policy_and_itself(command: Command, learned: Path) -> None:
    status, output, errors = command("policy", "diff", learned, learned)
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert lines.pop(2).startswith("the rival: a state machine that sees ")
    assert [line.split(", ")[1] for line in lines] == ["0 with different types; 0 only in the first"] * 4


def test_diff_lists_the_states_decided_differently(command: Command, learned: Path, tmp_path: Path) -> None:
    policy = policies.load(learned)
    assert isinstance(policy, Fsm)
    merge, other = (policy.types.names.index(name) for name in ("merge", "merge_other"))
    table = policy.tables["forward"]
    tried = (table.updates[:, merge] > 0) & (table.updates[:, other] > 0)
    assert tried.any()
    table.values[tried, merge], table.values[tried, other] = table.values[tried, other], table.values[tried, merge]
    policy.save(tmp_path / "other.json")
    output = command("policy", "diff", learned, tmp_path / "other.json")[1]
    changed = [line.split() for line in output.splitlines() if line.startswith("  ") and "state" not in line]
    assert 0 < len(changed) <= int(tried.sum())
    assert all({line[-2], line[-1]} == {"merge", "merge_other"} for line in changed)
    assert f"{len(changed)} with different types; 0 only in the first" in output


def test_rules_are_shown_compared_and_measured(command: Command, tmp_path: Path) -> None:
    Score("both", weights=Weights(0.65, 1.0, 0.36, 0.48)).save(tmp_path / "one.json")
    Score(weights=Weights(0.5, 1.0, 0.36, 0.48)).save(tmp_path / "other.json")
    assert command("policy", "show", tmp_path / "one.json")[1].splitlines()[:2] == [
        "score+both: a rule with weights",
        "  critical  0.65",
    ]
    assert command("policy", "diff", tmp_path / "one.json", tmp_path / "other.json")[1] == "critical: 0.65 and 0.5\n"
    assert command("policy", "diff", tmp_path / "one.json", tmp_path / "one.json")[1] == "The weights are the same.\n"
    status, output, _ = command("policy", "eval", tmp_path / "one.json", "tree-lstm", *SMALL)
    assert status == 0
    assert [*table_of(output)] == ["score+both", "score+both+compact", "agenda (DyNet)"]


def test_policies_that_come_with_weights_are_shown_by_name(command: Command, tmp_path: Path) -> None:
    Score("both", compact=True).save(tmp_path / "rule.json")
    assert command("policy", "show", "score+both+compact") == command("policy", "show", tmp_path / "rule.json")
    assert command("policy", "show", "network")[1].startswith("network: a network\n")
    assert command("policy", "diff", "score", tmp_path / "rule.json")[1] == "The weights are the same.\n"
    status, output, _ = command("policy", "eval", "score", "tree-lstm", *SMALL)
    assert (status, [*table_of(output)]) == (0, ["score", "score+both+compact", "agenda (DyNet)"])


@pytest.mark.slow
def test_explain_takes_a_file_and_goes_on_if_asked_to(learned: Path) -> None:
    """Runs in a separate process, whose warnings are printed."""

    def explain(policy: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "autobatch.cli.main", "explain", "lattice-lstm", "--dim", "4", "--batch-size", "4",
             "--policy", policy],
            capture_output=True, text=True, cwd=learned.parent,
        )  # fmt: skip
        told = [line for line in done.stderr.splitlines(True) if not line.startswith("autobatch: compiling ")]
        return done.returncode, done.stdout, "".join(told)

    status, _, errors = explain(learned.name)
    assert status == 2
    assert errors.startswith("autobatch: using a policy: it was learned for the types leaf, ")
    assert errors.count("\n") == 1
    status, output, errors = explain(f"{learned.name} or score")
    assert status == 0
    assert "policy score: 4 instances" in output
    assert errors.endswith("Using score instead.\n")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn", "tree-lstm", "--out", "none/x.json"], "cannot save policy 'none/x.json': the folder 'none'"),
        (["learn", "tree-lstn"], "tree-lstn"),
        (["learn", "tree-lstm", "--algorithm", "k"], "--algorithm"),
        (["learn", "tree-lstm", "--episodes", "0"], "--episodes"),
        (["learn", "tree-lstm", "--plot", "x.png"], "algorithm 'q' has no option --plot; its options are"),
        (["learn", "families"], "'q' learns a state machine by Q-learning for the types of one model; "),
        (["learn", "families"], "--algorithm ppo (for --steps N) or --algorithm es (for --generations N)."),
        (["learn", "families", "--algorithm", "es", "--episodes", "3"], "its options are --generations."),
        (["learn", "families", "--algorithm", "es", "--data", "x"], "--data"),
        (["learn", "families", "--algorithm", "ppo", "--plot", "none/x.png"], "cannot draw the learning curve to"),
        (["learn", "tree-lstm", *SMALL, "--minibatches", "100000"], "cannot take the first 800000 instances"),
        (["show", "none.json"], "cannot load policy 'none.json': no such file or directory; "),
        (["show", "agenda"], "got the fixed rule 'agenda'"),
        (["show", "score+sideways"], "got 'score+sideways'"),
        (["diff", "score", "depth"], "got the fixed rule 'depth'"),
        (["diff", "score", "network"], "cannot compare 'score' with 'network': a rule with weights and"),
        (["show", "two.policy.json", "tree-lstm", "--plot", "none/x.png"], "the folder 'none' does not exist"),
        (["show", "broken.json"], "cannot load policy 'broken.json': the file is truncated or not JSON"),
        (["show", "rule.json", "--plot", "x.png"], "cannot draw 'rule.json' to 'x.png': --plot needs"),
        (["show", "two.policy.json", "--plot", "x.png"], "cannot draw 'two.policy.json' to 'x.png': --plot needs"),
        (["show", "two.policy.json", "tree-lstm-2type", *SMALL, "--plot", "x.svg"], ".png, .dot, got '.svg'"),
        (["show", "two.policy.json", "tree-lstm-2type", *SMALL, "--plot", "none/x.dot"], "cannot draw 'none/x.dot'"),
        (["show", "two.policy.json", "lattice-lstm", *SMALL, "--plot", "x.dot"], "using a policy: it was learned for"),
        (["eval", "two.policy.json", "lattice-lstm", *SMALL], "using a policy: it was learned for the types leaf, "),
        (["eval", "two.policy.json", "tree-lstm-2type", "--skip", "1000000"], "cannot take the first 1000256"),
        (["diff", "two.policy.json", "rule.json"], "cannot compare 'two.policy.json' with 'rule.json': a state"),
        (["diff", "two.policy.json"], "FILE"),
        (["bogus"], "bogus"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence(
    command: Command, learned: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(learned.parent)
    Score().save("rule.json")
    Path("broken.json").write_text(learned.read_text()[:500])
    status, output, errors = command("policy", *arguments)
    assert (status, output) == (2, "")
    assert errors.startswith("autobatch: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
