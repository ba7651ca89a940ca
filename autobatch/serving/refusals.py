"""Error responses to requests: a status and a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autobatch.errors import AutobatchError, DeadlineError, ServingError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("autobatch.serve")


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status.
        sentence: the reason.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


def refusal_of(error: BaseException) -> Refusal:
    """Convert an error of an instance to a refusal, without lines of code.

    Errors from outside autobatch are logged instead of shown.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DeadlineError):
        return Refusal(504, str(error))
    if isinstance(error, ServingError) and error.__cause__ is None:
        return Refusal(503, str(error), {"Retry-After": "1"})
    if isinstance(error, AutobatchError) and not isinstance(error, ServingError):
        return Refusal(422, str(error).replace(error._line, ""))
    raised = error.__cause__ if isinstance(error, ServingError) else error
    LOG.error("the model failed on an instance.", exc_info=error)
    return Refusal(500, f"the model failed on the instance ({type(raised).__name__}).")


def refused(refusal: Refusal) -> Response:
    """Return the response to a refused request."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


async def refuse(request: Request, error: Exception) -> Response:
    """Answer a refused request, as an exception handler of Starlette."""
    assert isinstance(error, Refusal)
    return refused(error)


async def fail(request: Request, error: Exception) -> Response:
    """Answer a request on which the application failed, as an exception handler of Starlette."""
    return refused(Refusal(500, "the server failed; its log says why."))
