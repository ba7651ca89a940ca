"""Parse JSON of any depth; `json.loads` recurses and fails at Python's stack limit.

Scalars and strings are parsed by Python's `json`; open objects and lists are kept on a stack. The last value of a
repeated key wins, as in `json`.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPACES = re.compile(r"[ \t\n\r]*")
_parse_scalar = json.JSONDecoder().raw_decode


def parse_json(text: str) -> Any:
    """Parse one JSON value.

    Raises:
        json.JSONDecodeError: the text is not one JSON value; `pos` says where.

    >>> parse_json(' {"word": "MAX", "children": [{}, [1.5, null]]} ')
    {'word': 'MAX', 'children': [{}, [1.5, None]]}
    """
    open_values: list[tuple[Any, str]] = []  # a list or an object, and the key of the next value
    position = _skip(text, 0)
    while True:
        opening = text[position : position + 1]
        if opening and opening in "[{":
            value: Any = [] if opening == "[" else {}
            position = _skip(text, position + 1)
            if text[position : position + 1] != _END[opening]:
                key, position = _parse_key(text, position) if opening == "{" else ("", position)
                open_values.append((value, key))
                continue
            position = _skip(text, position + 1)
        else:
            value, position = _parse_scalar(text, position)
            position = _skip(text, position)
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


_END = {"[": "]", "{": "}"}


def _parse_key(text: str, position: int) -> tuple[str, int]:
    """Parse a key with its colon; return the key and the start of its value."""
    if text[position : position + 1] != '"':
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, position)
    key, position = _parse_scalar(text, position)
    position = _skip(text, position)
    if text[position : position + 1] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", text, position)
    return key, _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    spaces = _SPACES.match(text, position)
    return spaces.end() if spaces else position
