"""The ASGI application of a server: predictions, health, metrics, a schema and a live page, over HTTP.

    app = ab.serving.app(server)      runs under uvicorn; or in your own FastAPI, app.mount("/model", ...)

Starlette handles HTTP, prometheus-client the metrics; both are installed by the extra `serve`.

A server is ready for requests when it has warmed up, is open, and its last predictions did not all fail.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from autobatch.errors import BackendError
from autobatch.keywords import checked
from autobatch.release import VERSION, pip_install
from autobatch.serving.answers import Answers, Instance, Refusal, fail, outcome, refuse
from autobatch.serving.counts import summarize
from autobatch.serving.server import Server
from autobatch.serving.workers import EVERY, SEVERAL, Workers
from autobatch.system.nested_json import parse_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


def describe_api(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Describe all documented routes, with the JSON schema of an instance."""
    error = _object({"error": {"type": "string"}})
    outcome = {
        "type": "object",
        "properties": {"result": {}, "error": {"type": "string"}, "status": {"type": "integer"}},
    }
    one = _object({"instance": schema})
    many = _object({"instances": {"type": "array", "items": schema, "minItems": 1}})
    answers = {"oneOf": [_object({"result": {}}), _object({"results": {"type": "array", "items": outcome}})]}
    refusals = {
        "400": "Not JSON, or not of this form.", "401": "Missing or wrong token.", "413": "Too large.",
        "422": "An instance that the model rejects.", "503": "Too many waiting requests.", "504": "Deadline passed.",
    }  # fmt: skip
    predict = {
        "summary": "Compute results of instances.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [one, many]}},
                "application/x-ndjson": {"schema": schema},
            },
        },
        "responses": {
            "200": {"description": "Results.", "content": _content(answers)},
            **{status: {"description": text, "content": _content(error)} for status, text in refusals.items()},
        },
    }
    plain = {"get": {"responses": {"200": {"description": "Yes."}, "503": {"description": "No."}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": VERSION},
        "paths": {"/predict": {"post": predict}, "/healthz": plain, "/readyz": plain},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


MOST_FAILED = 3  # consecutive server errors before the server counts as not ready
TRY_AFTER = 5.0  # seconds without an answer before the known-good instances are computed again
WARMING = "warming up"


class Readiness:
    """The readiness of a server, and the reason if it is not ready.

    Args:
        server: the server to report on.
        warm_up: computes known-good instances; see `autobatch.serving.app`.
    """

    def __init__(self, server: Server, warm_up: Callable[[], object]) -> None:
        self._server, self._warm_up = server, warm_up
        self._fault, self._n_failed, self._last = WARMING, 0, 0.0
        self._trying: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Begin to warm up; return the task."""
        self._trying = asyncio.create_task(self.warm())
        return self._trying

    async def warm(self) -> None:
        """Warm up in a thread; the server is not ready until that succeeds."""
        try:
            await asyncio.to_thread(self._warm_up)
        except BaseException as error:  # a warm-up may raise a SystemExit, too
            if isinstance(error, asyncio.CancelledError):
                raise
            failing = "predictions fail" if self._n_failed >= MOST_FAILED else "warming up failed"
            self._fault = f"{failing}, {type(error).__name__}: {error}"
        else:
            self._fault = ""
        self._last = monotonic()

    def count(self, status: int) -> None:
        """Count an answer; statuses of 500 and above are server errors."""
        self._n_failed = self._n_failed + 1 if status >= 500 else 0
        if status < 400 and self._fault != WARMING:
            self._fault = ""
        self._last = monotonic()

    async def why_not(self) -> str:
        """Return why the server is not ready; empty if it is."""
        if self._server.is_closed:
            return "closing"
        if self._fault == WARMING and self._trying is None:  # a mounted application has no lifespan of its own
            self.begin()
        if self._fault == WARMING or not (self._fault or self._n_failed >= MOST_FAILED):
            return self._fault
        # While it is not ready, it may get no requests that show whether it works again.
        is_quiet = monotonic() - self._last > TRY_AFTER
        if is_quiet and (self._trying is None or self._trying.done()):
            self._trying = asyncio.create_task(self._try())
        return self._fault or f"predictions fail, the last {self._n_failed} in a row"

    async def _try(self) -> None:
        """Compute the known-good instances; on success, report ready again."""
        await self.warm()
        if not self._fault:
            self._n_failed = MOST_FAILED - 1  # one more failure makes it not ready


NDJSON = "application/x-ndjson"
PLAIN = ("", "identity")  # content encodings that leave a body unchanged
MOST_BYTES = 1 << 20
MOST_INSTANCES = 1024
MOST_VISITS = 100  # scheduler states of a round on the live page
CLOSE_WITHIN = 5.0  # seconds after the last answer for abandoned programs to end
ANYTHING: Mapping[str, Any] = {"description": "Any JSON value."}


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
    """Make the ASGI application of a server; it closes the server when it shuts down.

    Args:
        server: the server that answers the requests.
        read: converts a JSON value to an instance; it raises a `DataError` for an invalid one.
        given: converts an instance to the argument of the function.
        write: converts an instance and its result to a JSON value; arrays, dataclasses and tuples are allowed in it.
        schema: the JSON schema of the argument of `read`, for `/openapi.json`.
        title: the name of the model.
        token: a token of visible ASCII characters that clients must send as `Authorization: Bearer ...`; None to
            require none.
        max_body: the maximum size of a request body in bytes.
        max_instances: the maximum number of instances in one request.
        deadline: seconds after which a request fails.
        warm_up: called before `/readyz` reports ready, and again after predictions have failed.

    Raises:
        DataError: the token is blank, or cannot be sent in a header.
        BackendError: starlette or prometheus-client is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        from autobatch.serving.clients import Guard, Patience, check_token
        from autobatch.serving.metrics import Metrics
    except ImportError as error:
        raise BackendError(f"serving over HTTP: {error.name} is not installed; {pip_install('serve')}.") from None

    if token is not None:
        check_token(token)
    metrics, readiness = Metrics(), Readiness(server, warm_up)

    def count(status: int, seconds: float) -> None:
        metrics.count(status, seconds)
        readiness.count(status)

    answers = Answers(server, read, given, write, deadline, count)
    handler = _Handler(server, answers, readiness, metrics, schema, title, max_body, max_instances)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [readiness.begin(), asyncio.create_task(handler.publish())]
        yield
        for task in tasks:
            task.cancel()
        answers.close()
        await asyncio.to_thread(server.close, CLOSE_WITHIN)

    routes = [
        Route("/predict", handler.predict, methods=["POST"]),
        Route("/healthz", handler.health),
        Route("/readyz", handler.readiness),
        Route("/metrics", handler.metrics_text),
        Route("/openapi.json", handler.openapi),
        Route("/live", handler.live),
        Route("/", handler.page),
    ]
    guards = [Middleware(Patience), *([] if token is None else [Middleware(Guard, token=token)])]
    made = Starlette(
        routes=routes, middleware=guards, lifespan=lifespan, exception_handlers={Refusal: refuse, Exception: fail}
    )
    made.router.redirect_slashes = False  # the target would come from the Host header, which a client can forge
    return made


class _Handler:
    """The handlers of all routes; those that are plain functions run in a thread."""

    def __init__(
        self, server: Server, answers: Answers, readiness: Readiness, metrics: Any, schema: Any, title: str,
        max_body: int, max_instances: int,
    ) -> None:  # fmt: skip
        self._server, self._answers, self._readiness, self._metrics = server, answers, readiness, metrics
        self._schema, self._title, self._max_body, self._max_instances = schema, title, max_body, max_instances
        self._workers = Workers(Path(os.environ[SEVERAL])) if SEVERAL in os.environ else None

    async def predict(self, request: Request) -> Response:
        """Answer one instance, many, or a stream of them."""
        from starlette.responses import StreamingResponse

        from autobatch.serving.clients import read_body

        encoding = request.headers.get("content-encoding", "").strip()
        if encoding.lower() not in PLAIN:
            raise Refusal(
                415, f"the body must not be encoded, got {encoding!r}; send it plain.", {"Accept-Encoding": "identity"}
            )
        body = await read_body(request, self._max_body)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == NDJSON:
            texts = [(k, line) for k, line in enumerate(body.splitlines(), 1) if line.strip()]
            self._check_number(len(texts))  # before they are parsed, which blocks the event loop
            lines = [await _parse_line(line, k) for k, line in texts]
            return StreamingResponse(self._lines(await self._instances(lines)), media_type=NDJSON)
        content = await _parse(body, "the body")
        if not isinstance(content, dict) or not ({"instance"} == content.keys() or {"instances"} == content.keys()):
            raise Refusal(400, 'the body must be a JSON object with either "instance" or "instances" and no other key.')
        if "instance" in content:
            (instance,) = await self._instances([content["instance"]])
            takes_lines = NDJSON in request.headers.get("accept", "").lower()
            if isinstance(instance, Instance) and takes_lines and self._server.streams:
                return StreamingResponse(self._items(instance), media_type=NDJSON)
            return _json(f'{{"result": {await self._answers.one(instance)}}}')
        if not isinstance(content["instances"], list):
            raise Refusal(400, '"instances" must be a list.')
        found = await self._answers.several(await self._instances(content["instances"]))
        return _json(f'{{"results": [{", ".join(map(outcome, found))}]}}')

    async def health(self, request: Request) -> Response:
        """Report that the process is alive."""
        return _text("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Report whether the server has warmed up, accepts requests and answers them."""
        fault = await self._readiness.why_not()
        return _text(f"not ready: {fault}\n", 503) if fault else _text("ready\n")

    def metrics_text(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        from starlette.responses import Response

        return Response(*self._metrics.write(self._server.explain()))

    def live(self, request: Request) -> Response:
        """Return the data of the live page as JSON."""
        from starlette.responses import JSONResponse

        counts = self._server.explain()
        servers = [counts.figures(), *([] if self._workers is None else self._workers.others())]
        walk = [*islice(counts.visits(), MOST_VISITS)]
        fault = "" if self._workers is None else self._workers.fault
        facts = {"walk": walk, "servers": len(servers), "fault": fault, "now": monotonic()}
        return JSONResponse({**summarize(servers), **facts})

    async def publish(self) -> None:
        """Publish this worker's metrics to the others, and its figures while someone reads them, until cancelled."""
        if self._workers is not None:
            while True:
                counts = self._server.explain()
                self._metrics.show(counts)
                if self._workers.is_wanted:
                    self._workers.publish(counts.figures())
                await asyncio.sleep(EVERY)

    async def page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        text = resources.files("autobatch.serving").joinpath("live.html").read_text(encoding="utf-8")
        return HTMLResponse(text.replace("{{title}}", _escaped(self._title)))

    async def openapi(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse(describe_api(self._title, dict(self._schema)))

    async def _instances(self, given: list[Any]) -> list[Instance | Refusal]:
        """Read instances; return each, or the refusal of one that cannot be read.

        Raises:
            Refusal: `given` is empty, or longer than a request may be.
        """
        self._check_number(len(given))
        return await self._answers.read(given)

    def _check_number(self, n: int) -> None:
        """Raise a Refusal for a request without instances, or with more than it may have."""
        if not n:
            raise Refusal(400, "a request must have at least one instance.")
        if n > self._max_instances:
            raise Refusal(
                413, f"a request must have at most {self._max_instances} instances, got {n}; send fewer at a time."
            )

    async def _lines(self, instances: list[Instance | Refusal]) -> AsyncIterator[str]:
        """Yield a line of JSON for each instance, in the order of completion."""

        async def numbered(number: int, instance: Instance | Refusal) -> str:
            (found,) = await self._answers.several([instance])
            return f'{{"index": {number}, {outcome(found)[1:]}\n'  # `outcome` begins with a brace

        tasks = [asyncio.create_task(numbered(number, x)) for number, x in enumerate(instances)]
        try:
            for line in asyncio.as_completed(tasks):
                yield await line
        finally:
            for task in tasks:  # the client may have disconnected
                task.cancel()

    async def _items(self, instance: Instance) -> AsyncIterator[str]:
        """Yield a line of JSON for each item of an async generator."""
        async for item in self._answers.items(instance):
            yield (outcome(item) if isinstance(item, Refusal) else json.dumps({"item": item})) + "\n"


async def _parse_line(text: bytes, number: int) -> Any:
    """Parse one of many lines; an error affects only this line."""
    try:
        return await _parse(text, f"line {number}")
    except Refusal as refusal:
        return Refusal(refusal.status, str(refusal))  # without the traceback and the cause, which hold the text


async def _parse(text: bytes, what: str) -> Any:
    try:
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except RecursionError:
            # Nested too deeply for `json`. Our parser takes any depth but is slower, so it runs in a thread.
            return await asyncio.to_thread(_parse_deep, text)
    except ValueError as error:
        raise Refusal(400, f"{what} must be valid JSON: {error}.") from None


def _parse_deep(text: bytes) -> Any:
    # Decoded as by `json.loads`.
    return parse_json(text.decode(json.detect_encoding(text), "surrogatepass"), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _json(text: str) -> Response:
    from starlette.responses import Response

    return Response(text, media_type="application/json")


def _text(text: str, status: int = 200) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
