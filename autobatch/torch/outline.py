"""What a function of tensors does, by the definition of what it calls: shapes, what it reads, how many rows may run it.

The function runs once on tensors without numbers (the "meta" device), so nothing is concluded from numbers. It computes
for one row, and there are three ways to compute many rows, each of which gives every row what it has alone:

- `WHOLE`: the function is given all rows at once, along a leading axis, if all that it calls computes element by
  element, or along the last axes (`autobatch.torch.per_row`), and it asks for no shape.
- `MAPPED`: `torch.func.vmap`, if each op has a rule for it.
- `ONE_BY_ONE`: one row after the other. Hooks of tensors and `autograd.Function`s see the gradients of one row there.
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
        """A tensor of this kind with more axes in front, without numbers, or (device "cpu") with some of no meaning."""
        with unheard(), torch.inference_mode(False), torch.enable_grad():
            x = torch.ones((*n, *self.shape), dtype=self.dtype, device=device)
            if device == "cpu" and self.dtype.is_floating_point and len(self.shape) > 1:
                x = x + torch.eye(*self.shape[-2:], dtype=self.dtype)  # a matrix that has an inverse
            return x.requires_grad_().clone() if self.has_gradient else x


REGISTER_HOOK = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad)
ASSIGN_DATA = vars(torch._C.TensorBase)["data"].__set__
CHANGED = (
    "make a new tensor instead: x = x + 1 for x += 1, torch.cat or torch.where for x[i] = y; or fill x.new_zeros(n) of "
    "an argument x, not torch.zeros(n)."
)
CHECKING = {functional.gaussian_nll_loss, torch.corrcoef, torch.cov, torch.istft}
"""Functions that ask for numbers only to refuse them."""
OTHERWISE_SHAPED = {torch.native_batch_norm, torch._native_batch_norm_legit}
"""Functions whose results have other shapes without numbers, in torch 2.13."""
DROPPING = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
    functional.feature_alpha_dropout, functional.rrelu, functional.scaled_dot_product_attention,
    functional.multi_head_attention_forward, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu,
}  # fmt: skip
"""Functions that draw random numbers in train(), and none in eval()."""
ATTENDING = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}
"""Functions that have several kernels, of which that of plain products alone can be mapped."""
JOINING = {
    torch.stack, torch.cat, torch.concat, torch.concatenate, torch.hstack, torch.vstack, torch.row_stack, torch.dstack,
    torch.column_stack,
}  # fmt: skip
"""Functions of lists of tensors, all of which must be on one device."""
EMBEDDINGS = functional.embedding, functional.embedding_bag
NO_GRADIENT = "is not differentiable with respect to argument", "does not support automatic differentiation for"
NEVER_MAPPED = {"select_scatter", "prod", "median", "nanmedian", "max.default", "min.default"}
"""Ops, or overloads, whose rule for `vmap` gives other gradients than the op itself, in torch 2.13."""
NEVER_MAPPED_NUMBERS = {"roll", "index_select"}
"""Ops whose rule takes the rows for an axis where what a row has is a single number."""


class Way(StrEnum):
    """How a function of one row computes many; see above."""

    WHOLE = "whole"
    MAPPED = "mapped"
    ONE_BY_ONE = "one by one"


class Needs(NamedTuple):
    """The arguments and parameters that gradients of a result flow to.

    Attributes:
        arguments: their places; parameters: their `id`s.
    """

    arguments: frozenset[int]
    parameters: frozenset[int]


class Outline:
    """What a function does.

    Attributes:
        kinds: of its arguments; those that no result is computed from have no gradient.
        result: what it returns, with tensors that have no numbers.
        only_checks: whether what runs asks for numbers to check them, and for nothing else.
        reads: the parameters that it reads, by `id`.
        needs: where the gradients of each result tensor flow.
        n_draws: how many of its ops draw random numbers; may_draw: whether it calls functions that do so in train().
        is_respelled: whether it calls a function that computes the same without numbers, see `autobatch.torch.asking`.
        attends: whether it computes attention.
        may_share: whether a result may share memory with an argument; results_share: whether two results do so with
            each other.
        way: how it computes many rows.
    """

    def __init__(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> None:
        self.reads: dict[int, TensorParameter] = {}
        self.n_draws, self.may_draw = 0, False
        self.is_respelled, self.attends, self._is_never_mapped = False, False, False
        self.only_checks = False
        self._made: dict[int, torch.UntypedStorage] = {}
        self._varying: dict[int, torch.UntypedStorage] = {}
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}
        functions, kinds = self._run(function, kinds)
        found = tensors_in(self.result)
        storages = [x.untyped_storage()._cdata for x in found if is_plain(x)]
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
        for noted in (self._made, self._varying, self._twins):  # tensors, which would outlive the module
            noted.clear()

    def _run(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> tuple[_Functions, Sequence[Kind]]:
        """Run the function; arguments for which torch has no gradient, such as weights of a loss, are constants."""
        try:
            return self._run_once(function, kinds), kinds
        except RuntimeError as error:
            if not _lacks_gradient(error):
                raise
            for constant in (_with_constant(kinds, k) for k, kind in enumerate(kinds) if kind.has_gradient):
                try:
                    return self._run_once(function, constant), constant
                except RuntimeError as other:
                    if _lacks_gradient(other) and str(other) != str(error):
                        return self._run(function, constant)
            raise

    def _run_once(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> _Functions:
        """Run the function without numbers, or with some where an op of torch must have numbers."""
        for device in ("meta", "cpu"):
            rows = [kind.rows((), device) for kind in kinds]
            self._note_varying(rows)
            functions = _Functions(self, rows)
            try:
                with _entered(torch.enable_grad(), functions, _Ops(self)):
                    self.result = function(*rows)
            except NotImplementedError:
                if device == "cpu":
                    raise
                self._is_never_mapped = True
            else:
                break
        return functions

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return self.n_draws > 0

    def _can_be_mapped(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> bool:
        """Whether `torch.func.vmap` takes the function, with a rule for each op."""
        rows = [kind.rows((2,)) for kind in kinds]
        with unheard(), _entered(torch.enable_grad(), _Functions(self, rows)):
            try:
                mapped(lambda *xs: tuple(tensors_in(function(*xs))), rows)
            except Exception:  # what vmap lacks, it says in many ways
                return False
        return True

    def note_read(self, x: Tensor) -> None:
        """Take note of a parameter."""
        if (parameter := find_parameter(x)) is not None:
            self.reads[id(parameter)] = parameter
            self._note_varying([x])

    def varies(self, x: Tensor) -> bool:
        """Whether a tensor may have other numbers in another run, or in another row."""
        return x.is_meta or not is_plain(x) or x.untyped_storage()._cdata in self._varying

    def values(self, tensors: Iterable[Tensor]) -> None:
        """Nothing: what runs without numbers has no place in a program."""

    def _note_varying(self, tensors: Iterable[Tensor]) -> None:
        memory = [x.untyped_storage() for x in tensors if is_plain(x)]
        self._varying.update((one._cdata, one) for one in memory)

    def _check_leaves(self, behind: set[Any]) -> None:
        """Refuse results that are differentiated by what is neither an argument, nor a parameter that is read."""
        for x in self._leaves(behind):
            parameter = find_parameter(x)
            is_known = x.untyped_storage()._cdata in self._made if parameter is None else id(parameter) in self.reads
            if not is_known:
                check_constant(x)

    def _leaves(self, behind: set[Any]) -> list[Tensor]:
        """Find the tensors that gradients flow to through nodes of torch's graph, including through twins."""
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
        """A tensor without numbers in the place of one that has them, the same in each call.

        Args:
            of_numbers: also of a tensor without axes, which most functions take beside tensors without numbers.
        """
        if x.is_meta or not (x.dim() or of_numbers):
            return x
        if id(x) not in self._twins:
            twin = torch.empty_like(x, device="meta")
            self._made.pop(twin.untyped_storage()._cdata, None)  # the earlier tensor in that memory must not be changed
            self._twins[id(x)] = x, twin.requires_grad_() if x.requires_grad else twin
        return self._twins[id(x)][1]

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Within the context, what runs asks for numbers to check them; the first that do are not those of all rows."""
        before, self.only_checks, self._is_never_mapped = self.only_checks, True, True
        try:
            yield
        finally:
            self.only_checks = before

    def note_op(self, op: Any, args: Any) -> None:
        """Take note of what a basic op needs."""
        name = op.overloadpacket.__name__
        self.n_draws += torch.Tag.nondeterministic_seeded in op.tags
        self._is_never_mapped |= not NEVER_MAPPED.isdisjoint((name, f"{name}.{op._overloadname}"))
        self._is_never_mapped |= name in NEVER_MAPPED_NUMBERS and not all(x.dim() for x in tensors_in(args))
        self._is_never_mapped |= name == "embedding" and args[3:4] == (True,)  # vmap counts the ids of all rows

    def check_change(self, op: Any, args: Any) -> None:
        """Refuse an op that changes what was there before."""
        changed = [x for x, given in zip(args, op._schema.arguments, strict=False) if is_changed(given)]
        if any(x.untyped_storage()._cdata not in self._made for x in tensors_in(changed)):
            raise GraphError(
                f"torch changes in place what others read ({op.overloadpacket.__name__}), as batch norm does in "
                f"training; {CHANGED}"
            )

    def note_made(self, op: Any, args: Any, result: Any) -> None:
        """Take note of memory that the function has made, and may change, and of what depends on numbers that vary."""
        if torch.Tag.nondeterministic_seeded in op.tags or any(map(self.varies, tensors_in(args))):
            self._note_varying(tensors_in(result))
        if not any(x.alias_info is not None for x in op._schema.returns):
            memory = [x.untyped_storage() for x in tensors_in(result) if x.layout is torch.strided]
            self._made.update((one._cdata, one) for one in memory)


class _Functions(TorchFunctionMode):
    """Meets what the function calls: takes the numbers from all tensors, and decides whether it may be given all rows.

    Attributes:
        given: the arguments.
        is_per_row: whether all calls so far give each row of a batch what they give the row alone.
        has_hooks: whether a hook of a tensor was registered.
    """

    def __init__(self, outline: Outline, rows: Sequence[Tensor]) -> None:
        super().__init__()
        self._outline = outline
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
            self._outline.note_read(x)
        rows = [x for x in tensors if id(x) in self._rows]
        if rows and self.is_per_row:
            self.is_per_row = is_per_row(function, Call(args, kwargs, rows))
        spelled = respell(function, args, kwargs, self._outline)
        self._outline.is_respelled |= spelled is not None
        function, args, kwargs = spelled or (function, args, kwargs)
        if any(x.is_meta for x in tensors):
            twin = partial(self._outline.twin, of_numbers=function in JOINING)
            args, kwargs = on_tensors(twin, args), on_tensors(twin, kwargs)
        if function in OTHERWISE_SHAPED and any(x.is_meta for x in tensors):
            raise NotImplementedError("its shapes are known with numbers only.")
        n_draws = self._outline.n_draws
        self._outline.may_draw |= function in DROPPING
        self._outline.attends |= function in ATTENDING
        with self._outline.checking() if function in CHECKING else nullcontext():
            found = function(*args, **kwargs)
        if rows:
            self._rows.update((id(x), x) for x in tensors_in(found))
        elif self._outline.n_draws > n_draws:
            self.is_per_row = False  # rows do not share what they draw
        return found

    def is_of_row(self, x: Tensor) -> bool:
        """Whether a tensor differs from row to row."""
        return id(x) in self._rows


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Meets the basic ops: refuses those that need numbers, and those that change what was there before."""

    def __init__(self, outline: Outline) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outline = outline

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unheard():
            if not self._outline.only_checks:
                check_numbers(op, args, self._outline)
            elif any(x.is_meta for x in tensors_in((args, kwargs))):
                raise NotImplementedError("what is checked has no numbers.")
            self._outline.check_change(op, args)
            self._outline.note_op(op, args)
            result = op(*args, **(kwargs or {}))
            self._outline.note_made(op, (args, kwargs), result)
        return result


