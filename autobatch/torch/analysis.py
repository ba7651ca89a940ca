"""The analysis of a function of tensors: its shapes, the parameters it reads, and how to run it on many rows.

The function runs once on tensors without numbers (the "meta" device), so the conclusions never depend on numbers. It
computes one row. There are three ways to compute many rows, which all give each row the result that it has alone:

- `WHOLE`: call the function once on all rows, along a leading axis, if all functions that it calls work element by
  element or along the last axes (`autobatch.torch.per_row`), and it reads no shape.
- `MAPPED`: `torch.func.vmap`, if each op has a rule for it.
- `ONE_BY_ONE`: one row after the other. Hooks of tensors and `autograd.Function`s then see the gradients of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autobatch.errors import GraphError
from autobatch.torch.asking import check_numbers, respell
from autobatch.torch.entering import CURRENT
from autobatch.torch.parameters import TensorParameter, computed_parameters, find_parameter
from autobatch.torch.per_row import Call, is_per_row
from autobatch.torch.structures import on_tensors, tensors_in
from autobatch.trace.hooks import unheard


class Kind(NamedTuple):
    """The shape and dtype of a tensor, and whether it has a gradient."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool

    def rows(self, n: tuple[int, ...], device: str = "meta") -> Tensor:
        """Make a tensor of this kind with leading axes `n`, with arbitrary numbers or, on "meta", without."""
        with unheard(), torch.inference_mode(False), torch.enable_grad():
            x = torch.ones((*n, *self.shape), dtype=self.dtype, device=device)
            if device != "meta" and self.dtype.is_floating_point and len(self.shape) > 1:
                x = x + torch.eye(*self.shape[-2:], dtype=self.dtype, device=device)  # make matrices invertible
            # The copy has a `grad_fn`, by which the analysis recognizes the argument in torch's graph.
            return x.requires_grad_().clone() if self.has_gradient else x


REGISTER_HOOK = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad)
ASSIGN_DATA = vars(torch._C.TensorBase)["data"].__set__
CHANGED = (
    "make a new tensor instead: x = x + 1 for x += 1, torch.cat or torch.where for x[i] = y; or fill x.new_zeros(n) of "
    "an argument x, not torch.zeros(n)."
)
CHECKING = {functional.gaussian_nll_loss, torch.corrcoef, torch.cov, torch.istft}
"""Functions that read numbers only to validate them."""
OTHERWISE_SHAPED = {torch.native_batch_norm, torch._native_batch_norm_legit}
"""Functions whose results have wrong shapes on tensors without numbers, in torch 2.13."""
DROPPING = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
    functional.feature_alpha_dropout, functional.rrelu, functional.scaled_dot_product_attention,
    functional.multi_head_attention_forward, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu,
}  # fmt: skip
"""Functions that draw random numbers in train(), but not in eval()."""
ATTENDING = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}
"""Functions with several kernels, of which only that of plain products can be mapped."""
JOINING = {
    torch.stack, torch.cat, torch.concat, torch.concatenate, torch.hstack, torch.vstack, torch.row_stack, torch.dstack,
    torch.column_stack,
}  # fmt: skip
"""Functions of lists of tensors that must be on one device."""
EMBEDDINGS = functional.embedding, functional.embedding_bag
NO_GRADIENT = "is not differentiable with respect to argument", "does not support automatic differentiation for"
NEVER_MAPPED = {"select_scatter", "prod", "median", "nanmedian", "max.default", "min.default"}
"""Ops, or overloads, whose rule for `vmap` gives wrong gradients, in torch 2.13."""
NEVER_MAPPED_NUMBERS = {"roll", "index_select"}
"""Ops whose rule for `vmap` mistakes the rows for an axis if each row is a single number."""


class Way(StrEnum):
    """A way to compute many rows by a function of one row; see above."""

    WHOLE = "whole"
    MAPPED = "mapped"
    ONE_BY_ONE = "one by one"


class Needs(NamedTuple):
    """The arguments and parameters that gradients of a result flow to.

    Attributes:
        arguments: the places of the arguments.
        parameters: the `id`s of the parameters.
    """

    arguments: frozenset[int]
    parameters: frozenset[int]


class Analysis:
    """The analysis of a function.

    Args:
        function: the function of the tensors of one row.
        kinds: the kinds of its arguments.

    Attributes:
        kinds: the kinds of its arguments; those that no result depends on have no gradient.
        result: the result, with tensors without numbers.
        only_checks: whether the code that runs now reads numbers only to check them.
        reads: the parameters that it reads, by `id`.
        needs: the destinations of the gradients of each result tensor.
        n_draws: the number of its ops that draw random numbers.
        may_draw: whether it calls functions that draw in train().
        is_respelled: whether a function was replaced by an equal one that reads no numbers, see
            `autobatch.torch.asking`.
        attends: whether it computes attention.
        may_share: whether a result may share memory with an argument.
        results_share: whether two results share memory.
        way: the way to compute many rows.
    """

    def __init__(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> None:
        self.reads: dict[int, TensorParameter] = {}
        self.n_draws, self.may_draw = 0, False
        self.is_respelled, self.attends, self._is_never_mapped = False, False, False
        self.only_checks = False
        # Memory and tensors are identified by address. These dicts keep them alive, so that no address is reused.
        self._made: dict[int, torch.UntypedStorage] = {}
        self._varying: dict[int, torch.UntypedStorage] = {}
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}
        functions, kinds = self._run(function, kinds)
        found = tensors_in(self.result)
        storages = [x.untyped_storage()._cdata for x in found if is_plain(x)]
        # Memory that no op has made is that of an argument, a parameter or a constant.
        self.may_share = not self._made.keys() >= set(storages)
        self.results_share = len(set(storages)) < len(storages)
        behind = functions_behind(found)
        self._check_leaves(behind - functions_behind(functions.given))
        self.needs = [self._needs_of(y, functions.given) for y in found]
        self.kinds = [
            kind._replace(has_gradient=kind.has_gradient and x.grad_fn in behind)
            for kind, x in zip(kinds, functions.given, strict=True)
        ]
        if functions.has_hooks or self._is_never_mapped or any(map(_is_of_users, behind)):
            self.way = Way.ONE_BY_ONE
        elif functions.is_per_row and all(map(functions.is_of_row, found)):
            self.way = Way.WHOLE
        else:
            self.way = Way.MAPPED if self._can_be_mapped(function, kinds) else Way.ONE_BY_ONE
        for noted in (self._made, self._varying, self._twins):  # release tensors, which would outlive the module
            noted.clear()

    def _run(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> tuple[_Functions, Sequence[Kind]]:
        """Run the function; make arguments constants if torch has no gradient for them, such as weights of a loss."""
        try:
            return self._run_once(function, kinds), kinds
        except RuntimeError as error:
            if not _lacks_gradient(error):
                raise
            for constant in (_with_constant(kinds, k) for k, kind in enumerate(kinds) if kind.has_gradient):
                try:
                    return self._run_once(function, constant), constant
                except RuntimeError as other:
                    # Torch names one argument at a time: with another message, this one was to blame, but not alone.
                    if _lacks_gradient(other) and str(other) != str(error):
                        return self._run(function, constant)
            raise

    def _run_once(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> _Functions:
        """Run the function without numbers, or with arbitrary ones if an op of torch needs numbers."""
        for device in ("meta", CURRENT.device.type):
            rows = [kind.rows((), device) for kind in kinds]
            self._note_varying(rows)
            functions = _Functions(self, rows)
            try:
                with _entered(torch.enable_grad(), functions, _Ops(self)):
                    self.result = function(*rows)
            except NotImplementedError:
                if device != "meta":
                    raise
                # Arbitrary numbers prove nothing about others, so many rows are computed one by one.
                self._is_never_mapped = True
            else:
                break
        return functions

    @property
    def draws(self) -> bool:
        return self.n_draws > 0

    def _can_be_mapped(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> bool:
        """Return whether `torch.func.vmap` can map the function, with a rule for each op."""
        rows = [kind.rows((2,)) for kind in kinds]
        with unheard(), _entered(torch.enable_grad(), _Functions(self, rows)):
            try:
                mapped(lambda *xs: tuple(tensors_in(function(*xs))), rows)
            except Exception:  # vmap raises many kinds of errors
                return False
        return True

    def note_read(self, x: Tensor) -> None:
        """Note that a parameter is read."""
        if (parameter := find_parameter(x)) is not None:
            self.reads[id(parameter)] = parameter
            self._note_varying([x])

    def varies(self, x: Tensor) -> bool:
        """Return whether a tensor may have other numbers in another run, or in another row."""
        return x.is_meta or not is_plain(x) or x.untyped_storage()._cdata in self._varying

    def values(self, tensors: Iterable[Tensor]) -> None:
        """Return None: a run without numbers has no values of a program."""

    def _note_varying(self, tensors: Iterable[Tensor]) -> None:
        memory = [x.untyped_storage() for x in tensors if is_plain(x)]
        self._varying.update((one._cdata, one) for one in memory)

    def _check_leaves(self, behind: set[Any]) -> None:
        """Raise a GraphError if a result has a gradient for a tensor other than arguments and read parameters."""
        for x in self._leaves(behind):
            parameter = find_parameter(x)
            is_known = x.untyped_storage()._cdata in self._made if parameter is None else id(parameter) in self.reads
            if not is_known:
                check_constant(x)

    def _leaves(self, behind: set[Any]) -> list[Tensor]:
        """Find the tensors that gradients flow to through nodes of torch's graph, including through twins."""
        # A twin is a leaf, but the tensor that it replaces may be computed: then look for the leaves behind that.
        origin = {id(twin): x for x, twin in self._twins.values()}
        read = [origin.get(id(leaf), leaf) for leaf in leaves_behind(behind)]
        ends = [x.is_leaf or find_parameter(x) is not None for x in read]
        within = functions_behind([x for x, is_end in zip(read, ends, strict=True) if not is_end])
        return [*(x for x, is_end in zip(read, ends, strict=True) if is_end), *leaves_behind(within)]

    def _needs_of(self, result: Tensor, given: Sequence[Tensor]) -> Needs:
        """Find where a result's gradients flow, including parameters that are frozen or computed now."""
        behind = functions_behind([result])
        read = map(find_parameter, self._leaves(behind))
        parameters = {id(parameter) for parameter in read if parameter is not None}
        unknown = {key for key, p in self.reads.items() if not (p.trainable and p.tensor.is_leaf)}
        arguments = {k for k, x in enumerate(given) if x.grad_fn in behind}
        return Needs(frozenset(arguments), frozenset(self.reads.keys() & (parameters | unknown)))

    def twin(self, x: Tensor, of_numbers: bool = False) -> Tensor:
        """Return a tensor without numbers to replace one that has them, the same in each call.

        Args:
            x: the tensor.
            of_numbers: whether to replace scalars too; most functions accept these beside tensors without numbers.
        """
        if x.is_meta or not (x.dim() or of_numbers):
            return x
        if id(x) not in self._twins:
            twin = torch.empty_like(x, device="meta")
            self._made.pop(twin.untyped_storage()._cdata, None)  # it replaces a given tensor, which must not change
            self._twins[id(x)] = x, twin.requires_grad_() if x.requires_grad else twin
        return self._twins[id(x)][1]

    def forbid_mapping(self) -> None:
        """Have many rows computed one by one."""
        self._is_never_mapped = True

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Mark the code within the context as reading numbers only to check them.

        Such a function is never mapped, because the first numbers that it checks are not those of all rows.
        """
        before, self.only_checks, self._is_never_mapped = self.only_checks, True, True
        try:
            yield
        finally:
            self.only_checks = before

    def note_op(self, op: Any, args: Any) -> None:
        """Note the needs of a basic op."""
        name = op.overloadpacket.__name__
        self.n_draws += torch.Tag.nondeterministic_seeded in op.tags
        self._is_never_mapped |= not NEVER_MAPPED.isdisjoint((name, f"{name}.{op._overloadname}"))
        self._is_never_mapped |= name in NEVER_MAPPED_NUMBERS and not all(x.dim() for x in tensors_in(args))
        self._is_never_mapped |= name == "embedding" and args[3:4] == (True,)  # vmap counts the ids of all rows

    def check_change(self, op: Any, args: Any) -> None:
        """Raise a GraphError if an op changes memory that the function has not made itself."""
        changed = [x for x, given in zip(args, op._schema.arguments, strict=False) if is_changed(given)]
        if any(x.untyped_storage()._cdata not in self._made for x in tensors_in(changed)):
            raise GraphError(
                f"torch changes a tensor in place that others read ({op.overloadpacket.__name__}), as batch norm does "
                f"in training; {CHANGED}"
            )

    def note_made(self, op: Any, args: Any, result: Any) -> None:
        """Note memory that the function has made, and so may change, and results that vary."""
        if torch.Tag.nondeterministic_seeded in op.tags or any(map(self.varies, tensors_in(args))):
            self._note_varying(tensors_in(result))
        if not any(x.alias_info is not None for x in op._schema.returns):
            memory = [x.untyped_storage() for x in tensors_in(result) if x.layout is torch.strided]
            self._made.update((one._cdata, one) for one in memory)


class _Functions(TorchFunctionMode):
    """The mode that intercepts function calls: it removes the numbers of all tensors, and decides on `WHOLE`.

    Attributes:
        given: the arguments.
        is_per_row: whether all calls so far, with a batch, give each row the result that it has alone.
        has_hooks: whether a hook of a tensor was registered.
    """

    def __init__(self, analysis: Analysis, rows: Sequence[Tensor]) -> None:
        super().__init__()
        self._analysis = analysis
        self.is_per_row, self.has_hooks = True, False
        self.given, self._rows = rows, {id(x): x for x in rows}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in REGISTER_HOOK:
            check_hook(args[0], any(x is args[0] for x in self.given))
            self.has_hooks = True
        check_function(function, args, kwargs)
        tensors = tensors_in((args, kwargs))
        for x in tensors:
            self._analysis.note_read(x)
        rows = [x for x in tensors if id(x) in self._rows]
        if _promotes_otherwise(rows, tensors):
            self._analysis.forbid_mapping()
        if rows and self.is_per_row:
            self.is_per_row = is_per_row(function, Call(args, kwargs, rows))
        spelled = respell(function, args, kwargs, self._analysis)
        self._analysis.is_respelled |= spelled is not None
        function, args, kwargs = spelled or (function, args, kwargs)
        if any(x.is_meta for x in tensors):
            twin = partial(self._analysis.twin, of_numbers=function in JOINING)
            args, kwargs = on_tensors(twin, args), on_tensors(twin, kwargs)
        if function in OTHERWISE_SHAPED and any(x.is_meta for x in tensors):
            # `_run_once` then runs the function with numbers.
            raise NotImplementedError("its shapes are only known with numbers.")
        n_draws = self._analysis.n_draws
        self._analysis.may_draw |= function in DROPPING
        self._analysis.attends |= function in ATTENDING
        with self._analysis.checking() if function in CHECKING else nullcontext():
            try:
                found = function(*args, **kwargs)
            except RuntimeError as error:
                if not (needs_one_device(error) and any(x.is_meta for x in tensors)):
                    raise
                twin = partial(self._analysis.twin, of_numbers=True)
                found = function(*on_tensors(twin, args), **on_tensors(twin, kwargs))
        if rows:
            self._rows.update((id(x), x) for x in tensors_in(found))
        elif self._analysis.n_draws > n_draws:
            self.is_per_row = False  # each row must draw its own numbers
        return found

    def is_of_row(self, x: Tensor) -> bool:
        """Return whether a tensor differs from row to row."""
        return id(x) in self._rows


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that intercepts basic ops: it rejects those that need numbers, or that change given tensors."""

    def __init__(self, analysis: Analysis) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._analysis = analysis

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            if not self._analysis.only_checks:
                check_numbers(op, args, self._analysis)
            elif any(x.is_meta for x in tensors_in((args, kwargs))):
                raise NotImplementedError("the checked tensors have no numbers.")
            self._analysis.check_change(op, args)
            self._analysis.note_op(op, args)
            result = op(*args, **(kwargs or {}))
            self._analysis.note_made(op, (args, kwargs), result)
        return result


def _promotes_otherwise(rows: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """Return whether a function of `tensors` may compute in another dtype when some of them become batches.

    In torch's promotion, a tensor without axes counts less than one of the same category with axes, such as a batch.
    """
    if not any(not x.dim() for x in rows) or (len(rows) == len(tensors) and not any(x.dim() for x in rows)):
        return False
    dtypes = {x.dtype.to_real() for x in tensors} - {torch.bool}
    return len({dtype for dtype in dtypes if dtype.is_floating_point} or dtypes) > 1


def is_changed(argument: Any) -> bool:
    """Return whether an op changes an argument in place."""
    return argument.alias_info is not None and argument.alias_info.is_write


def needs_one_device(error: RuntimeError) -> bool:
    """Return whether an error is that of tensors on two devices, such as scalars with numbers and others without."""
    return type(error) is RuntimeError and "device" in str(error)


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor has plain memory: it is dense, and not a wrapper of `torch.func`."""
    return x.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def mapped(function: Callable[..., Any], rows: Sequence[Tensor]) -> Any:
    """Apply `torch.func.vmap` of a function to rows; RuntimeError if it has no rule for an op."""
    with _without_fallback():
        return torch.func.vmap(function, randomness="different")(*rows)


@contextmanager
def _without_fallback() -> Iterator[None]:
    """Make `vmap` raise an error, within the context, for ops that it has no rule for."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _lacks_gradient(error: Exception) -> bool:
    return any(text in str(error) for text in NO_GRADIENT)


def _with_constant(kinds: Sequence[Kind], constant: int) -> list[Kind]:
    return [kind._replace(has_gradient=kind.has_gradient and k != constant) for k, kind in enumerate(kinds)]


class Refused(GraphError):
    """The error for code that neither autobatch nor torch can run on batches."""


def check_hook(x: Tensor, is_given: bool) -> None:
    """Check that a hook is not on an argument or on a parameter, which others may read too.

    Raises:
        GraphError: it is on one of these.
    """
    if is_given or find_parameter(x) is not None:
        raise Refused(
            "a hook is registered on an argument of the cell, or on a parameter, but would see only the part of the "
            "gradient from one call; register it outside the cell, on the tensor itself."
        )


def check_constant(x: Tensor) -> None:
    """Check that a constant of a cell requires no gradient.

    Raises:
        GraphError: it requires one.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise Refused(
            f"the result of a cell depends on a tensor of shape {tuple(x.shape)} that requires a gradient, but is "
            f"neither an argument nor a parameter that the cell reads; make it an nn.Parameter of the module, read it "
            f"in the cell, give it to the cell, or detach() it."
        )


def check_function(function: Any, args: Any, kwargs: Any) -> None:
    """Check that a function of torch is meaningful for one row of a batch, or for a value.

    Raises:
        GraphError: it is not.
    """
    if function is functional.batch_norm:
        _check_batch_norm(*args, **kwargs)
    if function is functional.instance_norm:
        _check_instance_norm(*args, **kwargs)
    if function in (torch.batch_norm, torch.instance_norm):  # their inner functions take the weights first
        check = _check_batch_norm if function is torch.batch_norm else _check_instance_norm
        check(args[0], args[3], args[4], args[1], args[2], *args[5:])
    if function in EMBEDDINGS and (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
        raise Refused(
            f"torch's {function.__name__} with max_norm= changes its weight at every call, but calls in a batch have "
            f"no order; leave max_norm out, or scale the weight between mini-batches."
        )
    if function == ASSIGN_DATA:
        raise Refused(
            "the data of a tensor are assigned while instances are recorded or a cell is traced, which a program "
            "cannot express; make a new tensor instead."
        )
    if _is_strided(function):
        raise Refused("torch's as_strided reads the memory of a tensor, but values have none; use view or narrow.")


def is_checked(function: Any) -> bool:
    """Return whether `check_function` may reject this function."""
    norms = functional.batch_norm, functional.instance_norm, torch.batch_norm, torch.instance_norm
    return function in norms or function == ASSIGN_DATA or _is_strided(function)


def _is_strided(function: Any) -> bool:
    return getattr(function, "__name__", "").startswith("as_strided")


def _check_batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *rest: Any,
    **others: Any,
) -> None:
    """Raise a GraphError for batch norm that changes the statistics of a module; the arguments are torch's."""
    if training and isinstance(running_mean, Tensor) and find_parameter(running_mean) is not None:
        raise Refused(
            "batch norm in training depends on the other rows of its batch, but autobatch chooses the batches; use "
            "LayerNorm, or call eval() on the module."
        )


def _check_instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    *rest: Any,
    **others: Any,
) -> None:
    """Raise a GraphError for instance norm that updates a module's statistics; the arguments are torch's."""
    if use_input_stats and isinstance(running_mean, Tensor) and find_parameter(running_mean) is not None:
        raise Refused(
            "instance norm that tracks statistics changes them in training at every call, but calls in a batch have no "
            "order; use track_running_stats=False, or call eval() on the module."
        )


def leaves_behind(functions: Iterable[Any]) -> list[Tensor]:
    """Return the leaf tensors of some nodes of torch's graph."""
    found = (getattr(node, "variable", None) for node in functions)
    return [x for x in found if x is not None]


def has_functions_of_users(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors are computed from values and parameters by a user's `autograd.Function`."""
    return any(map(_is_of_users, functions_behind(tensors, computed_parameters())))


def _is_of_users(node: Any) -> bool:
    is_own = isinstance(node, torch.autograd.function.BackwardCFunction)
    return is_own and not isinstance(node, Linked._backward_cls)


def functions_behind(tensors: Sequence[Tensor], until: Set[Any] = frozenset()) -> set[Any]:
    """Return the nodes of torch's graph that compute tensors, without going beyond the nodes in `until`."""
    stack, seen = [x.grad_fn for x in tensors], set[Any]()
    while stack:
        node: Any = stack.pop()
        if node is not None and node not in seen and node not in until:
            seen.add(node)
            stack += [before for before, _ in node.next_functions]
    return seen


class Linked(torch.autograd.Function):
    """The node in torch's graph of a tensor that we have made, connected to those that it is computed from."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], Tensor], *tensors: Tensor) -> Tensor:
        """Return the tensor."""
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Raise a GraphError, because the program differentiates such tensors."""
        raise GraphError("a cell differentiates a tensor that it computes, which only torch can do.")


def link(made: Tensor, *tensors: Tensor) -> Tensor:
    """Connect a tensor that we have made to those that it is computed from, in torch's graph."""
    # The lambda hides `made` from torch: a tensor that is an argument too would be returned as a view of it.
    linked: Tensor = Linked.apply(lambda: made, *tensors)  # type: ignore[no-untyped-call]
    return linked


@contextmanager
def _entered(*modes: Any) -> Iterator[None]:
    """Run torch, within the context, in these modes and otherwise with its defaults."""
    uncast = torch.autocast(CURRENT.device.type, enabled=False)
    plain = torch.inference_mode(False), uncast, torch.random.fork_rng(devices=())
    with ExitStack() as stack:
        with unheard():
            for mode in (*plain, *modes):
                stack.enter_context(mode)
        yield
