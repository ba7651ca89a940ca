"""The log of `autobatch serve`: a line on standard error per event.

Lines go through `logging`, which raises no error if they cannot be written, such as on a full disk.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("autobatch.serve")


def begin_log() -> None:
    """Write the log to standard error, with the prefix of all messages of the command."""
    if not LOG.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("autobatch: %(message)s"))
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
        LOG.propagate = False
