"""Test PyTorch's own table of ops: each op in a cell, with three instances, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helpers.runs.tensors_on_device import TorchDevice
from helpers.runs.ways import each
from list_torch_ops import PAGE, VERSION
from torch_ops.page import list_torch_ops
from torch_ops.running import run
from torch_ops.samples import Case, cases_of, select, table
from torch_ops.verdicts import Outcome, Verdict, judge

RUNS = "auto", "autobatch", "torch"
EVERY = 20  # `make test` runs one of 20 ops
REFUSED = {
    *("argwhere", "nonzero", "unique", "unique_consecutive"),  # the shape depends on the numbers
    *("as_strided", "as_strided_copy", "as_strided_scatter"),  # read memory, which values do not have
    *("sparse.mm", "sparse.sampled_addmm"),  # for sparse data
    "unravel_index",  # for data beyond 32 bits
}
"""The ops with a refused sample."""
N_SAMPLES = 6  # per op, where not all are run
ODD = {
    ("linspace", 61): "no arguments, another dtype",
    ("roll", 16): "a single number",
    ("softmax", 5): "no elements",
    ("imag", 1): "no elements, complex",
    ("nn.functional.batch_norm", 4): "one axis",
    ("nn.functional.batch_norm", 0): "in training, of its own instance",
    ("native_batch_norm", 1): "other shapes without numbers",
    ("narrow", 1): "a start that is a value",
    ("combinations", 0): "masked inside, of a shape that is known",
    ("cov", 2): "numbers that are only checked",
    ("istft", 7): "numbers that are only checked",
    ("__getitem__", 14): "a mask of the data",
    ("bincount", 15): "weights",
    ("masked_select", 3): "a mask that is broadcast",
    ("nn.functional.one_hot", 0): "classes that the data number",
    ("nn.functional.silu.complex", 0): "of a dtype for which torch has no gradient",
    ("repeat_interleave", 4): "counts of the data",
    ("tensor_split", 0): "places of the data",
}

ON_DEVICE = (
    *("add", "where", "matmul", "softmax", "cat", "gather", "nn.functional.layer_norm"),  # ops of ours
    *("cumsum", "sort", "linalg.inv", "nn.functional.conv1d", "nn.functional.dropout", "complex"),  # run by torch
)


def bad(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the wrong and crashed outcomes."""
    return [str(outcome) for outcome in outcomes if outcome.verdict in (Verdict.WRONG, Verdict.CRASH)]


def refused(outcomes: Sequence[Outcome]) -> set[str]:
    return {table()[outcome.op].name for outcome in outcomes if outcome.verdict == Verdict.REFUSED}


@pytest.fixture(scope="module")
def everything() -> list[Outcome]:
    return [*run(select([]), ["auto"], explained=True)]


@pytest.mark.slow
def test_some_ops_give_what_torch_gives() -> None:
    outcomes = [*run(select([])[::EVERY], RUNS, limit=1)]
    assert bad(outcomes) == []
    assert sum(outcome.verdict == Verdict.RIGHT for outcome in outcomes) > len(outcomes) / 2


@each("op, sample", ODD)
def test_odd_samples_give_what_torch_gives(op: str, sample: int) -> None:
    case = next(case for case in cases_of(op) if case.number == sample)
    for runs in ("auto", "torch"):
        outcome = judge(case, runs)
        assert outcome.verdict == Verdict.RIGHT, str(outcome)


@pytest.mark.slow
@each("op", ON_DEVICE)
def test_some_ops_on_a_device_give_what_torch_gives(op: str, tensors: TorchDevice) -> None:
    if tensors.place.type != "cpu":
        pytest.skip("the samples are on the CPU")
    for case in [*cases_of(op)][:2]:
        outcome = judge(case, "auto", backend="auto")
        assert outcome.verdict == Verdict.RIGHT, str(outcome)


@pytest.mark.long
def test_all_samples_of_all_ops_give_what_torch_gives_and_these_are_refused(everything: list[Outcome]) -> None:
    assert bad(everything) == []
    assert refused(everything) == REFUSED


@pytest.mark.slow
def test_the_first_sample_of_each_op_gives_what_torch_gives() -> None:
    assert bad([*run(select([]), ["auto"], limit=1)]) == []


@pytest.mark.long
@pytest.mark.parametrize("runs", ["autobatch", "torch"])
def test_all_ops_give_what_torch_gives_or_a_sentence_where_a_cell_says_what_runs_it(runs: str) -> None:
    assert bad([*run(select([]), [runs], limit=N_SAMPLES)]) == []


@pytest.mark.long
def test_the_first_sample_of_each_op_gives_what_torch_gives_where_cells_are_compiled() -> None:
    assert bad([*run(select([]), ["auto"], limit=1, backend="cpu")]) == []


@pytest.mark.long
def test_the_page_is_what_the_tool_makes(everything: list[Outcome]) -> None:
    assert PAGE.read_text(encoding="utf-8") == list_torch_ops(everything, VERSION), (
        "write it anew: python tools/list_torch_ops.py"
    )


class Sample:
    """A sample without postprocessing of the output."""

    def output_process_fn_grad(self, y: Any) -> Any:
        return y


def case_of(op: Any, *tensors: torch.Tensor) -> Case:
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten((tensors[0], tensors[1:], {}))
    return Case("op", 0, [*tensors], op, Sample(), spec, leaves)


def test_the_verdicts_on_ops_that_are_right_refused_or_skipped() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def no_tensor(x: torch.Tensor) -> int:
        return 3

    def looking(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > -100 else -x

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    found = [judge(case_of(op, x), "auto").verdict for op in (torch.tanh, looking, no_tensor, failing)]
    assert found == [Verdict.RIGHT, Verdict.REFUSED, Verdict.SKIPPED, Verdict.SKIPPED]


def test_a_difference_in_a_value_a_gradient_or_a_kind_is_a_wrong_verdict() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def differing(of_cells: Any) -> Any:
        return lambda x: of_cells(x) if type(x) is not torch.Tensor else x * 2

    ops = (lambda x: x * 3, lambda x: x.detach() * 2, lambda x: torch.cat((x, x)) * 2)
    details = [judge(case_of(differing(op), x), "auto") for op in ops]
    assert [outcome.verdict for outcome in details] == [Verdict.WRONG] * 3
    assert "output 0" in details[0].detail
    assert "gradient" in details[1].detail
    assert "shape" in details[2].detail


def test_an_op_that_ends_its_process_is_a_crash_and_the_next_one_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    info = table()["tanh"]
    monkeypatch.setattr(table()["sin"], "op", lambda *args: os._exit(1))
    assert info.op is torch.tanh
    outcomes = [*run(["sin", "tanh"], ["auto"], limit=1)]
    assert [(outcome.op, outcome.verdict) for outcome in outcomes] == [("sin", Verdict.CRASH), ("tanh", Verdict.RIGHT)]
