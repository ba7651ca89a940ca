"""The distribution name and version of this release, and the command that installs its extras."""

from __future__ import annotations

NAME = "autobatch-nn"  # as in pyproject.toml; on PyPI `autobatch` is another project
VERSION = "0.3.0"


def pip_install(*extras: str) -> str:
    """Return the command that installs extras.

    >>> pip_install("torch", "plot")
    "pip install 'autobatch-nn[torch,plot]'"
    """
    return f"pip install '{NAME}[{','.join(extras)}]'"
