"""Import the libraries that parse some formats; they are in the extra `readers`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autobatch.errors import DataError
from autobatch.release import pip_install


def import_parser(module: str, what: str) -> Any:
    """Import a module of the extra `readers`, which parses `what`.

    Raises:
        DataError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"reading {what} needs the package {package}; run {pip_install('readers')}.") from error