def is_changed(argument: Any) -> bool:
    """Whether an op changes an argument in place."""
    return argument.alias_info is not None and argument.alias_info.is_write


def is_plain(x: Tensor) -> bool:
    """Whether a tensor has memory of its own."""
    return x.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def mapped(function: Callable[..., Any], rows: Sequence[Tensor]) -> Any:
    """`torch.func.vmap` of a function, applied; RuntimeError where it has no rule for an op."""
    with _without_fallback():
        return torch.func.vmap(function, randomness="different")(*rows)


@contextmanager
def _without_fallback() -> Iterator[None]:
    """Within the context, `vmap` refuses ops that it has no rule for."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def _lacks_gradient(error: Exception) -> bool:
    """Whether torch refuses a function because it has no gradient for it."""
    return any(text in str(error) for text in NO_GRADIENT)


def _with_constant(kinds: Sequence[Kind], constant: int) -> list[Kind]:
    return [kind._replace(has_gradient=kind.has_gradient and k != constant) for k, kind in enumerate(kinds)]


class Refused(GraphError):
    """Neither autobatch nor torch can run it on batches."""


def check_hook(x: Tensor, is_given: bool) -> None:
    """Refuse a hook of an argument or of a parameter, which others may read, too.

    Raises:
        GraphError: it is one of these.
    """
    if is_given or find_parameter(x) is not None:
        raise Refused(
            "a hook is registered on an argument of the cell, or on a parameter, but would see only that part of the "
            "gradient that comes through one call; register it outside of the cell, on the tensor itself."
        )


def check_constant(x: Tensor) -> None:
    """Refuse a constant of a cell that asks for a gradient.

    Raises:
        GraphError: it does.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise Refused(
            f"the result of a cell depends on a tensor of shape {tuple(x.shape)} that asks for a gradient, and is "
            f"neither an argument nor a parameter that the cell reads; make it an nn.Parameter of the module, read it "
            f"in the cell, give it to the cell, or detach() it."
        )


def check_function(function: Any, args: Any, kwargs: Any) -> None:
    """Refuse a function of torch that means nothing for a row of a batch, or a value.

    Raises:
        GraphError: it is one.
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
            f"torch's {function.__name__} with max_norm= changes its weight at every call, and calls in a batch have "
            f"no order; leave max_norm out, or scale the weight between mini-batches."
        )
    if function == ASSIGN_DATA:
        raise Refused(
            "the data of a tensor are assigned while instances are recorded or a cell is traced, which has no place in "
            "a program; make a new tensor instead."
        )
    if _is_strided(function):
        raise Refused("torch's as_strided reads the memory of a tensor, which values do not have; use view or narrow.")


def is_checked(function: Any) -> bool:
    """Whether `check_function` may refuse this function."""
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
    """Refuse batch norm that changes the statistics of a module; the arguments are torch's."""
    if training and isinstance(running_mean, Tensor) and find_parameter(running_mean) is not None:
        raise Refused(
            "batch norm in training depends on what else is in its batch, and the batches are not yours here; use "
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
    """Refuse instance norm that updates a module's statistics; arguments as in torch."""
    if use_input_stats and isinstance(running_mean, Tensor) and find_parameter(running_mean) is not None:
        raise Refused(
            "instance norm that tracks statistics changes them in training at every call, and calls in a batch have no "
            "order; use track_running_stats=False, or call eval() on the module."
        )


def leaves_behind(functions: Iterable[Any]) -> list[Tensor]:
    """The tensors that ask for gradients among the nodes of a graph of torch."""
    found = (getattr(node, "variable", None) for node in functions)
    return [x for x in found if x is not None]


def has_functions_of_users(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are computed from values and parameters by an `autograd.Function` with a custom backward."""
    return any(map(_is_of_users, functions_behind(tensors, computed_parameters())))


def _is_of_users(node: Any) -> bool:
    is_own = isinstance(node, torch.autograd.function.BackwardCFunction)
    return is_own and not isinstance(node, Linked._backward_cls)


def functions_behind(tensors: Sequence[Tensor], until: Set[Any] = frozenset()) -> set[Any]:
    """Return the torch graph nodes that compute tensors, stopping at some of them."""
    stack, seen = [x.grad_fn for x in tensors], set[Any]()
    while stack:
        node: Any = stack.pop()
        if node is not None and node not in seen and node not in until:
            seen.add(node)
            stack += [before for before, _ in node.next_functions]
    return seen


class Linked(torch.autograd.Function):
    """Gives a tensor that we have made a place in torch's graph: behind those that it is computed from."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], Tensor], *tensors: Tensor) -> Tensor:
        """Give the tensor."""
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Refuse: what has been made is differentiated in the program."""
        raise GraphError("a cell differentiates what it computes, which only torch can do.")


def link(made: Tensor, *tensors: Tensor) -> Tensor:
    """A tensor that we have made, behind others in torch's graph."""
    linked: Tensor = Linked.apply(lambda: made, *tensors)  # type: ignore[no-untyped-call]
    return linked


@contextmanager
def _entered(*modes: Any) -> Iterator[None]:
    """Within the context, torch runs in these modes, and else with its defaults."""
    plain = torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=())
    with ExitStack() as stack:
        with unheard():
            for mode in (*plain, *modes):
                stack.enter_context(mode)
        yield
