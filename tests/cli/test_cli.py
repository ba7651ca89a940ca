"""The command line: the output and files of each command, and the message of every user error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import autobatch as ab
from autobatch.backends import make_backend
from autobatch.cli import machine
from autobatch.cli.doctor import OPTIONAL, _compile
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.progress import show_progress
from autobatch.cli.results import format_table
from autobatch.cli.training import demo
from autobatch.models import MODELS
from autobatch.models.data.dataset import GENERATORS
from helpers.runs.commands import Command

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
SENTENCES = "Paris|I-LOC is|O old|O\nLe|I-PER Corbusier|I-PER built|O\n" * 16
LATTICES = "32\n" + "3\n0 1 2\n0\n1 0 5\n2 1 6 0 9\n\n2\n0 3\n0\n1 0 7\n\n" * 16
SMALL = ("--dim", "4", "--batch-size", "8")
FIELDS = {
    "model", "data", "dim", "batch_size", "policy", "backend", "mode", "precision", "threads", "instances_per_s",
    "ms", "nodes", "batches", "lower_bound", "launches", "copied_bytes", "machine",
}  # fmt: skip
USER_MODULE = """
import autobatch as ab
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.models.tree_lstm import TreeLSTM

class Mine(TreeLSTM):
    '''A model of my own.'''

class Lossy(ab.Module):
    @ab.cell
    def leaf(self, label):
        return ab.cross_entropy(self.weight, label)

    def __init__(self, n_classes, rng):
        self.weight = ab.Parameter(rng.standard_normal(n_classes))

    def loss(self, tree):
        return self.leaf(tree.label)

class Rootless(Mine):
    def scores(self, tree):
        return super().scores(tree)[0]

class Childless(Mine):
    def scores(self, tree):
        return super().scores(tree)[0], []

class Twice(Mine):
    def scores(self, tree):
        return super().scores(tree)[0], super().scores(tree)[0]

class Listed(Mine):
    def scores(self, tree):
        return super().scores(tree)[1], super().scores(tree)[1]

class Nested(Mine):
    def scores(self, tree):
        root, nodes = super().scores(tree)
        return root, [[scores] for scores in nodes]

class Demanding(Mine):
    def __init__(self, n_words, n_layers): ...

def load_nothing(data, rng, vocabularies=None):
    return Dataset(data, [], [], {}, {"n_words": 2, "n_classes": 5})

EMPTY = ModelSpec("empty", "a model without data", Mine, (), "nothing", "nothing", load_nothing)

class NoModule: ...

class NoLoss(ab.Module): ...
"""


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Write a file of 48 trees."""
    path = tmp_path / "trees.txt"
    path.write_text("\n".join(TREES * 12) + "\n")
    return path


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a user's modules into the current folder."""
    (tmp_path / "my_models.py").write_text(USER_MODULE)
    (tmp_path / "my_broken.py").write_text("import not_there")
    (tmp_path / "my_typing.py").write_text("def f() -> None\n    pass")
    (tmp_path / "my_names.py").write_text("import autobatch as ab\nModel = ab.Linaer")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_models", "my_broken", "my_typing", "my_names"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def read_json(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- commands ---


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(command: Command, arguments: list[str]) -> None:
    status, out, err = command(*arguments)
    assert (status, err) == (0, "")
    for name in ("train", "eval", "predict", "bench", "explain", "models", "data", "doctor"):
        assert re.search(rf"^  {name} +\w", out, re.MULTILINE), name


