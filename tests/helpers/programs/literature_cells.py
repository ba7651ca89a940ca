"""The seven published cells, with separate parameters as in their equations, and a function that traces them.

GRU: Cho et al. 2014, with the reset before the product; LSTM: Hochreiter and Schmidhuber 1997, with forget gates;
MV-RNN: Socher et al. 2012; Tree-LSTM: Tai et al. 2015; a tree-GRU runs a GRU per child and takes the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.ir.arguments import Key
from autobatch.ir.program import CellProgram
from autobatch.trace.tracer import Tracer

WIDTH, INSTANCES = 128, 32


class Weights:
    """Parameters by name, created on first use: vectors for names that begin with b, else matrices."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.made: dict[str, ab.Parameter] = {}

    def __getitem__(self, name: str) -> ab.Parameter:
        shape = (self.width,) if name.startswith("b") else (self.width, self.width)
        return self.shaped(name, shape)

    def shaped(self, name: str, shape: tuple[int, ...]) -> ab.Parameter:
        return self.made.setdefault(name, ab.Parameter(np.zeros(shape, np.float32)))


def gru(w: Weights, x: Any, h: Any) -> Any:
    r = ab.sigmoid(w["W_r"] @ x + w["U_r"] @ h + w["b_r"])
    z = ab.sigmoid(w["W_z"] @ x + w["U_z"] @ h + w["b_z"])
    c = ab.tanh(w["W_c"] @ x + w["U_c"] @ (r * h) + w["b_c"])
    return z * h + (1.0 - z) * c


def lstm(w: Weights, x: Any, h: Any, c: Any) -> Any:
    i, f, o = (ab.sigmoid(w[f"W_{k}"] @ x + w[f"U_{k}"] @ h + w[f"b_{k}"]) for k in "ifo")
    u = ab.tanh(w["W_u"] @ x + w["U_u"] @ h + w["b_u"])
    c = i * u + f * c
    return o * ab.tanh(c), c


def mv_rnn(w: Weights, v_l: Any, m_l: Any, v_r: Any, m_r: Any) -> Any:
    width = w.width
    w_v, w_m = w.shaped("W_v", (width, 2 * width)), w.shaped("W_M", (width, 2 * width))
    v = ab.tanh(w["b"] + w_v @ ab.concat((m_l @ v_r, m_r @ v_l)))
    m = w.shaped("B_M", (width, width)) + w_m @ ab.concat((m_l, m_r), axis=0)
    return v, m


def tree_gru_inner(w: Weights, h_l: Any, h_r: Any) -> Any:
    return 0.5 * (_reset_and_mix(w, "l", h_l) + _reset_and_mix(w, "r", h_r))


def tree_gru_leaf(w: Weights, x: Any) -> Any:
    return _reset_and_mix(w, "x", x)


def tree_gru_shared(w: Weights, h_l: Any, h_r: Any) -> Any:
    """Compute a tree-GRU with one set of parameters for both children; not one of the seven."""
    return 0.5 * (_reset_and_mix(w, "", h_l) + _reset_and_mix(w, "", h_r))


def _reset_and_mix(w: Weights, k: str, h: Any) -> Any:
    r = ab.sigmoid(w["U_r" + k] @ h + w["b_r" + k])
    z = ab.sigmoid(w["U_z" + k] @ h + w["b_z" + k])
    c = ab.tanh(w["U_c" + k] @ (r * h) + w["b_c" + k])
    return z * h + (1.0 - z) * c


def tree_lstm_inner(w: Weights, h_l: Any, c_l: Any, h_r: Any, c_r: Any) -> Any:
    def gate(k: str) -> Any:
        return w[f"U_{k}l"] @ h_l + w[f"U_{k}r"] @ h_r + w["b_" + k[0]]

    c = ab.sigmoid(gate("i")) * ab.tanh(gate("u")) + ab.sigmoid(gate("fl")) * c_l + ab.sigmoid(gate("fr")) * c_r
    return ab.sigmoid(gate("o")) * ab.tanh(c), c


def tree_lstm_leaf(w: Weights, x: Any) -> Any:
    i, o, u = (w[f"W_{k}"] @ x + w[f"b_{k}"] for k in "iou")
    c = ab.sigmoid(i) * ab.tanh(u)
    return ab.sigmoid(o) * ab.tanh(c), c


class Published(NamedTuple):
    """A cell, and the copies of the published planner, as designed, at width 128 for 32 instances."""

    body: Callable[..., Any]
    copies: int
    kilobytes: int


SEVEN = {
    "GRU": Published(gru, 2, 112),
    "LSTM": Published(lstm, 1, 128),
    "MV-RNN": Published(mv_rnn, 2, 4128),
    "tree-GRU inner": Published(tree_gru_inner, 2, 128),
    "tree-GRU leaf": Published(tree_gru_leaf, 2, 64),
    "Tree-LSTM inner": Published(tree_lstm_inner, 3, 176),
    "Tree-LSTM leaf": Published(tree_lstm_leaf, 1, 48),
}


def trace_cell(body: Callable[..., Any], width: int = WIDTH) -> CellProgram:
    """Trace a cell; arguments whose names begin with m are matrices, the others vectors."""
    weights = Weights(width)
    names = body.__code__.co_varnames[1 : body.__code__.co_argcount]
    body(weights, *(np.zeros((width, width) if name.startswith("m") else width, np.float32) for name in names))
    keys = {name: Key("value", (width, width) if name.startswith("m") else (width,)) for name in names}
    tracer = Tracer(body.__name__, {id(made): name for name, made in weights.made.items()})
    program, _ = tracer.trace(lambda given: body(weights, **given), keys)
    return program
