"""How reports appear in notebooks."""

from __future__ import annotations

from html import escape


class AsText:
    """What prints as text, and in a notebook appears as the same text."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
