"""Run a test in many ways within one case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each(names: str, ways: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test in each way, one after the other, within one case; a note on the error names the way that fails.

    It is used like `pytest.mark.parametrize`, but makes no cases: use that where a way takes long, or needs its own
    fixtures.

    Args:
        names: the names of the test's arguments that a way provides, separated by commas.
        ways: a value each, or as many values as there are names.
    """
    keys, all_ways = names.split(", "), list(ways)
    assert not any(hasattr(way, "marks") for way in all_ways), "a way must not have marks; use pytest.mark.parametrize"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for number, way in enumerate(all_ways):
                given = dict(zip(keys, way if len(keys) > 1 else (way,), strict=True))
                try:
                    test(*args, **fixtures, **given)
                except Exception as error:
                    told = ", ".join(f"{key}={value}" for key, value in given.items())
                    error.add_note(f"in way {number} of {len(all_ways)}: {told}")
                    raise

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate
