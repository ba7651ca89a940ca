"""Name a policy, or its costs, in the user's cache: by a digest of the types' outlines, and a version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from autobatch.system.cache import cache_folder, find_entry, keep_entry

__all__ = ["cache_folder", "find_entry", "keep_entry", "sign"]

VERSION = 1  # of what is learned and measured; another one finds no older entries


def sign(outlines: Sequence[str], *more: str | int) -> str:
    """Digest what an entry depends on; the order of the types does not count, nor do the widths of a model.

    >>> sign(["leaf()", "merge(value)"], "reference") == sign(["merge(value)", "leaf()"], "reference")
    True
    """
    content = json.dumps([VERSION, sorted(outlines), *more])
    return hashlib.sha256(content.encode()).hexdigest()[:32]
