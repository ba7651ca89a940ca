"""The log of `autobatch serve`: a line on standard error for each event.

Lines go through `logging`, which stops nothing where they cannot be written, on a disk that is full.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("autobatch.serve")


def begin_log() -> None:
    """Write the log to standard error, with the name that all messages of the command have."""
    if not LOG.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("autobatch: %(message)s"))
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
        LOG.propagate = False
