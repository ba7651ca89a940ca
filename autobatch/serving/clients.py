"""Limits on HTTP clients: the token that each must send, and a timeout on every wait for one."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from starlette.requests import ClientDisconnect, Request

from autobatch.errors import DataError, ServingError
from autobatch.serving.answers import Refusal, refusal_of, refused

PART_WITHIN = 10.0  # seconds for the next part of a body to arrive
BODY_WITHIN = 60.0  # seconds for a whole body to arrive
SEND_WITHIN = 60.0  # seconds for a client to accept the next part of an answer


async def read_body(request: Request, max_body: int) -> bytes:
    """Read the body of a request.

    Raises:
        Refusal: the body is too large, or arrives too slowly.
    """
    parts, size, loop = list[bytes](), 0, asyncio.get_running_loop()
    last = loop.time() + BODY_WITHIN
    try:
        async with asyncio.timeout_at(min(last, loop.time() + PART_WITHIN)) as limit:
            async for part in request.stream():
                size += len(part)
                if size > max_body:
                    raise Refusal(
                        413, f"the body must have at most {max_body} bytes, got more; send fewer instances at a time."
                    )
                parts.append(part)
                limit.reschedule(min(last, loop.time() + PART_WITHIN))
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive in time; only {size} bytes were received.") from None
    return b"".join(parts)


class Patience:
    """Middleware that drops clients which accept no part of an answer for too long.

    The request of a client that has disconnected is cancelled. A request that the shutdown of the server cancels before
    its answer begins is answered with an error.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = is_answered = False
        answering, has_left, watch = asyncio.current_task(), asyncio.Event(), list[asyncio.Task[None]]()
        assert answering is not None

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            has_left.set()
            if not is_answered:
                answering.cancel()

        async def receive_body() -> Any:
            # Once the body is complete, `watch_client` receives the messages, of which only the disconnection is left.
            if watch:
                await has_left.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                watch.append(asyncio.create_task(watch_client()))
            return message

        async def send_in_time(message: Any) -> None:
            nonlocal has_begun, is_answered
            has_begun = True
            is_answered = message["type"] == "http.response.body" and not message.get("more_body")
            try:
                async with asyncio.timeout(SEND_WITHIN):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        try:
            await self._app(scope, receive_body, send_in_time)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            if has_left.is_set():
                # The cancellation was requested by `watch_client`, and ends here.
                answering.uncancel()
            elif not has_begun:  # the server shuts down
                closed = refused(refusal_of(ServingError("the server was closed before the request was done.")))
                await closed(scope, receive, send)
        finally:
            for task in watch:
                task.cancel()


class Guard:
    """Middleware that rejects requests without the token; health and readiness need none."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))  # the application may be mounted
        if scope["type"] == "http" and path not in ("/healthz", "/readyz"):
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._token):
                missing = refused(Refusal(401, "the token is missing or wrong.", {"WWW-Authenticate": "Bearer"}))
                await missing(scope, receive, send)
                return
        await self._app(scope, receive, send)


def check_token(token: str) -> None:
    """Raise DataError for a token that cannot be sent in a header."""
    if not isinstance(token, str) or not token or not all("!" <= character <= "~" for character in token):
        raise DataError(
            "the token must be one or more visible ASCII characters without blanks; give another one, or None."
        )
