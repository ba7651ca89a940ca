"""What this release is called: the name it is installed under, its version, and the command that adds an extra."""

from __future__ import annotations

NAME = "autobatch-nn"  # as in pyproject.toml; on PyPI `autobatch` is another project
VERSION = "0.2.0"


def pip_install(*extras: str) -> str:
    """Write the command that installs what extras bring.

    >>> pip_install("torch", "plot")
    "pip install 'autobatch-nn[torch,plot]'"
    """
    return f"pip install '{NAME}[{','.join(extras)}]'"
