"""Test that groups of processes compute what one process computes, and all raise what one raises."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.devices.late import Late
from helpers.runs.processes import run_processes

N_WORDS, DIM = 12, 5
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which builds kernels for the processor")


class Net(ab.Module):
    """A tree network with dropout; its table has a gradient of `Rows` unless a negative word reads the whole table."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.words = ab.Parameter(rng.standard_normal((N_WORDS, DIM)))
        self.merge_both = ab.Linear(2 * DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, 1, rng=rng)
        self.rare = ab.Parameter(rng.standard_normal(DIM))
        self.astype(np.float64)

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.dropout(ab.lookup(self.words, word), 0.3)

    @ab.cell
    def every(self) -> Any:
        return ab.mean(self.words, axis=0) * self.rare

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.merge_both(ab.concat([left, right])))

    @ab.cell
    def score(self, state: Any) -> Any:
        return ab.sum(self.output(state) ** 2)

    def state(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return self.leaf(tree) if tree >= 0 else self.every()
        return self.merge(self.state(tree[0]), self.state(tree[1]))

    def loss(self, tree: Any) -> Any:
        return self.score(self.state(tree))

    async def waiting(self, tree: Any) -> Any:
        state = self.state(tree)
        while await ab.value(ab.sum(state)) > 0.0:
            state = self.merge(state, self.leaf(0)) - 0.3
        return self.score(state)


def draw_tree(rng: np.random.Generator, size: int, with_rare: bool) -> Any:
    if size == 1:
        return int(rng.integers(-1 if with_rare else 0, N_WORDS))
    left = int(rng.integers(1, size))
    return draw_tree(rng, left, with_rare), draw_tree(rng, size - left, with_rare)


def draw_trees(n: int, with_rare: bool = False) -> list[Any]:
    rng = np.random.default_rng(n)
    return [draw_tree(rng, int(rng.integers(1, 9)), with_rare and k % 3 == 0) for k in range(n)]


def train(trees: Sequence[Any], size: int, recorded: bool = True, name: str = "loss", **options: Any) -> Any:
    """Return the losses, gradient norms and parameters of two epochs."""
    model = Net().to("cuda" if options.get("backend") == "cuda" else "cpu")
    loss = ab.batched(getattr(model, name), **options)
    optimizer = ab.optim.Adam(model, lr=0.05)
    instances = loss.record_all(trees) if recorded else trees
    rng, losses = np.random.default_rng(1), list[float]()
    for _ in range(2):
        for share in ab.distributed.shares(instances, size, rng):
            value, grads = loss.value_and_grad(share)
            norm = ab.optim.clip_by_norm(grads, 1.0)
            optimizer.step(grads)
            assert isinstance(value, Late) == (options.get("backend") == "cuda" and bool(share))
            losses += [float(value), float(norm)]
    return losses, model.state_dict()


def train_in_group(rank: int, *given: Any) -> Any:
    trees, size, recorded, name, options = given
    with ab.distributed.group() as joined:
        assert joined.rank == rank
        return train(trees, size, recorded, name, **options)


def check_equal(
    n: int, tmp_path: Path, trees: Sequence[Any], size: int, recorded: bool, name: str, **options: Any
) -> None:
    if options.get("backend") == "cuda":  # the device's threads do not survive a fork
        ((losses, parameters),) = run_processes(1, tmp_path, train_in_group, trees, size, recorded, name, options)
    else:
        losses, parameters = train(trees, size, recorded, name, **options)
    for found in run_processes(n, tmp_path, train_in_group, trees, size, recorded, name, options):
        assert not isinstance(found, str), found
        np.testing.assert_allclose(found[0], losses, rtol=1e-12)
        for key, array in parameters.items():
            np.testing.assert_allclose(found[1][key], array, rtol=1e-11, atol=1e-12)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    check_equal(2, tmp_path, draw_trees(9, with_rare=True), 4, True, "loss")


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize(
    ("recorded", "name", "options"),
    [
        (True, "loss", {"max_bytes": 4000}),
        (False, "loss", {"policy": "agenda"}),
        (True, "loss", {"backend": "cpu"}),
        (False, "waiting", {}),
        (False, "waiting", {"max_bytes": 4000}),
    ],
)
def test_any_number_of_processes_trains_what_one_trains(
    n: int, recorded: bool, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    check_equal(n, tmp_path, draw_trees(11, with_rare=True), 5, recorded, name, **options)


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize("n", [2, 7])
def test_on_a_device_losses_are_read_late(n: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    check_equal(n, tmp_path, draw_trees(5, with_rare=True), 3, True, "loss", backend="cuda")


def lose_late(rank: int) -> list[Any]:
    """Return the changes and errors of three steps on a device; in the second, a loss of process 1 is not finite."""
    model = Net().to("cuda")
    loss, optimizer, found = ab.batched(model.loss, backend="cuda"), ab.optim.SGD(model, lr=0.1), list[Any]()
    trees = draw_trees(4)
    with ab.distributed.group():
        for number in range(3):
            (share,) = ab.distributed.shares(trees, 4)
            if number == 1:
                model.rare.data = np.full(DIM, np.nan if rank == 1 else 1.0)
                share[0] = -1
            value, grads = loss.value_and_grad(share)
            if number == 1:
                model.rare.data = np.ones(DIM)
            before = model.state_dict()["merge_both.weight"].copy()
            optimizer.step(grads)
            found.append(bool((model.state_dict()["merge_both.weight"] != before).any()))
            try:
                float(value)
            except ab.NumericError as error:
                found.append(str(error))
    return found


@needs_gxx
@pytest.mark.slow
def test_a_late_loss_that_is_not_finite_changes_nothing_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    here, there = run_processes(2, tmp_path, lose_late)
    for found, text in ((here, "the loss of an instance in another process"), (there, "the loss of 1 of")):
        assert not isinstance(found, str), found
        assert (found[0], found[1], found[3]) == (True, False, True)
        assert found[2].startswith(text)


def read_later(rank: int) -> list[str]:
    """Return the errors of four calls on a device; in the second, process 1 loses a loss, which process 0 reads."""
    model, found = Net().to("cuda"), list[str]()
    loss, optimizer = ab.batched(model.loss, backend="cuda"), ab.optim.SGD(model, lr=0.1)
    with ab.distributed.group():
        for number in range(4):
            (share,) = ab.distributed.shares(draw_trees(4), 4)
            if number == 1:
                model.rare.data = np.full(DIM, np.nan if rank == 1 else 1.0)
                share[0] = -1
            try:
                value, grads = loss.value_and_grad(share)
                optimizer.step(grads)
                if rank == 0:
                    float(value)
                found.append("")
            except ab.NumericError as error:
                found.append(str(error))
            model.rare.data = np.ones(DIM)
    return [*found, str(model.state_dict()["merge_both.weight"].tolist())]


@needs_gxx
@pytest.mark.slow
def test_a_late_loss_that_one_process_did_not_read_is_raised_in_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    here, there = run_processes(2, tmp_path, read_later)
    assert not isinstance(here, str), here
    assert not isinstance(there, str), there
    assert here[1].startswith("the loss of an instance in another process")
    assert there[2].startswith("the loss of 1 of")
    assert here[2].startswith("process 1 of 2: the loss of 1 of")
    assert [here[0], here[3], there[0], there[1], there[3]] == [""] * 5
    assert here[4] == there[4]


class WithAux(Net):
    """Instances with a float array, and a function that returns more than the loss."""

    def loss(self, given: Any) -> Any:
        tree, scale = given
        state = self.state(tree) * scale
        return self.score(state), state


def differentiate_all(instances: Sequence[Any], weights: Sequence[float], reduce: str) -> Any:
    """Call `value_and_grad` with all its arguments, after a call that made gradients to add to."""
    model = WithAux()
    loss = ab.batched(model.loss)
    (_, _), before, _ = loss.value_and_grad(instances, reduce, has_aux=True, inputs=True)
    out = {name: g.copy() for name, g in before.items()}
    (value, aux), grads, inputs = loss.value_and_grad(instances, weights, has_aux=True, out=out, inputs=True)
    assert grads is out
    return float(value), list(aux), {name: np.array(g) for name, g in grads.items()}, [x[1] for x in inputs]


def differentiate_part(rank: int, n: int, instances: Sequence[Any], weights: Sequence[float], reduce: str) -> Any:
    with ab.distributed.group():
        own = slice(2 * rank, 2 * rank + 2)
        return differentiate_all(instances[own], weights[own], reduce)


@pytest.mark.parametrize(("n", "reduce"), [(3, "mean"), (4, "sum")])
def test_lists_weights_and_all_that_is_returned(n: int, reduce: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    instances = [(tree, rng.standard_normal(DIM)) for tree in draw_trees(6, with_rare=True)]
    weights = rng.standard_normal(6).tolist()
    value, aux, grads, inputs = differentiate_all(instances, weights, reduce)
    parts = run_processes(n, tmp_path, differentiate_part, n, instances, weights, reduce)
    for part in parts:
        assert not isinstance(part, str), part
        np.testing.assert_allclose(part[0], value, rtol=1e-12)
        for name, array in grads.items():
            np.testing.assert_allclose(part[2][name], array, rtol=1e-11, atol=1e-12)
    for place, of_one in ((1, aux), (3, inputs)):
        found = [x for part in parts for x in part[place]]
        assert len(found) == len(of_one)
        for mine, other in zip(found, of_one, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


class OtherNet(Net):
    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.merge_both(ab.concat([right, left])))


def begin_otherwise(rank: int, what: str) -> str:
    """Return the error of the first call if the other process begins differently."""
    is_other = rank == 1
    model = OtherNet() if is_other and what == "code" else Net()
    if is_other and what == "parameters":
        model.rare.data += 1.0
    if is_other and what == "frozen":
        model.rare.trainable = False
    loss = ab.batched(model.loss, seed=int(is_other and what == "seed"))
    trees = draw_trees(6)
    if is_other and what == "data":
        trees[3] = 1
    graphs = loss.record_all(trees)
    with ab.distributed.group():
        (share,) = ab.distributed.shares(graphs, 6)
        with pytest.raises(ab.DistributedError) as caught:
            loss.value_and_grad([*share] if is_other and what == "list" else share)
        return str(caught.value)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("parameters", "in the parameters; start"),
        ("code", "in the code of the model; start all"),
        ("frozen", "in the trainable parameters; start"),
        ("seed", "in the seed: 1 instead of 0; start"),
        ("data", "in the mini-batch; start"),
        ("list", "in the mini-batch; start"),
    ],
)
def test_a_process_that_begins_otherwise_is_refused(what: str, text: str, tmp_path: Path) -> None:
    found = run_processes(2, tmp_path, begin_otherwise, what)
    assert found[0] == found[1]
    assert found[0].startswith(f"process 1 of 2 differs from process 0 {text}")


def fail_once(rank: int, what: str) -> list[Any]:
    """Return the values of three calls, or the error's text for the second one, in which process 1 fails."""
    model, found = Net(), list[Any]()
    loss, before = ab.batched(model.loss), model.output.weight.data.copy()
    with ab.distributed.group():
        for number in range(3):
            (share,) = ab.distributed.shares(draw_trees(6), 6)
            fails = number == 1 and rank == 1
            if fails and what == "instance":
                share[0] = 0.5
            if what == "loss":
                model.output.weight.data[...] = np.nan if fails else before
            try:
                found.append(float(loss.value_and_grad(share)[0]))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize(
    ("what", "here", "there"),
    [
        ("instance", "TypeError: ", "DistributedError: process 1 of 2 stopped: TypeError: "),
        ("loss", "NumericError: the loss of 3 of 3", "NumericError: process 1 of 2: the loss of 3 of 3"),
    ],
)
def test_what_fails_in_one_process_is_raised_in_all_and_they_go_on(
    what: str, here: str, there: str, tmp_path: Path
) -> None:
    found = run_processes(2, tmp_path, fail_once, what)
    assert found[1][1].startswith(here)
    assert found[0][1].startswith(there)
    assert [x for x in found[0] if not isinstance(x, str)] == [x for x in found[1] if not isinstance(x, str)]
    assert isinstance(found[0][2], float)


def end_early(rank: int) -> str:
    """Return what a process says of the other one, which is killed between two calls."""
    loss = ab.batched(Net().loss)
    with ab.distributed.group():
        for number in range(2):
            if rank == 1 and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                loss.value_and_grad(next(ab.distributed.shares(draw_trees(6), 6)))
            except ab.DistributedError as error:
                return str(error)
    return "nothing"


def test_a_process_that_is_killed_is_an_error_of_the_others(tmp_path: Path) -> None:
    told, status = run_processes(2, tmp_path, end_early)
    assert status == -signal.SIGKILL
    assert told.startswith("a process of the group has ended or does not answer: the connection failed while ")
    assert "resume from the last checkpoint" in told


def differentiate_twice(rank: int) -> list[Any]:
    """Return whether the gradient of a table is unchanged by another function's gradient."""
    losses = [ab.batched(Net().loss) for _ in range(2)]
    with ab.distributed.group():
        (share,) = ab.distributed.shares(draw_trees(6), 6)
        grads = losses[0].value_and_grad(share)[1]
        before = np.array(grads["words"])
        losses[1].value_and_grad(share, reduce="sum")
        return [type(grads["words"]).__name__, bool((before == np.array(grads["words"])).all())]


def test_a_call_overwrites_the_gradients_of_its_function_alone(tmp_path: Path) -> None:
    assert run_processes(2, tmp_path, differentiate_twice) == [["Rows", True]] * 2


def test_alone_a_share_is_all() -> None:
    trees = draw_trees(7)
    with ab.distributed.group() as joined:
        found = train(trees, 3)
        assert (joined.gather("x"), joined.most(3), repr(joined)) == (["x"], 3, "Joined(process 0 of 1)")
    alone = train(trees, 3)
    np.testing.assert_allclose(found[0], alone[0], rtol=1e-14)


def test_functions_of_torch_are_left_to_torch() -> None:
    torch = pytest.importorskip("torch")
    import autobatch.torch as abt

    double = abt.batched(lambda x: x * 2.0, module=torch.nn.Linear(2, 2))
    with ab.distributed.group(), pytest.raises(ab.GraphError, match="wrap the module in torch's Distributed"):
        double([torch.ones(2)])


def test_batches_are_divided_by_cost() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        costs, n = rng.pareto(1.0, int(rng.integers(0, 40))), int(rng.integers(1, 9))
        parts = ab.distributed.spread(costs, n)
        assert sorted(k for part in parts for k in part) == list(range(costs.size))
        assert all(part == sorted(part) for part in parts)
        sums = [costs[part].sum() for part in parts]
        least = max(costs.max(initial=0.0), costs.sum() / n)  # no division can be better
        assert max(sums) <= 2.0 * least
        assert max(sums) - min(sums) <= costs.max(initial=0.0) + 1e-9


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        ([1.0], r"one number per instance, got costs of shape \(1,\) for 2 instances|a list of numbers"),
        ([1.0, np.nan], "finite and at least 0, got nan for instance 1|a list of numbers"),
        ([1.0, -1.0], r"finite and at least 0, got -1\.0 for instance 1|a list of numbers"),
        (lambda x: np.inf, "finite and at least 0, got inf for instance 0"),
    ],
)
def test_costs_that_are_none_are_refused(cost: Any, told: str) -> None:
    with pytest.raises(ab.DataError, match=told):
        next(ab.distributed.shares(["a", "b"], 2, cost=cost))
