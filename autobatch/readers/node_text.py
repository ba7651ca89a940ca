"""The words and labels of trees in brackets, as the Penn Treebank writes them."""

from __future__ import annotations

import re

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_NUMBER = re.compile("0|[1-9][0-9]{0,8}", re.ASCII)
_ESCAPES = {bracket: escape for escape, bracket in BRACKETS.items()}


def to_label(text: str) -> int | str:
    """Parse a label: an int if it has no sign or leading zeros, else the text.

    >>> to_label("3"), to_label("NP"), to_label("03")
    (3, 'NP', '03')
    """
    return int(text) if _NUMBER.fullmatch(text) else text


def escape(word: object) -> str:
    """Escape brackets and slashes of a word, as in the treebank.

    >>> escape("("), escape("comedy/thriller"), unescape("-LRB-")
    ('-LRB-', 'comedy\\\\/thriller', '(')
    """
    text = str(word)
    return _ESCAPES.get(text) or text.replace("/", "\\/").replace("*", "\\*")


def unescape(text: str) -> str:
    """Undo `escape`."""
    return BRACKETS.get(text) or text.replace("\\/", "/").replace("\\*", "*")
