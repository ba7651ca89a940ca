"""Tree-LSTM as a good user of JAX batches it: levels padded to fixed widths, one compiled function for mini-batches.

XLA compiles a function for one set of shapes, which takes 2 to 11 s, so the widths of levels are round numbers that
only grow: a wider level of a mini-batch widens it in all later ones, and causes one more compilation. Padding reads row
0 and belongs to an extra tree that is dropped. Gradients are those of `jax.grad`, and a step is one compiled function
that overwrites its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from autobatch.models.data.tree import Tree
from baselines.baseline import Arrays
from baselines.forest import Ints, list_nodes, merge_trees

Values: TypeAlias = dict[str, Any]
Widths: TypeAlias = tuple[tuple[int, int], ...]
"""(rows for leaves, rows for inner nodes) of each level, the deepest first."""
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as everywhere here


class Padded(NamedTuple):
    """A mini-batch with rows for padding.

    Attributes:
        words: words of the leaves, by level.
        labels, trees: label and tree of all rows, by level, leaves first; padding belongs to an extra tree.
        children: rows of the inner nodes' children in the level before, by level: left, right, left, ...
        widths, n_trees: the static arguments of the compiled function.
    """

    words: Ints
    labels: Ints
    trees: Ints
    children: Ints
    widths: Widths
    n_trees: int


class JaxTreeLSTM:
    """Binary Tree-LSTM (Tai, Socher, Manning 2015, section 3.2, N = 2), one matrix for the gates of both children.

    Attributes:
        widths: widths of the levels so far, roots first.
        n_compiled: number of functions compiled so far.
    """

    def __init__(self, lr: float) -> None:
        self.widths: list[tuple[int, int]] = []
        self.n_compiled = 0
        self._lr = lr
        self._n_threads: int | None = None
        self._values: Values = {}
        self._moments: tuple[Values, Values] = {}, {}
        self._n_steps = 0
        self._losses = jax.jit(self._compute_losses, static_argnums=(2, 3))
        self._gradients = jax.jit(jax.grad(self._compute_mean, has_aux=True), static_argnums=(2, 3))
        self._step = jax.jit(self._compute_step, static_argnums=(4, 5), donate_argnums=(0, 1))

    # Mini-batches.

    def prepare(self, instance: Tree[int]) -> Ints:
        """Number the nodes of a tree."""
        return list_nodes(instance)

    def merge(self, prepared: Sequence[Ints]) -> Padded:
        """Order the nodes of all trees in levels, from the deepest to the roots, and pad each."""
        forest = merge_trees(prepared, by_depth=True)
        counts = np.array(forest.levels)
        self._grow(counts[::-1])
        widths = np.array(self.widths[::-1])
        counts = np.concatenate([np.zeros((len(widths) - len(counts), 2), np.int64), counts])
        rows = spread(counts.ravel(), widths.ravel())
        labels, trees = np.zeros(widths.sum(), np.int64), np.full(widths.sum(), forest.n_trees)
        labels[rows], trees[rows] = forest.labels.numpy(), forest.trees.numpy()
        words = np.zeros(widths[:, 0].sum(), np.int64)
        words[spread(counts[:, 0], widths[:, 0])] = forest.words.numpy()
        children = np.zeros(2 * widths[:, 1].sum(), np.int64)
        first_rows = np.cumsum([0, 0, *widths.sum(1)])[: len(widths)]  # of the level before
        of_level = rows[forest.children.numpy()] - np.repeat(first_rows, 2 * counts[:, 1])
        children[spread(2 * counts[:, 1], 2 * widths[:, 1])] = of_level
        return Padded(words, labels, trees, children, tuple(map(tuple, widths.tolist())), forest.n_trees)

    def _grow(self, counts: Ints) -> None:
        """Make levels at least this wide."""
        self.widths += [(0, 0)] * (len(counts) - len(self.widths))
        for level, needed in enumerate(counts.tolist()):
            leaves, inner = (max(width, round_up(n)) for width, n in zip(self.widths[level], needed, strict=True))
            self.widths[level] = leaves, inner

    # What runs.

    def losses(self, minibatch: Padded) -> Any:
        """Sum the cross-entropies of the nodes of each tree: (B,)."""
        return jax.block_until_ready(self._losses(self._values, minibatch[:4], *minibatch[4:]))

    def answer(self, minibatch: Padded) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Compute losses, and the gradients of their mean."""
        gradients, losses = self._gradients(self._values, minibatch[:4], *minibatch[4:])
        return np.asarray(losses), {name: np.asarray(gradient) for name, gradient in gradients.items()}

    def train(self, minibatch: Padded) -> None:
        """Take a step of Adam."""
        self._n_steps += 1
        corrections = 1 - BETA_1**self._n_steps, 1 - BETA_2**self._n_steps
        self._values, self._moments = jax.block_until_ready(
            self._step(self._values, self._moments, minibatch[:4], corrections, *minibatch[4:])
        )

    def translate(self, arrays: Arrays) -> dict[str, npt.NDArray[np.floating[Any]]]:
        """Concatenate the matrices of the left and the right child, and transpose all matrices."""
        here = dict(arrays)
        here["gates.bias"] = here.pop("left_gates.bias")
        here["gates.weight"] = np.concatenate([here.pop("left_gates.weight"), here.pop("right_gates.weight")], axis=1)
        return {name: array.T.copy() if name.endswith("weight") else array for name, array in here.items()}

    def copy_parameters(self, state: Arrays) -> None:
        """Copy the `state_dict()` of the same model in autobatch."""
        self._values = {name: np.array(array) for name, array in self.translate(state).items()}
        zeros = [{name: np.zeros_like(value) for name, value in self._values.items()} for _ in range(2)]
        self._moments = zeros[0], zeros[1]

    def use_threads(self, n_threads: int) -> None:
        """Compute with this many threads from now on. XLA reads the number when it starts, so it is restarted."""
        if n_threads == self._n_threads:
            return
        self._n_threads = n_threads
        self._values, self._moments = jax.tree.map(np.array, (self._values, self._moments))
        os.environ["NPROC"] = str(n_threads)
        jax.config.update("jax_platforms", "cpu")
        jax.extend.backend.clear_backends()

    # What is compiled.

    def _compute_losses(self, values: Values, arrays: tuple[Any, ...], widths: Widths, n_trees: int) -> Any:
        self.n_compiled += 1
        words, labels, trees, children = arrays
        scores = hidden(values, words, children, widths) @ values["output.weight"] + values["output.bias"]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)[:, 0]
        return jax.ops.segment_sum(losses, trees, n_trees + 1)[:n_trees]

    def _compute_mean(self, values: Values, arrays: tuple[Any, ...], widths: Widths, n_trees: int) -> Any:
        losses = self._compute_losses(values, arrays, widths, n_trees)
        return losses.mean(), losses

    def _compute_step(
        self,
        values: Values,
        moments: tuple[Values, Values],
        arrays: tuple[Any, ...],
        corrections: tuple[float, float],
        widths: Widths,
        n_trees: int,
    ) -> tuple[Values, tuple[Values, Values]]:
        gradients, _ = jax.grad(self._compute_mean, has_aux=True)(values, arrays, widths, n_trees)
        first = {name: BETA_1 * m + (1 - BETA_1) * gradients[name] for name, m in moments[0].items()}
        second = {name: BETA_2 * v + (1 - BETA_2) * gradients[name] ** 2 for name, v in moments[1].items()}
        values = {
            name: value
            - self._lr * (first[name] / corrections[0]) / (jnp.sqrt(second[name] / corrections[1]) + EPSILON)
            for name, value in values.items()
        }
        return values, (first, second)


