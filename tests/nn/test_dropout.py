"""Test that dropout draws the same masks eagerly and batched, in any mini-batch, and keeps the right share."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.ops.randomness import DrawCount
from helpers.fakes.counting_backend import Counting
from helpers.runs.ways import each

POLICIES = ("unbatched", "depth", "agenda")


class Chain(ab.Module):
    """Reads a chain of ints; applies dropout twice in a step and once outside cells, and never in one cell."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(rng.standard_normal((10, 6)))
        self.gates = ab.Linear(12, 6, rng=rng)

    @ab.cell
    def read(self, word: int) -> Any:
        return ab.dropout(ab.lookup(self.embedding, word), 0.3)

    @ab.cell
    def step(self, state: Any, read: Any) -> Any:
        kept = ab.dropout(state, 0.5)
        return ab.dropout(ab.tanh(self.gates(ab.concat((kept, read)))), 0.25)

    @ab.cell
    def plain(self, state: Any) -> Any:
        return 2.0 * state

    def loss(self, words: list[int]) -> Any:
        state: Any = np.zeros(6)
        for word in words:
            state = self.plain(self.step(state, self.read(word)))
        return ab.sum(ab.dropout(state, 0.2) ** 2)


@pytest.fixture
def model() -> Chain:
    return Chain(np.random.default_rng(0)).astype("float64")


def draw_chains(n: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(10, size=rng.integers(1, 8)).tolist() for _ in range(n)]


@each("policy, backend", [*((policy, "cpu") for policy in POLICIES), ("agenda", "reference"), ("agenda", Counting())])
def test_eager_and_batched_draw_the_same_masks(model: Chain, policy: str, backend: Any) -> None:
    chains = draw_chains(12, seed=1)
    model.train()
    loss = ab.batched(model.loss, policy=policy, backend=backend, seed=7)
    loss.step = 3
    eager = []
    for key, chain in enumerate(chains):
        with ab.randomness(seed=7, step=3, key=key):
            eager.append(model.loss(chain))
    np.testing.assert_allclose(loss(chains), eager, rtol=1e-12)
    assert not np.allclose(eager, [model.eval().loss(chain) for chain in chains])


def test_masks_do_not_depend_on_the_composition_of_the_minibatch(model: Chain) -> None:
    loss = ab.batched(model.loss)
    graphs = loss.record_all(draw_chains(20, seed=2))
    together = loss(graphs)
    order = np.random.default_rng(0).permutation(20)
    shuffled = np.concatenate([loss([graphs[i] for i in part]) for part in np.split(order, [3, 4, 11])])
    np.testing.assert_allclose(shuffled, together[order], rtol=1e-12)


def test_an_instance_keeps_its_key_and_may_be_given_another(model: Chain) -> None:
    loss = ab.batched(model.loss)
    first, second = loss.record_all([[1, 2, 3], [1, 2, 3]])
    assert (first.key, second.key) == (0, 1)
    assert loss([first]) != loss([second])
    second.key = 0
    assert loss([first]) == loss([second])


def test_masks_change_with_seed_and_step_only(model: Chain) -> None:
    chains = draw_chains(4, seed=3)
    loss = ab.batched(model.loss, seed=1)
    first, again = loss(chains), loss(chains)
    np.testing.assert_array_equal(first, again)
    loss.value_and_grad(chains)
    assert loss.step == 1
    assert not np.allclose(loss(chains), first)
    assert not np.allclose(ab.batched(model.loss, seed=2)(chains), first)


def test_gradients_pass_central_differences_under_a_fixed_mask(model: Chain) -> None:
    ab.testing.check_grads(ab.batched(model.loss), draw_chains(5, seed=4), model, np.random.default_rng(0))


def test_eval_is_deterministic_and_train_turns_dropout_on_again(model: Chain) -> None:
    chains = draw_chains(6, seed=5)
    loss = ab.batched(model.loss)
    graphs = loss.record_all(chains)
    dropped = loss(graphs)
    model.eval()
    with ab.randomness(training=False):
        eager = [model.loss(chain) for chain in chains]
    for loss.step in (0, 99):
        np.testing.assert_allclose(loss(graphs), eager, rtol=1e-12)
    loss.step = 0
    model.train()
    np.testing.assert_array_equal(loss(graphs), dropped)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_share_kept_passes_a_binomial_test(rate: float) -> None:
    n = 200_000
    with ab.randomness(seed=11):
        kept = int(np.count_nonzero(ab.dropout(np.ones(n), rate)))
    deviation = math.sqrt(n * rate * (1 - rate))
    assert abs(kept - n * (1 - rate)) <= 4.5 * deviation


