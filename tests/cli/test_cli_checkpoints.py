"""Commands that write and read checkpoints: to stop, resume, measure and use training."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from autobatch.cli.training.scoring import Scorer
from autobatch.cli.training.stored import BEST, LAST
from autobatch.cli.workload import load_workload
from autobatch.models.data.sst import read_trees
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from helpers.runs.commands import Command

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
TAGGED = ["Paris|I-LOC is|O old|O", "Le|I-PER Corbusier|I-PER built|O", "Nice|I-LOC", "Rome|O sleeps|O"]
LATTICES = "32\n" + "3\n0 1 2\n0\n1 0 5\n2 1 6 0 9\n\n2\n0 3\n0\n1 0 7\n\n" * 16
RUN = ("--dim", 4, "--batch-size", 8, "--epochs", 4, "--lr", 0.03)


@pytest.fixture
def command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process, in a folder with data."""
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 30) + "\n")
    (tmp_path / "tagged.txt").write_text("\n".join(TAGGED * 30) + "\n")
    (tmp_path / "lattices.txt").write_text(LATTICES)
    monkeypatch.chdir(tmp_path)
    return command


def read_json(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def metrics_of(result: dict[str, Any]) -> dict[str, float]:
    return {key.removeprefix("dev_"): result[key] for key in result if re.search("accuracy|f1", key)}


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("tree-lstm", "trees.txt"),
        ("tree-lstm-2type", "trees.txt"),
        ("bilstm-tagger", "tagged.txt"),
        ("lattice-lstm", "lattices.txt"),
    ],
)
def test_eval_prints_what_training_printed(command: Command, model: str, data: str) -> None:
    status, out, err = command("train", model, "--data", data, *RUN, "--checkpoint", "run", "--json", "train.jsonl")
    assert (status, err) == (0, "")
    epochs = read_json("train.jsonl")
    best = max(epochs, key=lambda epoch: [*metrics_of(epoch).values()])
    for place, epoch in (("run", best), (f"run/{BEST}", best), (f"run/{LAST}", epochs[-1])):
        assert command("eval", model, "--checkpoint", place, "--json", "eval.jsonl")[0] == 0
        (result,) = read_json("eval.jsonl")
        assert metrics_of(result) == metrics_of(epoch)
    status, printed, _ = command("eval", model, "--checkpoint", f"run/{LAST}")
    assert status == 0
    assert re.findall(r"[\d.]+%", printed) == re.findall(r"[\d.]+%", out.splitlines()[-1])


@pytest.mark.parametrize("folder", ["run", "runs/of/trees", "there", "there/run", "with a file"])
@pytest.mark.parametrize(
    "words", [("--data", "nowhere"), ("--data", "bad.txt"), ("--data", "trees.txt", "--max-bytes", 9)]
)
def test_a_run_that_cannot_begin_leaves_no_folder(command: Command, folder: str, words: tuple[object, ...]) -> None:
    Path("bad.txt").write_text("(3 (2 good\n")
    Path("there").mkdir()
    Path("with a file").mkdir()
    Path("with a file/notes").write_text("")
    before = sorted(Path().rglob("*"))
    status, _, err = command("train", "tree-lstm", "--checkpoint", folder, *words)
    assert status == 2, err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("n_epochs", [1, 3])
def test_a_run_goes_on_whose_checkpoint_has_the_first_metric_of_the_best_epoch_alone(
    command: Command, n_epochs: int
) -> None:
    words = ("train", "tree-lstm", "--data", "trees.txt", *RUN, "--checkpoint", "run")
    assert command(*words, "--epochs", n_epochs, "--json", "train.jsonl")[0] == 0
    arrays, state = load_checkpoint(f"run/{LAST}")
    state["best"] = state["best"]["root_accuracy"]
    save_checkpoint(f"run/{LAST}", arrays, state)
    assert command(*words, "--epochs", n_epochs + 2, "--json", "train.jsonl", "--resume")[0] == 0
    best = max(metrics_of(epoch)["root_accuracy"] for epoch in read_json("train.jsonl"))
    assert load_checkpoint(f"run/{LAST}")[1]["best"]["root_accuracy"] == best