def hidden(values: Mapping[str, Any], words: Any, children: Any, widths: Widths) -> Any:
    """Compute the hidden states of all rows, level by level."""
    n_leaves, n_inner = np.array(widths).T
    of_leaves, of_inner = np.cumsum(n_leaves)[:-1], np.cumsum(2 * n_inner)[:-1]
    leaf_h, leaf_c = (jnp.split(state, of_leaves) for state in read(values, words))  # slices have slow gradients
    found = []
    h = c = leaf_h[0]
    for rows, level_h, level_c in zip(jnp.split(children, of_inner), leaf_h, leaf_c, strict=True):
        if len(rows):
            inner_h, inner_c = join(values, h[rows], c[rows])
            level_h, level_c = jnp.concatenate([level_h, inner_h]), jnp.concatenate([level_c, inner_c])
        h, c = level_h, level_c
        found.append(h)
    return jnp.concatenate(found)


def read(values: Mapping[str, Any], words: Any) -> tuple[Any, Any]:
    """Compute a state for each word."""
    z = values["embedding"][words] @ values["leaf_gates.weight"] + values["leaf_gates.bias"]
    i, o, u = jnp.split(z, 3, axis=1)
    c = jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def join(values: Mapping[str, Any], h: Any, c: Any) -> tuple[Any, Any]:
    """Join the states of adjacent pairs of children."""
    dim = h.shape[1]
    i, o, u, f_l, f_r = jnp.split(h.reshape(-1, 2 * dim) @ values["gates.weight"] + values["gates.bias"], 5, axis=1)
    c_l, c_r = jnp.split(c.reshape(-1, 2 * dim), 2, axis=1)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f_l) * c_l + jax.nn.sigmoid(f_r) * c_r
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def spread(counts: Ints, widths: Ints) -> Ints:
    """Return the places of rows that come in runs of `counts`, if each run has room for `widths` rows."""
    shifts = np.cumsum([0, *widths[:-1]]) - np.cumsum([0, *counts[:-1]])
    places: Ints = np.arange(counts.sum()) + np.repeat(shifts, counts)
    return places


def round_up(number: int) -> int:
    """Round up to 4, 5, 6 or 7 times a power of two, or to any number below 8.

    Powers of two alone would have 25% more rows on average, and would not save compilations once all levels are wide.
    """
    unit = 1 << max(0, number.bit_length() - 3)
    return -(-number // unit) * unit