def test_masks_of_neighbours_are_not_correlated() -> None:
    masks = []
    for step in range(2):
        for key in range(40):
            with ab.randomness(seed=5, step=step, key=key):
                masks += [np.asarray(ab.dropout(np.ones(500), 0.5)) - 1 for _ in range(2)]
    correlation = np.corrcoef(np.array(masks))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / math.sqrt(500)


def test_what_is_kept_is_scaled_so_that_the_mean_stays() -> None:
    with ab.randomness():
        assert set(np.unique(ab.dropout(np.ones(100), 0.75))) == {0.0, 4.0}


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ab.DataError, match="at least 0 and below 1"):
        ab.dropout(np.ones(3), rate)


def test_the_layer_follows_eval_inside_and_outside_cells() -> None:
    class Twice(ab.Module):
        def __init__(self) -> None:
            self.drop = ab.Dropout(0.5)

        @ab.cell
        def inside(self, x: Any) -> Any:
            return self.drop(x)

        def run(self, x: Any) -> Any:
            return self.inside(x), self.drop(x)

    model, x = Twice(), np.ones(50, np.float32)
    run = ab.batched(model.run)
    for result in (*run([x]), *model.run(x)):
        assert set(np.unique(result)) == {0.0, 2.0}
    model.eval()
    for result in (*run([x]), *model.run(x)):
        assert set(np.unique(result)) == {1.0}


MAKES = [np.int64, np.int32, np.uint8, np.uint64, np.array]


class Masked(ab.Module):
    def __init__(self) -> None:
        self.weight = ab.Parameter(np.ones(9))

    @ab.cell
    def drop(self, x: Any) -> Any:
        return ab.dropout(self.weight * x, 0.5)


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.filterwarnings("error")
def test_ints_of_any_make_are_the_same_seed_step_and_key(make: Any) -> None:
    model, x = Masked(), np.ones(9)

    def eagerly(seed: Any, step: Any, key: Any) -> Any:
        with ab.randomness(seed, step, key):
            return model.drop(x)

    expected = eagerly(3, 2, 1)
    assert 0 < np.count_nonzero(expected) < 9
    np.testing.assert_array_equal(eagerly(make(3), make(2), make(1)), expected)
    for backend in ("reference", Cpu()):
        for size in (2, 64):
            drop = ab.batched(model.drop, backend=backend, seed=0)
            drop.seed, drop.step = make(3), make(2)
            np.testing.assert_array_equal(drop([x] * size)[1], expected)


@pytest.mark.parametrize("wrong", [1.5, "a", None, np.array([1, 2])])
def test_what_is_no_int_is_no_seed_step_or_key(wrong: Any) -> None:
    for name in ("seed", "step") + (("key",) if not isinstance(wrong, np.ndarray) else ()):
        expected = pytest.raises(ab.DataError, match=f"{name} of random numbers must be an int, got ")
        with expected, ab.randomness(**{name: wrong}):
            pass


@pytest.mark.parametrize("key", [-1, 2**63, 2**64 - 1, 2**64, 2**70 + 5])
def test_large_ints_wrap_around(key: int) -> None:
    masks = []
    for own in (key, key % 2**64):
        with ab.randomness(own, own, own):
            masks.append(ab.dropout(np.ones(50), 0.5))
    np.testing.assert_array_equal(*masks)


def test_other_options_take_ints_of_any_make() -> None:
    model, x = Masked(), np.ones(9)
    options: dict[str, Any] = {"seed": np.int64(3), "plan_cache": np.int8(2), "max_bytes": np.int64(10**6)}
    drop = ab.batched(model.drop, backend="reference", **options)
    expected = ab.batched(model.drop, seed=3, backend="reference")([x, x])
    np.testing.assert_array_equal(drop(drop.record_all([x, x])), expected)
    few: Any = np.uint8(1)
    assert len(drop.profile([x], n_calls=few).calls) == 1
    by_size = ab.minibatches(range(200), 64 * few, bucket_by=float, window=100)
    assert [len(batch) for batch in by_size] == [64, 64, 64, 8]


@pytest.mark.parametrize("n_drawn", range(4))
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda draws: pickle.loads(pickle.dumps(draws))])
def test_a_copy_of_a_count_of_draws_goes_on_by_itself(copied: Callable[[DrawCount], DrawCount], n_drawn: int) -> None:
    def go_on(draws: DrawCount) -> list[int]:
        return [next(draws), *(next(branch) for branch in draws.fork(3)), next(draws)]

    draws = DrawCount(5)
    assert [next(draws) for _ in range(n_drawn)] == [*range(5, 5 + n_drawn)]
    draws.fork(n_drawn)
    other = copied(draws)
    assert go_on(other) == go_on(draws)
    assert next(other) == next(draws) == 5 + n_drawn + 2
