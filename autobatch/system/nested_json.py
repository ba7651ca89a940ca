"""Parse and write JSON of any depth; Python's `json` recurses and fails at the stack limit.

Python's `json` parses scalars and strings; open objects and lists are on an explicit stack. The last value of a
repeated key wins, as in `json`.

`to_json` converts results to JSON values, for the responses of servers and the output of commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from autobatch.errors import DataError

_SPACES = re.compile(r"[ \t\n\r]*")
_parse_string = json.JSONDecoder().raw_decode
MOST_SHOWN = 40  # characters of a value in a message


def parse_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse one JSON value.

    Args:
        text: one JSON value, optionally surrounded by spaces.
        parse_constant: as in `json.loads`.

    Raises:
        json.JSONDecodeError: the text is not one JSON value; `pos` is the place.

    >>> parse_json(' {"word": "MAX", "children": [{}, [1.5, null]]} ')
    {'word': 'MAX', 'children': [{}, [1.5, None]]}
    """
    parse_scalar = json.JSONDecoder(parse_constant=parse_constant).raw_decode
    open_values: list[tuple[Any, str]] = []  # a list or an object, and the key of the next value
    position = _skip(text, 0)
    while True:
        opening = text[position : position + 1]
        # At the end of the text, `opening` is empty, and "" is in any string.
        if opening and opening in "[{":
            value: Any = [] if opening == "[" else {}
            position = _skip(text, position + 1)
            if text[position : position + 1] != _END[opening]:
                key, position = _parse_key(text, position) if opening == "{" else ("", position)
                open_values.append((value, key))
                continue
            position = _skip(text, position + 1)
        else:
            value, position = parse_scalar(text, position)
            position = _skip(text, position)
        # Put the value into its holder. If the holder ends here, it is the next value; if a comma follows, the value
        # after it is parsed first. Without an open holder, the value is complete.
        while open_values:
            holder, key = open_values.pop()
            is_list = isinstance(holder, list)
            if is_list:
                holder.append(value)
            else:
                holder[key] = value
            mark = text[position : position + 1]
            if mark == ",":
                position = _skip(text, position + 1)
                key, position = ("", position) if is_list else _parse_key(text, position)
                open_values.append((holder, key))
                break
            if mark != ("]" if is_list else "}"):
                raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
            value, position = holder, _skip(text, position + 1)
        else:
            if position < len(text):
                raise json.JSONDecodeError("Extra data", text, position)
            return value


def dump_json(value: Any) -> str:
    """Write a value that `parse_json` returned, as `json.dumps` does.

    >>> dump_json({"word": "MAX", "children": [{}, [1.5, None]]})
    '{"word": "MAX", "children": [{}, [1.5, null]]}'
    """
    parts = list[str]()
    waiting: list[tuple[Any, bool]] = [(value, False)]  # a stack; the bool marks finished text
    while waiting:
        item, is_text = waiting.pop()
        if is_text or not isinstance(item, dict | list):
            parts.append(item if is_text else json.dumps(item))
            continue
        is_list = isinstance(item, list)
        waiting.append(("]" if is_list else "}", True))
        inner: list[tuple[Any, bool]] = [("[" if is_list else "{", True)]
        for number, key in enumerate(item):
            comma = ", " if number else ""
            inner += (
                [(comma, True), (key, False)]
                if is_list
                else [(f"{comma}{json.dumps(key)}: ", True), (item[key], False)]
            )
        waiting += reversed(inner)
    return "".join(parts)


def show_json(value: Any) -> str:
    """Format the beginning of a JSON value of any depth, for messages."""
    text = dump_json(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


_END = {"[": "]", "{": "}"}


def _parse_key(text: str, position: int) -> tuple[str, int]:
    """Parse a key with its colon; return the key and the start of its value."""
    if text[position : position + 1] != '"':
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, position)
    key, position = _parse_string(text, position)
    position = _skip(text, position)
    if text[position : position + 1] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
    return key, _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    spaces = _SPACES.match(text, position)
    return spaces.end() if spaces else position


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