@pytest.mark.parametrize("name", ["train", "eval", "predict", "bench", "explain", "models", "data", "doctor"])
def test_every_command_explains_its_options(command: Command, name: str) -> None:
    status, out, _ = command(name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: autobatch {name}")


def test_the_version_is_told(command: Command) -> None:
    status, out, _ = command("--version")
    assert (status, out.split()[0]) == (0, "autobatch,")


def test_train_reports_every_epoch(command: Command, trees: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    status, out, err = command("train", "tree-lstm", "--data", trees, *SMALL, "--epochs", 2, "--json", results)
    assert (status, err) == (0, "")
    first, *epochs = out.splitlines()
    assert "44 instances to train on, 4 to measure on" in first
    assert len(epochs) == 2
    for number, line in enumerate(epochs, start=1):
        assert re.fullmatch(
            rf"epoch {number}:  loss \d+\.\d+  dev root accuracy [\d.]+%  dev nodes accuracy [\d.]+%  "
            r"[\d,]+ instances/s",
            line,
        )
    written = read_json(results)
    assert [result["epoch"] for result in written] == [1, 2]
    for result in written:
        assert FIELDS | {"train_loss", "dev_root_accuracy", "dev_nodes_accuracy", "seed", "lr"} == result.keys() - {
            "epoch"
        }


@pytest.mark.parametrize(
    ("model", "text", "metrics"),
    [
        ("bilstm-tagger", SENTENCES, ["tag_accuracy", "entity_f1"]),
        ("lattice-lstm", LATTICES, ["tag_accuracy"]),
    ],
)
def test_the_other_models_train_bench_and_explain(
    command: Command, tmp_path: Path, model: str, text: str, metrics: list[str]
) -> None:
    data, results = tmp_path / "data.txt", tmp_path / "results.jsonl"
    data.write_text(text)
    training = ("--epochs", 3, "--lr", 0.1, "--json", results)
    status, out, err = command("train", model, "--data", data, *SMALL, *training)
    assert (status, err) == (0, "")
    assert "29 instances to train on, 3 to measure on" in out
    written = read_json(results)
    assert written[-1]["train_loss"] < written[0]["train_loss"]
    assert [key for key in written[-1] if key.startswith("dev_")] == [f"dev_{metric}" for metric in metrics]
    assert {written[-1][f"dev_{metric}"] for metric in metrics} == {1.0}
    for name in ("bench", "explain"):
        status, out, err = command(name, model, "--data", data, *SMALL, "--policy", "depth,agenda")
        assert (status, err) == (0, "")
        assert "agenda" in out


def test_f1_is_0_where_there_is_no_entity(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("is|O old|O\n" * 32 + "Paris|B-LOC\n")
    (tmp_path / "dev.txt").write_text("is|O old|O\n")
    status, out, err = command("train", "bilstm-tagger", "--data", tmp_path, *SMALL, "--epochs", 8, "--lr", 0.1)
    assert (status, err) == (0, "")
    assert "dev tag accuracy 100.0%  dev entity f1 0.0%" in out


def test_parts_of_speech_have_no_entities(command: Command, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("is|VBZ old|JJ\n" * 32)
    status, out, err = command("train", "bilstm-tagger", "--data", data, *SMALL, "--epochs", 1)
    assert (status, err) == (0, "")
    assert "dev tag accuracy" in out
    assert "entity" not in out


def test_training_lowers_the_loss_and_repeats_with_its_seed(command: Command, trees: Path, tmp_path: Path) -> None:
    losses = []
    for number in range(2):
        results = tmp_path / f"{number}.jsonl"
        arguments = ("--data", trees, *SMALL, "--epochs", 8, "--lr", 0.03, "--seed", 7, "--json", results)
        assert command("train", "tree-lstm", *arguments)[0] == 0
        losses.append([result["train_loss"] for result in read_json(results)])
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.7 * losses[0][0]


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_bench_compares_policies(command: Command, trees: Path, tmp_path: Path, mode: str) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ("--data", trees, *SMALL, "--mode", mode, "--minibatches", 2, "--repeats", 2, "--json", results)
    status, out, err = command("bench", "tree-lstm", *arguments)
    assert (status, err) == (0, "")
    rows = [line.split("  ") for line in out.splitlines()[-5:]]
    policies = ["score", "unbatched", "depth", "agenda"]
    assert [row[0] for row in rows] == ["policy", "score", "unbatched", "depth (TensorFlow Fold)", "agenda (DyNet)"]
    assert min(row[-1].split()[-1] for row in rows[1:]) == "1.0x"
    written = read_json(results)
    assert [result["policy"] for result in written] == policies
    _, unbatched, depth, agenda = (result["batches"] for result in written)
    assert unbatched > depth >= agenda >= written[0]["lower_bound"]
    for result in written:
        assert FIELDS | {"minibatches", "repeats"} == result.keys()
        assert result["instances_per_s"] == pytest.approx(8 / result["ms"] * 1e3)


def test_explain_reports_each_policy(command: Command, trees: Path) -> None:
    status, out, err = command("explain", "tree-lstm", "--data", trees, "--dim", 4, "--batch-size", 4)
    assert (status, err) == (0, "")
    assert out.startswith(f"tree-lstm, the first 4 instances of {trees}\n\npolicy score: 4 instances, ")
    assert "\n\npolicy depth (TensorFlow Fold): 4 instances, " in out
    assert "\n\npolicy agenda (DyNet): 4 instances, " in out
    for word in ("nodes", "batches", "bound", "gap", "launches", "copied"):
        assert word in out, word


def test_explain_takes_fewer_instances_than_asked_for(command: Command, trees: Path) -> None:
    status, out, err = command("explain", "tree-lstm", "--data", trees, "--dim", 4, "--batch-size", 99)
    assert (status, err) == (0, "")
    assert out.startswith(f"tree-lstm, all 48 instances of {trees}\n\npolicy score: 48 instances, ")


def test_models_and_data_are_listed(command: Command) -> None:
    status, out, _ = command("models")
    assert status == 0
    assert re.findall(r"^\S+$", out, re.MULTILINE) == list(MODELS)
    assert "package.module:Class" in out
    status, out, _ = command("data")
    assert status == 0
    for name in (*GENERATORS, "files"):
        assert re.search(rf"^{name}$", out, re.MULTILINE), name
    assert "train.txt and dev.txt" in out


def test_the_doctor_finds_everything_in_place(command: Command) -> None:
    status, out, err = command("doctor")
    assert (status, err) == (0, "")
    assert out.endswith("All checks passed.\n")
    for what in ("python", "numpy", "llvmlite", "BLAS", "compiler", "self-check"):
        assert re.search(rf"^ok +{what} ", out, re.MULTILINE), what
    for extra in OPTIONAL:
        assert re.search(rf"^(ok|none) +{extra} ", out, re.MULTILINE), extra


def test_the_doctor_tells_the_cache(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for cache, told in (
        ("off", "the cache is off"),
        (tmp_path / "new" / "cache", f"caches compiled cells in {tmp_path / 'new' / 'cache'}"),
        (tmp_path / "file" / "cache", f"the cache {tmp_path / 'file' / 'cache'} is not writable"),
    ):
        monkeypatch.setenv("AUTOBATCH_CACHE", str(cache))
        assert told in _compile()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_more_threads_than_cores_are_told(command: Command) -> None:
    err = command("train", "tree-lstm", "--threads", 100_000, "--data", "no/such/file")[2]
    assert re.match(r"autobatch: --threads 100000 exceeds the (one core|\d+ cores) here", err)


@pytest.mark.slow
def test_without_a_gpu_auto_stays_on_the_processor_and_the_doctor_says_why(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOBATCH_BACKEND")
    monkeypatch.delenv("AUTOBATCH_CUDA", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert make_backend("auto").name == "cpu"
    status, out, _ = command("doctor")
    assert status == 0
    assert re.search(
        r"^none +cuda +the cuda backend needs CuPy, which .*: pip install 'autobatch-nn\[cuda12\]'", out, re.M
    )


def test_the_doctor_names_what_is_at_fault(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.cli.doctor.package_version", lambda name: None if name == "rich" else "1.0")
    status, out, _ = command("doctor")
    assert status == 1
    assert re.search(r"^FAULT +rich +not installed: pip install rich$", out, re.MULTILINE)
    assert out.endswith("Failed: rich.\n")


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(("name", "takes_dim"), [("my_models:Mine", True), ("my_models:Lossy", False)])
def test_a_model_of_the_users_own_trains(command: Command, trees: Path, name: str, takes_dim: bool) -> None:
    unused = f"autobatch: --dim 4 is ignored: the constructor of {name} has no parameter dim.\n"
    status, out, err = command("train", name, "--data", trees, *SMALL, "--epochs", 1)
    assert (status, err) == (0, "" if takes_dim else unused)
    assert out.startswith(f"{name}, dim 4, " if takes_dim else f"{name}, 4 parameters")
    assert ("dev root" in out) == takes_dim


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize("name", ["Rootless", "Childless", "Twice", "Listed", "Nested"])
def test_scores_of_another_form_are_refused(command: Command, trees: Path, name: str) -> None:
    status, _, err = command("train", f"my_models:{name}", "--data", trees, *SMALL, "--epochs", 1)
    assert status == 2
    assert f"scores(tree) of my_models:{name} must return a tuple" in err


# --- errors ---

ERRORS = [
    (["fly"], "No such command 'fly'"),
    (["train"], "Missing argument 'MODEL'. Give one, such as tree-lstm, bilstm-tagger, seq2seq,"),
    (["train", "tree-lstm", "--depth", "3"], "No such option"),
    (
        ["train", "tree-lstm", "--dim", "0"],
        "Invalid value for '--dim': must be an int from 1 to 1000000, got '0'",
    ),
    (
        ["train", "tree-lstm", "--epochs", "many"],
        "Invalid value for '--epochs': must be an int of at least 1, got 'many'",
    ),
    (
        ["bench", "tree-lstm", "--policy", "depth,depth"],
        "must be distinct names separated by commas, such as depth,agenda, got 'depth,depth'",
    ),
    (["bench", "tree-lstm", "--mode", "fly"], "Invalid value for '--mode': 'fly' is not one of 'infer', 'train'"),
    (["train", "tree-lsd"], "'tree-lsd'; did you mean tree-lstm? Give one of tree-lstm, tree-lstm-2type, "),
    (["train", "perceptron"], "cannot find model 'perceptron'. Give one of tree-lstm, tree-lstm-2type, "),
    (
        ["train", "tree-lstm", "--lr", "fast"],
        "Invalid value for '--lr': must be a number of at least 0, got 'fast'; see",
    ),
    (
        ["train", "dag-rnn", "--data", "bad.txt"],
        "cannot read a picture from bad.txt, line 1, column 1: expected a word,",
    ),
    (["train", "dag-rnn", "--data", "bad.txt"], "a word, '|' and a tag, such as blue|sky red|boat, found '('"),
    (["train", "not_there:Class"], "importing 'not_there' failed (ModuleNotFoundError"),
    (["train", "not_there:Class"], "; run in a directory from which it can be imported."),
    (
        ["train", "my_broken:Class"],
        "my_broken.py:1, `import not_there` (ModuleNotFoundError: No module named 'not_there')",
    ),
    (["train", "my_broken:Class"], "; correct that module."),
    (["train", "my_typing:Class"], "(SyntaxError: expected ':' (my_typing.py, line 1)); correct that module."),
    (["train", "my_names:Model"], "my_names.py:2, `Model = ab.Linaer` (AttributeError: "),
    (["train", "../my_models.py:Mine"], "must be package.module:Class, not a path, got '../my_models.py:Mine'; run"),
    (["train", "my_models.py:Mine"], "must be package.module:Class, not a path, got 'my_models.py:Mine'; run"),
    (["train", "my_models:Nobody"], "module 'my_models' has no 'Nobody'"),
    (["train", "my_models:NoModule"], "or a ModelSpec, got class NoModule"),
    (["train", "my_models:NoLoss"], "with a method loss(instance)"),
    (["train", "my_models:ab"], "got an object of type module"),
    (["train", "my_models:Demanding"], "its constructor needs n_layers, but the command line passes only n_words"),
    (["train", "tree-lstm", "--data", "no/such/file"], "cannot load data 'no/such/file': no such file"),
    (["train", "tree-lstm", "--data", "."], "train.txt: no such file or directory"),
    (["explain", "tree-lstm", "--data", "bad.txt"], "bad.txt, line 2, column 15: expected one word and"),
    (["train", "bilstm-tagger", "--data", "bad.txt"], "bad.txt, line 1, column 1: expected a word, '|' and a tag"),
    (["bench", "lattice-lstm", "--data", "bad.txt"], "bad.txt, line 1, column 4: expected the number of lattices"),
    (["explain", "lattice-lstm", "--data", "listops"], "that generator does not fit the model; give a path"),
    (["explain", "tree-lstm", "--data", "tagging"], "does not fit the model; give a path, or one of: listops"),
    (
        ["train", "tree-lstm", "--data", "listop"],
        "no such file, folder or generator; did you mean listops? Otherwise",
    ),
    (["train", "tree-lstm", "--json", "no/such/folder/x.jsonl"], "x.jsonl: no such file or directory; "),
    (["train", "tree-lstm", "--json", "."], "File '.' is a directory"),
    (["train", "tree-lstm", "--policy", "luck"], "luck"),
    (
        ["explain", "tree-lstm", "--plot", "no/such/x.png"],
        "cannot draw 'no/such/x.png': the folder 'no/such' does not exist",
    ),
    (
        ["explain", "tree-lstm", "--plot", "x.xyz"],
        "cannot draw 'x.xyz': the extension must be one of .png, .pdf, .svg, got '.xyz'",
    ),
    (["explain", "tree-lstm", "--plot", "x.png/x.png"], "cannot draw 'x.png/x.png': the folder 'x.png' does not exist"),
    (["train", "tree-lstm", "--backend", "abacus"], "abacus"),
    (["explain", "my_models:EMPTY"], "nothing must hold at least one instance"),
    (
        ["bench", "tree-lstm", "--batch-size", "9999"],
        "listops, which holds 4500; reduce --batch-size or --minibatches.",
    ),
]


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(("arguments", "sentence"), ERRORS, ids=[" ".join(arguments) for arguments, _ in ERRORS])
def test_errors_end_in_one_sentence_and_status_2(command: Command, arguments: list[str], sentence: str) -> None:
    Path("bad.txt").write_text("(3 (2 good) (2 film))\n(3 (2 good) (7))\n")
    status, _, err = command(*arguments)
    assert status == 2
    assert err.startswith("autobatch: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_loss_that_is_not_finite_ends_training(command: Command, trees: Path) -> None:
    status, _, err = command("train", "tree-lstm", "--data", trees, *SMALL, "--lr", "1e38")
    assert status == 2
    assert err.count("\n") == 1
    assert err.startswith("autobatch: training stopped in epoch 1/5, mini-batch 2: the loss of ")
    assert "is not finite" in err


def test_training_that_diverges_says_so_once(command: Command, trees: Path) -> None:
    options = "--data", trees, *SMALL, "--epochs", 3, "--policy", "depth"
    status, out, err = command("train", "tree-lstm", *options, "--lr", "1e30")
    assert (status, err) == (0, "")
    assert re.search(r"^epoch 3:  loss \d\.\d{3}e\+\d+  dev ", out, re.MULTILINE)
    told = "training diverges: the loss is more than 1,000 times that of the first mini-batch; try a smaller --lr\n"
    assert out.count(told) == 1
    assert "training diverges" not in command("train", "tree-lstm", *options)[1]


def test_data_too_small_to_hold_something_back_is_told(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(TREES[0] + "\n")
    status, out, err = command("train", "tree-lstm", "--data", path, *SMALL, "--epochs", 1)
    assert (status, err) == (0, "")
    assert "one.txt: 1 instance to train on, none to measure on (10% of a file" in out


@pytest.mark.parametrize(("epochs", "n_calls"), [(1, 5), (2, 11)])
def test_a_profile_leaves_out_the_first_call(
    command: Command, trees: Path, tmp_path: Path, epochs: int, n_calls: int
) -> None:
    options = "--data", trees, *SMALL, "--epochs", epochs, "--profile", tmp_path / "trace.json"
    status, out, err = command("train", "tree-lstm", *options)
    assert (status, err) == (0, "")
    assert f"\n{n_calls} calls; mean per call: " in out


def test_a_profile_of_one_step_has_it(command: Command, trees: Path, tmp_path: Path) -> None:
    options = "--data", trees, "--dim", 4, "--batch-size", 99, "--epochs", 1, "--profile", tmp_path / "trace.json"
    assert "\n1 calls; mean per call: " in command("train", "tree-lstm", *options)[1]


@pytest.mark.parametrize("options", [("--policy", "depth,luck"), ("--plot", "none/x.png"), ("--backend", "abacus")])
def test_explain_says_what_is_wrong_before_anything_else(command: Command, options: tuple[str, ...]) -> None:
    status, out, err = command("explain", "tree-lstm", *options)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_an_unwritable_file_is_noticed_before_the_work(command: Command, tmp_path: Path) -> None:
    status, out, err = command("train", "tree-lstm", "--json", tmp_path / "no" / "x.jsonl", "--epochs", 1000)
    assert (status, out) == (2, "")
    assert "cannot write results" in err


def test_a_command_uses_one_thread_unless_told_otherwise(command: Command, trees: Path) -> None:
    for given, used in (((), 1), (("--threads", 2), 2)):
        assert command("train", "tree-lstm", "--data", trees, *SMALL, "--epochs", 1, *given)[0] == 0
        assert machine.threads_in_force() == used


def test_ctrl_c_ends_with_one_line_and_status_130(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "autobatch.cli.main", "train", "tree-lstm", "--dim", "8", "--epochs", "1000"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("tree-lstm")
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "autobatch: interrupted.\n")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m autobatch.cli.main --help | head -n 1",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_errors_of_any_kind_become_a_status(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ab.errors.PlanError("one thing\n   and another.")

    assert [run_to_the_end(work) for work in (fail, lambda: 1, lambda: None)] == [2, 1, 0]
    assert capfd.readouterr().err == "autobatch: one thing and another.\n"


# --- progress ---


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with show_progress(4) as progress:
        progress.advance("epoch 1 of 2", "loss 2.5")
        progress.say("epoch 1:  loss 2.5")
        progress.advance("epoch 2 of 2", "loss 1.5")
    assert "epoch 1:  loss 2.5\n" in capsys.readouterr().out


def test_progress_elsewhere_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 1.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr("autobatch.cli.progress.time.monotonic", lambda: next(now))
    monkeypatch.setattr("autobatch.cli.progress.SECONDS_BETWEEN_LINES", 10.0)
    with show_progress(4) as progress:
        for step in range(3):
            progress.advance("epoch 1 of 1", f"loss {step}")
    assert capsys.readouterr().out == "  epoch 1 of 1, 50% done: loss 1\n"


def test_tables_line_up() -> None:
    assert format_table(["policy", "n"], [["depth", "49"], ["unbatched", "1,000"]]) == (
        "policy         n\ndepth         49\nunbatched  1,000"
    )


def test_help_needs_no_slow_imports(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    arguments = [sys.executable, "-m", "autobatch.cli.main", "--help"]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"llvmlite", "torch", "matplotlib", "rich.progress"}


# --- the demonstration ---


@pytest.mark.slow
def test_the_demonstration_in_small(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name, small in {"DIM": 4, "BATCH_SIZE": 16, "EPOCHS": 4, "TRAINING_S": 0.0, "REPEATS": 1}.items():
        monkeypatch.setattr(demo, name, small)
    demo.demo()
    out, err = capfd.readouterr()
    assert err == ""
    assert "epoch 1:" in out
    assert "epoch 2:" in out, "the clock starts at the end of the first epoch"
    assert "epoch 3:" not in out
    assert "(no further epochs after 0 seconds)" in out
    assert re.search(r"^\[\w+ .*\] +\d +\d$", out, re.MULTILINE)
    for policy in ("depth", "agenda", "score", "fsm"):
        assert len(re.findall(rf"^{policy}( \([\w ]+\))?( +[\d,.]+){{6}} +[\d.]+x$", out, re.MULTILINE)) == 2, (
            "on trees and on lattices"
        )
    assert out.count("just learned by Q-learning") == 2
    assert re.search(r"^read_character \(critical\).* read_(character|word)$", out, re.MULTILINE)
