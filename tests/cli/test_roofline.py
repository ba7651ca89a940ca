"""The experiment `roofline` lists the products that run, and counts their operations as by hand."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.backends.cpu.backend import Cpu
from autobatch.blas.finding import get_provider
from autobatch.blas.provider import Matrix, Provider
from autobatch.cli.racing import MODES
from autobatch.cli.workload import load_workload, record
from autobatch.graph.rewrite import UNSHARED
from autobatch.params.stacks import make_gradients
from helpers.runs.commands import Command
from matmuls import ONCE, Matmul, Matmuls, Memory, Part, Stages, list_matmuls
from roofline import Config, race_matmuls

DIM, BATCH_SIZE = 6, 8
MODELS = ("tree-lstm", "tree-lstm-2type", "bilstm-tagger", "lattice-lstm")


class Noting(Provider):
    """NumPy, with a record of its products; compiled code cannot call it."""

    def __init__(self) -> None:
        super().__init__("noting", "0", {})
        self.noted: list[tuple[Any, ...]] = []

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        self.noted.append(describe(a, b, out, accumulate))
        get_provider("numpy").multiply(a, b, out, accumulate)


def describe(a: Matrix, b: Matrix, out: Matrix, adds: bool) -> tuple[Any, ...]:
    """Return the shapes, whether the product is added, and the strides of operands with more than one row."""
    strides = [one.strides if min(one.shape) > 1 else () for one in (a, b, out)]
    return a.shape, b.shape, bool(adds), strides


@pytest.fixture
def command(command: Command) -> Command:
    """Return a function that runs `bench`."""
    return partial(command, "bench")


def run_model(model: str, mode: str, provider: Provider | None = None) -> tuple[Any, Any, list[Any]]:
    """Run the first mini-batch of a model's data; return the loss, the workload and the instances."""
    workload = load_workload(model, None, DIM, seed=0)
    loss = workload.batched("loss", "score", "cpu", plan_cache=0)
    backend = Cpu(provider="numpy")
    if provider is not None:
        backend.chooser.choose = lambda *args, **kwargs: provider  # type: ignore[method-assign]
    loss.backend, loss.rewrites = backend, UNSHARED  # so that nodes are those of the instances
    instances = workload.first(BATCH_SIZE)
    graphs = record(loss, instances)
    if mode == "train":
        loss.value_and_grad(graphs)
    else:
        loss(graphs)
    return loss, workload, instances


def list_all(loss: Any, workload: Any, mode: str) -> list[Matmul]:
    (part,) = loss.prepare(workload.first(BATCH_SIZE), mode == "train").parts
    executable = part.executable
    trainable = workload.model.parameters()
    made = make_gradients(trainable, executable.cells.row_parameters).of if mode == "train" else {}
    gradients = {id(trainable[name]): gradient for name, gradient in made.items()}
    memory = Memory(executable.options.dtype)
    return list(list_matmuls(executable, Stages(), memory, gradients))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", MODELS)
def test_the_products_listed_are_those_that_run(model: str, mode: str) -> None:
    """In the same order, with the same shapes and strides."""
    provider = Noting()
    loss, workload, _ = run_model(model, mode, provider)
    ran = list(provider.noted)
    listed = [describe(one.a, one.b, one.out, one.adds) for one in list_all(loss, workload, mode)]
    assert [one[:3] for one in listed] == [one[:3] for one in ran]
    assert listed == ran
    assert len(ran) > 3


@pytest.mark.slow
def test_operations_are_those_counted_by_hand() -> None:
    """Tree-LSTM: 3H x H per leaf, 5H x 2H per inner node, C x H per node; equally for gradients of rows and weights."""
    loss, workload, trees = run_model("tree-lstm", "train")
    n_leaves = sum(len(list(tree.words())) for tree in trees)
    n_inner = n_leaves - len(trees)
    n_classes = workload.dataset.sizes["n_classes"]
    leaf = 2 * n_leaves * 3 * DIM * DIM
    merge = 2 * n_inner * 5 * DIM * 2 * DIM
    output = 2 * (n_leaves + n_inner) * n_classes * DIM
    kinds = {name: kind for kind, name in enumerate(loss.last.graph.types.names)}
    found = Matmuls(list_all(loss, workload, "train")).flops()
    assert found == {
        Part("forward", ONCE): leaf,
        Part("forward", kinds["merge"]): merge,
        Part("forward", kinds["node_loss"]): output,
        Part("backward", kinds["node_loss"]): output,
        Part("backward", kinds["merge"]): merge,
        Part("backward", ONCE): leaf,
        Part("weights", kinds["leaf"]): leaf,
        Part("weights", kinds["node_loss"]): output,
        Part("weights", kinds["merge"]): merge,
    }
    inference, workload, _ = run_model("tree-lstm", "infer")
    assert sum(Matmuls(list_all(inference, workload, "infer")).flops().values()) == leaf + merge + output


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["numpy", "noting"])
def test_products_run_alone_compute_what_numpy_does(provider: str) -> None:
    """Compiled code and a NumPy loop over the list leave the same values in memory."""
    found = []
    for compiled in (True, False):
        loss, workload, _ = run_model("tree-lstm", "train", Noting() if provider == "noting" else None)
        listed = list_all(loss, workload, "train")
        if compiled:
            matmuls = Matmuls(listed)
            matmuls.run()
            assert set(matmuls.time_parts()) == set(matmuls.flops())
        else:
            for one in listed * 2:
                product = one.a @ one.b
                one.out[...] = one.out + product if one.adds else product
        found.append([np.array(one.out) for one in listed])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up(mode: str) -> None:
    workload = load_workload("tree-lstm", None, DIM, seed=0)
    found = race_matmuls(workload, Config(dim=DIM, batch_size=BATCH_SIZE, mode=mode, minibatches=2, repeats=2))
    assert [len(timings) for timings in found.seconds.values()] == 6 * [2 * 2]
    ms, matmul_ms = (sum(getattr(line, name) for line in found.lines) for name in ("ms", "matmul_ms"))
    assert sum(found.besides().values()) == pytest.approx(ms - matmul_ms)
    assert {line.stage for line in found.lines if not line.cell} >= {"planning", "around", "forward"}
    assert ("optimizer" in found.besides()) == ("backward" in found.besides()) == (mode == "train")
    assert min(line.ms for line in found.lines if line.cell) > 0
    assert found.ratio == found.ms / found.matmul_ms > 1
    figures = found.figures()
    assert figures["gflops"] == pytest.approx(sum(part["flops"] for part in figures["parts"]) / 1e6 / figures["ms"])
    assert sum(part["ms"] for part in figures["parts"]) == pytest.approx(ms)
    rows = [line.split() for line in str(found).splitlines()]
    assert next(row for row in rows if row[:1] == ["sum"])[1:3] == [f"{ms:.2f}", f"{matmul_ms:.2f}"]


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_the_figures(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "roofline.jsonl"
    small = ("--dim", DIM, "--batch-size", BATCH_SIZE, "--minibatches", 1, "--repeats", 1)
    status, out, err = command("tree-lstm", "--roofline", *small, "--json", path, "--out", tmp_path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tree-lstm, listops, dim 6, train; per mini-batch of 8, policy score, one thread"
    cells = ("leaf", "merge", "node_loss", "sum_n")
    stages = ("forward", "backward", "weights")
    assert {f"{cell}, {stage}" for cell in cells for stage in stages} <= {line.split("  ")[0] for line in lines}
    (result,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert f"The step takes {result['ratio']:.2f} times the time of its matmuls alone" in out
    assert (result["mode"], result["backend"], result["policy"]) == ("train", "cpu", "score")
    record = json.loads((tmp_path / "roofline-tree-lstm.json").read_text())
    assert record["figures"]["ratio"] == result["ratio"]
    status, out, _ = command(
        "tree-lstm", "--roofline", *small, "--mode", "infer", "--policy", "agenda", "--out", tmp_path
    )
    assert (status, "backward" in out, ", infer; per mini-batch of 8, policy agenda," in out) == (0, False, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["tree-lstm", "--roofline", "--backend", "reference"],
            "the backend 'reference' does not compile cells; choose",
        ),
        (["tree-lstm", "--roofline", "--policy", "depth,agenda"], "--policy must be one policy with --roofline, got 2"),
        (["tree-lstm", "--roofline", "--baselines"], "--roofline and --compile are mutually exclusive"),
        (["tree-lstm", "--roofline", "--batch-size", "99999"], "cannot take the first 399996 instances"),
        (["--roofline"], "Missing argument 'MODEL'"),
        (["own:Sum", "--roofline", "--dim", "3", "--batch-size", "2"], "its cells multiply no rows by shared matrices"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import autobatch as ab\n"
        "class Sum(ab.Module):\n"
        "    def __init__(self, n_classes, rng):\n"
        "        self.weight = ab.Parameter(rng.standard_normal(n_classes))\n"
        "    @ab.cell\n"
        "    def node(self, label):\n"
        "        return ab.cross_entropy(self.weight, label)\n"
        "    def loss(self, tree):\n"
        "        return self.node(tree.label)\n"
    )
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
