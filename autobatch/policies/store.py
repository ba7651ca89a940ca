"""Make the cache key of a policy or its costs: a digest of the types' outlines, and a version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from autobatch.system.cache import cache_folder, find_entry, keep_entry

__all__ = ["cache_folder", "find_entry", "keep_entry", "sign"]

VERSION = 1  # of cached content; entries of other versions are not found


def sign(outlines: Sequence[str], *more: str | int) -> str:
    """Digest what an entry depends on; the order of types and the widths of a model do not matter.

    >>> sign(["leaf()", "merge(value)"], "reference") == sign(["merge(value)", "leaf()"], "reference")
    True
    """
    content = json.dumps([VERSION, sorted(outlines), *more])
    return hashlib.sha256(content.encode()).hexdigest()[:32]
