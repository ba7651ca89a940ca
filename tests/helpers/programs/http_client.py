"""A model served over HTTP, and a client; needs the extra `serve`."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from typing import Any

import numpy as np
import uvicorn

import autobatch as ab
from autobatch.errors import DataError
from helpers.programs.waiting_programs import Boom, Model

NDJSON = "application/x-ndjson"


class Served(Model):
    """Turns a vector as many times as requested."""

    async def run(self, given: tuple[Any, int]) -> Any:
        x, n = given
        for _ in range(n):
            x = self.turn(x)
            await ab.value(self.total(x))
        if n == 7:
            raise Boom("a secret")
        return {"x": x, "total": self.total(x)}

    async def grow(self, given: tuple[Any, int]) -> Any:
        x, n = given
        for k in range(n):
            x = self.turn(x)
            yield {"step": k, "total": await ab.value(self.total(x))}
        if n == 7:
            raise Boom("a secret")


def read(given: Any) -> tuple[Any, int]:
    if not isinstance(given, dict) or given.keys() != {"x", "n"} or len(given["x"]) != 3:
        raise DataError(f"an instance is an object with x of 3 numbers and n, not {given!r}.")
    return np.asarray(given["x"], np.float64), int(given["n"])


class Client:
    """Runs a server in a thread and sends requests to it."""

    def __init__(self, server: Any, **options: Any) -> None:
        app = ab.serving.app(server, **{"read": read, **options})
        config = uvicorn.Config(app, port=0, log_level="error")
        self.process = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.process.serve()))
        self._thread.start()
        while not self.process.started:
            time.sleep(0.01)
        self.port = self.process.servers[0].sockets[0].getsockname()[1]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        connection.request(method, path, text, {key.replace("_", "-"): value for key, value in headers.items()})
        answer = connection.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        connection.close()
        return found

    def predict(self, body: Any, **headers: str) -> tuple[int, Any]:
        status, _, text = self.ask("POST", "/predict", body, **headers)
        return status, json.loads(text)

    def close(self) -> None:
        self.process.should_exit = True
        self._thread.join()
