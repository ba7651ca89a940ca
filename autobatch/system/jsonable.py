"""Convert results to JSON values, for responses of servers and output of commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from autobatch.errors import DataError


def to_json(x: Any) -> Any:
    """Convert a result to JSON values: arrays and tensors to lists, dataclasses to objects, NaN and infinity to null.

    Raises:
        DataError: a value has no JSON form.
    """
    if is_dataclass(x) and not isinstance(x, type):
        return {field.name: to_json(getattr(x, field.name)) for field in fields(x)}
    if isinstance(x, Mapping):
        return {str(key): to_json(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_json(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "detach"):
        return to_json(x.tolist())
    if isinstance(x, float) and not np.isfinite(x):
        return None
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise DataError(
        f"results must consist of JSON values, arrays and dataclasses, got {x!r} ({type(x).__name__}); when serving, "
        f"convert them with write= of ab.serving.app."
    )