@pytest.mark.parametrize("data", [(), ("--data", "trees.txt")], ids=["development data", "a whole file"])
def test_what_predict_writes_scores_what_eval_printed(command: Command, data: tuple[str, ...]) -> None:
    assert command("train", "tree-lstm", "--data", "trees.txt", *RUN, "--checkpoint", "run")[0] == 0
    assert command("eval", "tree-lstm", "--checkpoint", "run", *data, "--json", "eval.jsonl")[0] == 0
    assert command("predict", "tree-lstm", "--checkpoint", "run", *data, "--out", "out.jsonl") == (0, "", "")
    trees = read_trees(Path("trees.txt"))
    places = load_workload("tree-lstm", "trees.txt", 4, seed=0).dataset.dev_places
    assert places is not None
    measured = trees if data else [trees[place] for place in places]
    predicted = read_json("out.jsonl")
    assert len(predicted) == len(measured)
    roots = [said["label"] == tree.label for said, tree in zip(predicted, measured, strict=True)]
    nodes = [
        label == node.label
        for said, tree in zip(predicted, measured, strict=True)
        for label, node in zip(said["labels"], tree.postorder(), strict=True)
    ]
    (result,) = read_json("eval.jsonl")
    assert result["instances"] == len(measured)
    assert metrics_of(result) == {
        "root_accuracy": sum(roots) / len(roots),
        "nodes_accuracy": sum(nodes) / len(nodes),
    }
    status, out, _ = command("predict", "tree-lstm", "--checkpoint", "run", *data)
    assert (status, out) == (0, Path("out.jsonl").read_text())


def test_tags_are_predicted_by_name(command: Command) -> None:
    assert command("train", "bilstm-tagger", "--data", "tagged.txt", *RUN, "--checkpoint", "run")[0] == 0
    (Path("other.txt")).write_text("Unseen|O words|O\n")
    status, out, _ = command("predict", "bilstm-tagger", "--checkpoint", "run", "--data", "other.txt")
    assert status == 0
    (line,) = out.splitlines()
    tags = json.loads(line)["tags"]
    assert len(tags) == 2
    assert set(tags) <= {"O", "I-LOC", "I-PER"}


def test_resumed_training_needs_no_argument_again_and_appends_its_results(command: Command) -> None:
    again = ("train", "tree-lstm", "--checkpoint", "run", "--resume", "--json", "train.jsonl")
    status, out, _ = command(*again, "--data", "trees.txt", *RUN, "--seed", 3)
    assert (status, out.splitlines()[0]) == (0, "no checkpoint in run yet; starting a new run")
    status, out, err = command(*again, "--epochs", 5, "--policy", "auto", "--dim", 4)
    assert (status, err) == (0, "")
    assert "resuming from run/last.safetensors: 4 epochs and 0 mini-batches" in out
    results = read_json("train.jsonl")
    assert [result["epoch"] for result in results] == [1, 2, 3, 4, 5]
    assert {(result["data"], result["seed"], result["lr"]) for result in results} == {("trees.txt", 3, 0.03)}
    status, out, _ = command(*again)
    assert (status, "epoch" in out.splitlines()[-1]) == (0, True)
    assert len(read_json("train.jsonl")) == 5


def test_resumed_training_keeps_the_results_of_other_runs(command: Command) -> None:
    common = ("train", "tree-lstm", "--data", "trees.txt", *RUN, "--json", "train.jsonl")
    assert command(*common, "--epochs", 1, "--seed", 3, "--checkpoint", "run")[0] == 0
    other = command(*common, "--epochs", 3, "--seed", 7)
    resumed = command("train", "tree-lstm", "--checkpoint", "run", "--resume", "--epochs", 2, "--json", "train.jsonl")
    assert (other[0], resumed[0]) == (0, 0)
    found = [(result["seed"], result["epoch"]) for result in read_json("train.jsonl")]
    assert found == [(7, 1), (7, 2), (7, 3), (3, 2)]


@pytest.mark.parametrize("seed", range(4))
def test_metrics_that_are_not_finite_are_kept_from_checkpoints(
    seed: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training continues and warns once; the best epoch is the best one with a finite metric, resumed or not."""
    rng = np.random.default_rng(seed)
    drawn = rng.permutation([math.nan, math.inf, -math.inf, *rng.uniform(0.1, 0.9, 2)]).tolist()
    values = iter(drawn)
    monkeypatch.setattr(Scorer, "measure", lambda self: {"root_accuracy": next(values)})
    out = ""
    for n_done, n_epochs in ((0, 2), (2, 5)):
        status, told, err = command(
            "train", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--batch-size", 99, "--backend", "reference",
            "--epochs", n_epochs, "--checkpoint", "run", "--resume", "--json", "train.jsonl",
        )  # fmt: skip
        assert (status, err) == (0, "")
        n_not_finite = sum(not math.isfinite(value) for value in drawn[n_done:n_epochs])
        assert told.count("training diverges: dev root accuracy is ") == min(n_not_finite, 1)
        out += told
    assert out.count("epoch ") == 5
    assert [one["dev_root_accuracy"] for one in read_json("train.jsonl")] == [
        value if math.isfinite(value) else None for value in drawn
    ]
    best = max(filter(math.isfinite, drawn))
    assert load_checkpoint(Path("run", BEST)).state["position"]["metrics"] == {"root_accuracy": best}


@pytest.mark.slow
def test_data_unlike_that_of_training_is_told(command: Command) -> None:
    assert command("train", "tree-lstm", "--data", "trees.txt", *RUN, "--checkpoint", "run")[0] == 0
    for name, words in (("other.txt", ("dull", "play", "film")), ("alike.txt", ("good", "long", "film"))):
        Path(name).write_text("(3 (2 {}) (1 (2 {}) (2 {})))\n".format(*words))
    evaluate = "eval", "tree-lstm", "--checkpoint", "run", "--data"
    assert command(*evaluate, "alike.txt")[::2] == (0, "")
    assert command(*evaluate, "trees.txt")[::2] == (0, "")
    told = "autobatch: other.txt differs from the training data: the model does not know 67% of its words.\n"
    assert command(*evaluate, "other.txt")[::2] == (0, told)
    told = "autobatch: listops differs from the training data: the model does not know 100% of its words"
    assert command(*evaluate, "listops")[::2] == (0, f"{told} and 65% of its classes.\n")
    status, out, err = command("predict", "tree-lstm", "--checkpoint", "run", "--data", "listops", "--out", "out.jsonl")
    assert (status, out, err) == (0, "", f"{told}.\n")  # labels are ignored


DISAGREEMENTS = [
    (["train", "bilstm-tagger", "--resume"], "as before, got bilstm-tagger; give tree-lstm, or choose"),
    (["train", "tree-lstm", "--resume", "--dim", "5"], "dim must be 4 as before, got 5; leave it out, or choose"),
    (["train", "tree-lstm", "--resume", "--batch-size", "9"], "batch size must be 8 as before, got 9"),
    (["train", "tree-lstm", "--resume", "--policy", "depth"], "policy must be score as before, got depth"),
    (["train", "tree-lstm", "--resume", "--seed", "1"], "seed must be 0 as before, got 1"),
    (["train", "tree-lstm", "--resume", "--data", "listops"], "data must be trees.txt as before, got listops"),
    (["train", "tree-lstm"], "cannot start a run in 'run': it holds the checkpoint of another run; add --resume"),
    (
        ["eval", "lattice-lstm"],
        "cannot use 'run/best.safetensors' for lattice-lstm: it holds a tree-lstm;",
    ),
    (
        ["predict", "lattice-lstm"],
        "for lattice-lstm: it holds a tree-lstm;",
    ),
    (["eval", "tree-lstm", "--data", "no/file"], "cannot load data 'no/file': no such file"),
]


def test_arguments_that_disagree_with_the_checkpoint_are_refused(command: Command) -> None:
    assert command("train", "tree-lstm", "--data", "trees.txt", *RUN, "--checkpoint", "run")[0] == 0
    before = {name: Path("run", name).read_bytes() for name in os.listdir("run")}
    for arguments, sentence in DISAGREEMENTS:
        status, out, err = command(*arguments, "--checkpoint", "run")
        assert (status, out, err.count("\n")) == (2, "", 1), arguments
        assert sentence in err
    assert {name: Path("run", name).read_bytes() for name in os.listdir("run")} == before
    with Path("trees.txt").open("a") as file:
        file.write("\n".join(TREES * 30) + "\n")
    status, _, err = command("train", "tree-lstm", "--checkpoint", "run", "--resume")
    assert (status, err.count("\n")) == (2, 1)
    assert "trees.txt must hold 108 training instances as before, got 216;" in err


FOLDERS = {
    "seq2seq": {"train.en": "a b\n" * 20, "train.vi": "c d\n" * 20, "dev.en": "a b\n", "dev.vi": "c d\n"},
    "lattice-lstm": {"train.txt": LATTICES, "tags.txt": "1 one\n2 two\n3 three\n", "dev.txt": LATTICES},
    "bilstm-tagger": {"train.txt": "\n".join(TAGGED * 9), "dev.txt": "\n".join(TAGGED)},
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("model", "changed"),
    [(model, name) for model, files in FOLDERS.items() for name in files],
)
def test_training_goes_on_with_the_data_it_began_with(command: Command, model: str, changed: str, seed: int) -> None:
    """A change of any byte is detected, but not in unrelated files; older checkpoints have no digests to compare."""
    files = {name: Path("data", name) for name in FOLDERS[model]}
    Path("data").mkdir()
    for name, text in FOLDERS[model].items():
        files[name].write_text(text)
    options = "--dim", 4, "--backend", "reference", "--checkpoint", "run", "--resume"
    assert command("train", model, "--data", "data", *options, "--epochs", 1)[0] == 0
    before = Path("run", LAST).read_bytes()
    text = FOLDERS[model][changed]
    place = int(np.random.default_rng(seed).choice([at for at, letter in enumerate(text) if letter.isspace()]))
    Path("data", "notes.txt").write_text("unrelated")
    files[changed].write_text(f"{text[:place]} {text[place:]}")
    status, _, err = command("train", model, *options, "--epochs", 2)
    assert (status, err.count("\n")) == (2, 1)
    assert f"the {'development' if changed.startswith('dev') else 'training'} data in data has changed;" in err
    assert Path("run", LAST).read_bytes() == before
    arrays, state = load_checkpoint(Path("run", LAST))
    assert state.pop("digest")
    assert state.pop("dev_digest")
    save_checkpoint(Path("run", LAST), arrays, state)
    assert command("train", model, *options, "--epochs", 2)[0] == 0
    Path("run", LAST).write_bytes(before)
    files[changed].write_text(text)
    assert command("train", model, *options, "--epochs", 2)[0] == 0


def test_other_trees_of_the_same_number_are_noticed(command: Command) -> None:
    options = "--dim", 4, "--backend", "reference", "--checkpoint", "run", "--resume"
    assert command("train", "tree-lstm", "--data", "trees.txt", *options, "--epochs", 1)[0] == 0
    Path("trees.txt").write_text(Path("trees.txt").read_text().replace("good", "fine"))
    status, _, err = command("train", "tree-lstm", *options, "--epochs", 2)
    assert (status, err.count("\n")) == (2, 1)
    assert "the training data in trees.txt has changed;" in err


def test_a_checkpoint_that_cannot_be_read_ends_in_one_sentence(command: Command) -> None:
    for name in ("cut", "foreign", "empty"):
        Path(name).mkdir()
    Path("cut", LAST).write_bytes(b"\x10\0\0")
    save_checkpoint(Path("foreign", LAST), {}, {"epoch": 1})
    Path("arrays").mkdir()
    Path("arrays", LAST).write_bytes(save({"weight": np.ones(2)}))
    for name, sentence in (
        ("cut", "it is truncated or not a safetensors file"),
        ("foreign", "it is a checkpoint, but not of autobatch train"),
        ("arrays", "it holds arrays but not a checkpoint; pass a file written by autobatch train --checkpoint."),
        ("missing", "in 'missing': it does not exist; give a folder written by autobatch train"),
        ("empty", "in 'empty': it holds neither best.safetensors nor last.safetensors;"),
    ):
        for arguments in (["eval"], ["predict"], *([["train", "--resume"]] if name in ("cut", "foreign") else [])):
            status, out, err = command(*arguments, "tree-lstm", "--checkpoint", name)
            assert (status, out, err.count("\n")) == (2, "", 1)
            assert sentence in err
    assert Path("cut", LAST).read_bytes() == b"\x10\0\0"
    assert "--resume needs --checkpoint DIR" in command("train", "tree-lstm", "--resume")[2]
    assert "cannot write checkpoints to 'trees.txt/run'" in command(
        "train", "tree-lstm", "--checkpoint", "trees.txt/run"
    )[2]  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_a_step_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 30) + "\n")
    arguments = [sys.executable, "-u", "-m", "autobatch.cli.main", "train", "tree-lstm", "--data", "trees.txt"]
    arguments += ["--dim", "4", "--batch-size", "8", "--epochs", "1000000", "--checkpoint", "run"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.stdout.readline().startswith("epoch 1:")
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert err == "autobatch: interrupted; the checkpoint is in run, resume with --resume.\n"
    assert load_checkpoint(tmp_path / "run" / LAST).state["position"]["epochs"] >= 1


def test_a_learned_policy_is_stored_and_training_goes_on_under_it(command: Command) -> None:
    """The policy file is deleted before training resumes; parameters are bit-identical to uninterrupted training."""
    learn = ("policy", "learn", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--batch-size", 8, "--episodes", 20)
    assert command(*learn, "--out", "x.policy.json")[0] == 0
    run = ("train", "tree-lstm", "--data", "trees.txt", *RUN, "--policy", "x.policy.json")
    half = [*run[: run.index("--epochs")], "--epochs", 2, *run[run.index("--epochs") + 2 :]]
    assert command(*run, "--checkpoint", "whole", "--json", "whole.jsonl")[0] == 0
    assert command(*half, "--checkpoint", "halves")[0] == 0
    Path("x.policy.json").unlink()
    assert command(*run, "--checkpoint", "halves", "--resume")[0] == 0
    whole, halves = (load_checkpoint(Path(folder, LAST)) for folder in ("whole", "halves"))
    assert whole.arrays
    np.testing.assert_equal(halves.arrays, whole.arrays)
    assert whole.state["policy"] == halves.state["policy"]
    assert {result["policy"] for result in read_json("whole.jsonl")} == {"fsm+both+compact"}
    assert command("eval", "tree-lstm", "--checkpoint", "halves")[0] == 0


def test_what_auto_stands_for_is_stored(command: Command) -> None:
    """So training resumes with this policy on any backend."""
    model = ("train", "tree-lstm", "--data", "trees.txt", *RUN)
    assert command(*model, "--checkpoint", "run")[0] == 0
    assert load_checkpoint(Path("run", LAST)).state["settings"]["policy"] == "score"
    assert command(*model, "--epochs", 5, "--checkpoint", "run", "--resume", "--json", "x.jsonl")[0] == 0
    assert [result["policy"] for result in read_json("x.jsonl")] == ["score"]
    assert command("eval", "tree-lstm", "--checkpoint", "run")[0] == 0
