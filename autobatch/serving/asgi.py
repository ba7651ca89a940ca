"""The ASGI application of a server: predictions, health, metrics, a schema and a live page, over HTTP.

    app = ab.serving.app(server)      runs under uvicorn; or in your own FastAPI, app.mount("/model", ...)

Starlette reads and writes HTTP, prometheus-client counts; both come with the extra `serve`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, is_dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from autobatch.errors import AutobatchError, BackendError, DataError, DeadlineError, ServingError
from autobatch.keywords import checked
from autobatch.release import pip_install
from autobatch.serving.counts import summarize
from autobatch.serving.server import Server
from autobatch.serving.workers import EVERY, SEVERAL, Workers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("autobatch.serve")

NDJSON = "application/x-ndjson"
MOST_BYTES = 1 << 20
MOST_INSTANCES = 1024
MOST_VISITS = 100  # of a round, on the live page
ANYTHING: Mapping[str, Any] = {"description": "Any JSON value."}


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP; sentence: what is wrong; headers: of the answer.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


@checked()
def app(
    server: Server,
    *,
    read: Callable[[Any], Any] = lambda x: x,
    given: Callable[[Any], Any] = lambda x: x,
    write: Callable[[Any, Any], Any] = lambda instance, result: result,
    schema: Mapping[str, Any] = ANYTHING,
    title: str = "autobatch",
    token: str | None = None,
    max_body: int = MOST_BYTES,
    max_instances: int = MOST_INSTANCES,
    deadline: float | None = None,
    warm_up: Callable[[], object] = lambda: None,
) -> Starlette:
    """Make the ASGI application of a server, which closes the server when it ends.

    Args:
        server: answers the requests.
        read: makes an instance of what JSON gives; a `DataError` says what is wrong with it.
        given: makes of an instance what the function is given.
        write: makes of an instance and its result what JSON can hold; arrays, dataclasses and tuples may be in it.
        schema: the JSON schema of what `read` takes, for `/openapi.json`.
        title: the name of the model.
        token: what a client has to show as `Authorization: Bearer ...`; None where none is asked for.
        max_body: the most bytes of a request.
        max_instances: the most instances in one request.
        deadline: seconds after which a request is given up.
        warm_up: is called before `/readyz` says that the server is ready.

    Raises:
        BackendError: starlette or prometheus-client is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        from autobatch.serving.metrics import Metrics
    except ImportError as error:
        raise BackendError(f"serving over HTTP: {error.name} is not installed; {pip_install('serve')}.") from None

    handler = _Handler(
        server, read, given, write, schema, title, Metrics(), max_body, max_instances, deadline, asyncio.Event()
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (handler.warm(warm_up), handler.publish())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(server.close)

    routes = [
        Route("/predict", handler.predict, methods=["POST"]),
        Route("/healthz", handler.health),
        Route("/readyz", handler.readiness),
        Route("/metrics", handler.metrics_text),
        Route("/openapi.json", handler.openapi),
        Route("/live", handler.live),
        Route("/", handler.page),
    ]
    guards = [] if token is None else [Middleware(_Guard, token=token)]
    return Starlette(
        routes=routes, middleware=guards, lifespan=lifespan, exception_handlers={Refusal: _refuse, Exception: _fail}
    )


class _Handler:
    """Answers the requests of all routes."""

    def __init__(
        self, server: Server, read: Any, given: Any, write: Any, schema: Any, title: str, metrics: Any, max_body: int,
        max_instances: int, deadline: float | None, ready: asyncio.Event,
    ) -> None:  # fmt: skip
        self._server, self._read, self._given, self._write = server, read, given, write
        self._schema, self._title = schema, title
        self._metrics, self._max_body, self._max_instances = metrics, max_body, max_instances
        self._deadline, self._ready = deadline, ready
        self._not_ready = "not ready: warming up"
        self._workers = Workers(Path(os.environ[SEVERAL])) if SEVERAL in os.environ else None

    async def warm(self, warm_up: Callable[[], object]) -> None:
        """Warm up, in a thread; then the server is ready. If that fails it never is, and `/readyz` says why."""
        try:
            await asyncio.to_thread(warm_up)
        except Exception as error:
            self._not_ready = f"not ready: warming up failed, {type(error).__name__}: {error}"
        else:
            self._ready.set()

    async def predict(self, request: Request) -> Response:
        """Answer one instance, many, or a stream of them."""
        from starlette.responses import JSONResponse, StreamingResponse

        body = await self._body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind == NDJSON:
            given = [_parse(line, f"line {k}") for k, line in enumerate(body.splitlines(), 1) if line.strip()]
            return StreamingResponse(self._lines(self._instances(given)), media_type=NDJSON)
        content = _parse(body, "the body")
        if not isinstance(content, dict) or not ({"instance"} == content.keys() or {"instances"} == content.keys()):
            raise Refusal(400, 'the body is no JSON object with either "instance" or "instances"; give one of them.')
        if "instance" in content:
            (instance,) = self._instances([content["instance"]])
            if NDJSON in request.headers.get("accept", ""):
                return StreamingResponse(self._items(instance), media_type=NDJSON)
            return JSONResponse({"result": await self._answer(instance)})
        if not isinstance(content["instances"], list):
            raise Refusal(400, '"instances" is no list.')
        instances = self._instances(content["instances"])
        return JSONResponse({"results": await asyncio.gather(*map(self._outcome, instances))})

    async def health(self, request: Request) -> Response:
        """Say that the process lives."""
        return _text("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Say whether the server has warmed up and takes requests."""
        if self._server.is_closed:
            return _text("not ready: closing\n", 503)
        if not self._ready.is_set():
            return _text(f"{self._not_ready}\n", 503)
        return _text("ready\n")

    async def metrics_text(self, request: Request) -> Response:
        """The metrics, as Prometheus reads them."""
        from starlette.responses import Response

        return Response(*self._metrics.write(self._server.explain()))

    async def live(self, request: Request) -> Response:
        """What the live page shows."""
        from starlette.responses import JSONResponse

        counts = self._server.explain()
        servers = [counts.figures(), *([] if self._workers is None else self._workers.others())]
        walk = [*islice(counts.visits(), MOST_VISITS)]
        fault = "" if self._workers is None else self._workers.fault
        facts = {"walk": walk, "servers": len(servers), "fault": fault, "now": monotonic()}
        return JSONResponse({**summarize(servers), **facts})

    async def publish(self) -> None:
        """Give the other workers the figures of this one, as long as they are wanted."""
        if self._workers is not None:
            while True:
                if self._workers.is_wanted:
                    self._workers.publish(self._server.explain().figures())
                await asyncio.sleep(EVERY)

    async def page(self, request: Request) -> Response:
        """The live page."""
        from starlette.responses import HTMLResponse

        text = resources.files("autobatch.serving").joinpath("live.html").read_text(encoding="utf-8")
        return HTMLResponse(text.replace("{{title}}", _escaped(self._title)))

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document."""
        from starlette.responses import JSONResponse

        from autobatch.serving.openapi import describe

        return JSONResponse(describe(self._title, dict(self._schema)))

    async def _body(self, request: Request) -> bytes:
        parts, size = list[bytes](), 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body:
                raise Refusal(413, f"the body has more than {self._max_body} bytes; send fewer instances at a time.")
            parts.append(part)
        return b"".join(parts)

    def _instances(self, given: list[Any]) -> list[Any]:
        """Read instances; each is one, or the error of reading it."""
        if not given:
            raise Refusal(400, "there is no instance.")
        if len(given) > self._max_instances:
            raise Refusal(413, f"{len(given)} instances are more than {self._max_instances}; send fewer at a time.")
        return [self._instance(x) for x in given]

    def _instance(self, given: Any) -> Any:
        try:
            return self._read(given)
        except AutobatchError as error:
            return error
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            return DataError(f"cannot read the instance ({type(error).__name__}: {error}).")

    async def _answer(self, instance: Any) -> Any:
        """The result of an instance, as JSON has it.

        Raises:
            Refusal: there is none.
        """
        began = perf_counter()
        try:
            if isinstance(instance, AutobatchError):
                raise instance
            result = to_json(self._write(instance, await self._server(self._given(instance), self._deadline)))
        except Exception as error:
            refusal = _refusal(error)
            self._metrics.count(refusal.status, perf_counter() - began)
            raise refusal from error
        self._metrics.count(200, perf_counter() - began)
        return result

    async def _outcome(self, instance: Any) -> dict[str, Any]:
        """The result of an instance, or its error."""
        try:
            return {"result": await self._answer(instance)}
        except Refusal as refusal:
            return {"error": str(refusal), "status": refusal.status}

    async def _lines(self, instances: list[Any]) -> AsyncIterator[str]:
        """A line of JSON for each instance, in the order in which they are done."""

        async def numbered(number: int, instance: Any) -> dict[str, Any]:
            return {"index": number, **await self._outcome(instance)}

        tasks = [asyncio.create_task(numbered(number, x)) for number, x in enumerate(instances)]
        try:
            for task in asyncio.as_completed(tasks):
                yield json.dumps(await task) + "\n"
        finally:
            for task in tasks:  # of a client that has gone
                task.cancel()

    async def _items(self, instance: Any) -> AsyncIterator[str]:
        """A line of JSON for each item that an async generator yields."""
        if isinstance(instance, AutobatchError):
            raise _refusal(instance)
        began, status = perf_counter(), 200
        try:
            async with aclosing(self._server.stream(self._given(instance), self._deadline)) as items:
                async for item in items:
                    yield json.dumps({"item": to_json(item)}) + "\n"
        except Exception as error:  # the head of the answer is sent already
            refusal = _refusal(error)
            status = refusal.status
            yield json.dumps({"error": str(refusal), "status": status}) + "\n"
        self._metrics.count(status, perf_counter() - began)


class _Guard:
    """Refuses requests without the token; health and readiness need none."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["path"] not in ("/healthz", "/readyz"):
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, self._token):
                refused = _refused(Refusal(401, "the token is missing or wrong.", {"WWW-Authenticate": "Bearer"}))
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def to_json(x: Any) -> Any:
    """What JSON can hold of a result: arrays and tensors as lists, dataclasses as objects, NaN and infinity as null."""
    if is_dataclass(x) and not isinstance(x, type):
        return {field.name: to_json(getattr(x, field.name)) for field in fields(x)}
    if isinstance(x, Mapping):
        return {str(key): to_json(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_json(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "detach"):
        return to_json(x.tolist())
    if isinstance(x, float) and not np.isfinite(x):
        return None
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise DataError(f"a result holds {x!r} ({type(x).__name__}), which JSON cannot; give the application a write=.")


def _parse(text: bytes, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"{what} is no JSON: {error}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refusal(error: Exception) -> Refusal:
    """How an error of an instance is answered; what is no error of autobatch is for the log, and not for clients."""
    if isinstance(error, DeadlineError):
        return Refusal(504, str(error))
    if isinstance(error, ServingError):
        return Refusal(503, str(error), {"Retry-After": "1"})
    if isinstance(error, AutobatchError):
        return Refusal(422, str(error))
    LOG.error("the model failed on an instance.", exc_info=error)
    return Refusal(500, f"the model failed on the instance ({type(error).__name__}).")


def _refused(refusal: Refusal) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _refused(error)


async def _fail(request: Request, error: Exception) -> Response:
    return _refused(Refusal(500, "the server failed; its log says why."))


def _text(text: str, status: int = 200) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
