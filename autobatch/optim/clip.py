"""Gradient clipping: by the common norm of all gradients, or number by number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import RAW, is_number, refusal
from autobatch.devices.late import Late
from autobatch.devices.store import HOST, Store
from autobatch.errors import DataError, NumericError
from autobatch.keywords import refuse_arguments
from autobatch.optim.change import store_of
from autobatch.params.gradients import Gradients
from autobatch.params.parameter import FLOAT32, FLOAT64, FloatArray
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.system.locks import run_lock

if TYPE_CHECKING:
    from autobatch.devices.device import Device
    from autobatch.optim.on_device import DeviceClipping


def clip_by_norm(grads: Mapping[str, Gradient], max_norm: float) -> float | Late:
    """Scale all gradients in place by one factor, so that their common norm is at most `max_norm`.

    Gradients on a device are measured and scaled there. For those that `value_and_grad` returns, the call does not wait
    but returns a `Late` norm, which waits when it is read. If it is not finite, an optimizer step with these gradients
    changes nothing, and the error is raised when the norm is read, or else by the optimizer's next step.

    Args:
        grads: parameter name to gradient, an array of any shape or `Rows`; all on one device.
        max_norm: above 0, in the units of the gradients; infinity measures without scaling.

    Returns:
        The Euclidean norm over all numbers of all gradients, before scaling.

    Raises:
        NumericError: a gradient holds NaN or infinity, or on a device, float64 numbers whose squares overflow; the
            message names it and nothing has changed.
        DataError: `max_norm` is not above 0, a gradient is not a writable array of floats, or devices differ.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> grads = {"weight": np.array([3.0, 0.0]), "bias": np.array([4.0])}
    >>> ab.optim.clip_by_norm(grads, 1.0)
    5.0
    >>> print(grads["weight"], grads["bias"])
    [0.6 0. ] [0.8]
    """
    try:
        if not is_number(max_norm) or not max_norm > 0.0:
            raise refusal("max_norm of clip_by_norm", "a number above 0", max_norm)
        store = _find_store(grads)
        numbers = {name: _numbers(name, grad, store) for name, grad in grads.items()}
    except RAW:
        refuse_arguments(clip_by_norm, (grads, max_norm), {})
        raise
    return _clip_on_host(numbers, max_norm) if store is HOST else _clip_on_device(store, numbers, max_norm, grads)


def clip_by_value(grads: Mapping[str, Gradient], limit: float) -> None:
    """Clip each number of the gradients, in place, to the range from `-limit` to `limit`.

    Gradients on a device are clipped there without waiting, and are not checked for NaN and infinity.

    Args:
        grads: parameter name to gradient, an array of any shape or `Rows`; all on one device.
        limit: above 0, in the units of the gradients.

    Raises:
        NumericError: a gradient on the host holds NaN or infinity; the message names it and nothing has changed.
        DataError: `limit` is not above 0, a gradient is not a writable array of floats, or devices differ.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> grads = {"weight": np.array([3.0, -0.5]), "bias": np.array([-4.0])}
    >>> ab.optim.clip_by_value(grads, 1.0)
    >>> print(grads["weight"], grads["bias"])
    [ 1.  -0.5] [-1.]
    """
    try:
        if not is_number(limit) or not limit > 0.0:
            raise refusal("limit of clip_by_value", "a number above 0", limit)
        store = _find_store(grads)
        numbers = {name: _numbers(name, grad, store) for name, grad in grads.items()}
    except RAW:
        refuse_arguments(clip_by_value, (grads, limit), {})
        raise
    if store is HOST:
        for name, array in numbers.items():
            _check_norm(name, _largest(array))
    for array in numbers.values():
        store.xp.clip(array, -limit, limit, out=array)


def _clip_on_host(numbers: Mapping[str, FloatArray], max_norm: float) -> float:
    norms = {name: _norm(array) for name, array in numbers.items()}
    for name, norm in norms.items():
        _check_norm(name, norm)
    total = math.hypot(*norms.values())  # unlike a sum of squares, does not overflow
    if total > max_norm:
        for array in numbers.values():
            array *= max_norm / total
    return total


_clippings: dict[Store, DeviceClipping] = {}  # one per device


def _clip_on_device(
    store: Store, numbers: Mapping[str, FloatArray], max_norm: float, grads: Mapping[str, Gradient]
) -> float | Late:
    from autobatch.optim.on_device import DeviceClipping

    late = grads if isinstance(grads, Gradients) and grads.finite is not None else None
    with run_lock():
        if store not in _clippings:
            _clippings[store] = DeviceClipping(cast("Device", store))
        norm = LateNorm(list(numbers), _clippings[store].clip(numbers, max_norm, None if late is None else late.finite))
    if late is None:
        return float(norm())
    late.check = norm.check
    return Late(norm)


def _find_store(grads: Mapping[str, Gradient]) -> Store:
    """Return the device memory of all gradients; raise a DataError if they differ."""
    stores = {name: store_of(grad) for name, grad in grads.items()}
    first = next(iter(stores), "")
    for name, store in stores.items():
        if store is not stores[first]:
            raise DataError(
                f"gradients to clip must be on one device, got {first!r} on {stores[first].kind} and {name!r} on "
                f"{store.kind}; pass them as value_and_grad returns them."
            )
    return stores[first] if stores else HOST


def _numbers(name: str, grad: Any, store: Store) -> FloatArray:
    """Return the writable numbers of a gradient; raise a DataError if it is not an array of floats."""
    array: Any = grad.values if isinstance(grad, Rows) else grad
    if store is HOST:
        is_usable = isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.flags.writeable
    else:
        array = store.adopt(array)
        is_usable = array.dtype in (FLOAT32, FLOAT64)
    if not is_usable:
        raise DataError(
            f"cannot clip gradients: {name!r} must be a writable array of floats; pass gradients as value_and_grad "
            "returns them, or copies."
        )
    numbers: FloatArray = array
    return numbers


def _norm(numbers: FloatArray) -> float:
    lines = 1 if numbers.flags.c_contiguous else len(numbers)  # columns of a larger array cannot be flattened in place
    numbers = numbers.reshape(lines, -1)
    with np.errstate(all="ignore"):
        square = float(np.dot(numbers[0], numbers[0]) if lines == 1 else np.einsum("ij,ij->", numbers, numbers))
        if math.isfinite(square):
            return math.sqrt(square)
        largest = _largest(numbers)  # its square overflows, as that of 1e20 does in float32
        if not math.isfinite(largest):
            return largest
        return largest * float(np.linalg.norm(numbers.astype(np.float64) / largest))


def _largest(numbers: FloatArray) -> float:
    """Return the largest magnitude of some numbers; NaN if one is NaN."""
    return max(float(numbers.max(initial=0.0)), -float(numbers.min(initial=0.0)))


class LateNorm:
    """A callable that reads the common norm of gradients on a device.

    Args:
        names: names of the gradients.
        squares: waits for the sums of squares, one per gradient, and returns them.
    """

    def __init__(self, names: Sequence[str], squares: Callable[[], NDArray[Any]]) -> None:
        self._names, self._squares, self._is_read = names, squares, False

    def __call__(self) -> np.float64:
        """Wait for the norm and return it.

        Raises:
            NumericError: a gradient is not finite; the message names it.
        """
        self._is_read = True  # even if the norm raises an error, which is raised once
        norms = np.sqrt(self._squares())
        for name, norm in zip(self._names, norms, strict=True):
            _check_norm(name, norm)
        return np.float64(math.hypot(*norms))

    def check(self) -> None:
        """Raise a NumericError if a gradient is not finite, unless the norm has been read."""
        if not self._is_read:
            self()


def _check_norm(name: str, norm: float) -> None:
    """Raise a NumericError if the norm of a gradient is not finite."""
    if not math.isfinite(norm):
        raise NumericError(
            f"cannot clip gradients: the norm of {name!r} must be finite, got {norm}; skip this step, or lower the "
            "learning rate."
        )
