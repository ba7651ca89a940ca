"""Test a server over HTTP: valid requests are answered, and invalid ones are refused with a sentence."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from helpers.programs.waiting_programs import Boom

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

from starlette.applications import Starlette
from starlette.routing import Mount

from autobatch.serving import asgi
from helpers.programs.http_client import NDJSON, Client, Served, read

WITHIN = 30.0  # seconds


@pytest.fixture
def model() -> Served:
    return Served()


@pytest.fixture
def client(model: Served) -> Iterator[Client]:
    made = Client(ab.serve(model.run, backend="reference"))
    yield made
    made.close()


def expected(model: Served, given: dict[str, Any]) -> float:
    return float(ab.eager(model.run, read(given))["total"])


def test_one_instance_and_many(model: Served, client: Client) -> None:
    given = [{"x": [0.1 * k, 0.2, -0.3], "n": k} for k in range(5)]
    for one in given:
        status, found = client.predict({"instance": one})
        assert status == 200
        assert found["result"]["total"] == pytest.approx(expected(model, one))
        assert len(found["result"]["x"]) == 3
    status, found = client.predict({"instances": [*given, {"x": [1], "n": 0}, {"x": [0, 0, 0], "n": 7}]})
    assert status == 200
    totals = [one["result"]["total"] for one in found["results"][:5]]
    assert totals == pytest.approx([expected(model, one) for one in given])
    assert found["results"][5]["status"] == 422
    assert found["results"][6] == {"error": "the model failed on the instance (Boom).", "status": 500}


def test_lines_come_as_they_are_done(model: Served, client: Client) -> None:
    given = [{"x": [0.1, 0.2, -0.3], "n": n} for n in (6, 0, 3)]
    lines = "".join(json.dumps(one) + "\n" for one in given) + "\n"
    status, headers, text = client.ask("POST", "/predict", lines, content_type=NDJSON)
    assert (status, headers["content-type"]) == (200, NDJSON)
    found = {line["index"]: line["result"]["total"] for line in map(json.loads, text.splitlines())}
    assert found == pytest.approx({k: expected(model, one) for k, one in enumerate(given)})


def test_a_client_that_goes_away_gives_up_its_requests(model: Served) -> None:
    server = ab.serve(model.run, backend="reference")
    client = Client(server)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
        given = json.dumps({"x": [0, 0, 1], "n": 10**6})
        connection.request("POST", "/predict", f"{given}\n{given}\n", {"content-type": NDJSON})
        while server.explain().running < 2:
            time.sleep(0.01)
        assert client.predict({"instance": {"x": [0, 0, 1], "n": 1}})[0] == 200
        connection.close()
        while server.explain().cancelled < 2:
            time.sleep(0.01)
    finally:
        client.close()


@pytest.mark.parametrize("end", ["RST", "FIN"])
@pytest.mark.parametrize("kind", ["instance", "instances", "lines", "stream"])
@pytest.mark.parametrize("padding", [0, 300])
def test_requests_of_a_client_that_has_left_are_cancelled(model: Served, kind: str, end: str, padding: int) -> None:
    """Both running and waiting ones, also if the body is longer than what a server reads ahead."""
    streams = kind == "stream"
    function, n = (model.grow if streams else model.run), 1 if kind in ("instance", "stream") else 400
    server = ab.serve(function, module=model, backend="reference", max_running=8)
    client = Client(server)
    try:
        one = json.dumps({"x": [0, 0, 1], "n": 10**7}) + " " * padding
        body = {
            "instances": f'{{"instances": [{", ".join([one] * n)}]}}',
            "lines": f"{one}\n" * n,
        }.get(kind, f'{{"instance": {one}}}').encode()
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += f"Accept: {NDJSON if streams else '*/*'}\r\nContent-Type: {NDJSON if kind == 'lines' else 'text/json'}"
        for n_before in (0, n):
            asking = socket.create_connection(("127.0.0.1", client.port), timeout=WITHIN)
            asking.sendall(f"{head}\r\n\r\n".encode() + body)
            wait_for(lambda: server.explain().running + server.explain().waiting == n)
            if end == "RST":
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            asking.close()
            wait_for(partial(has_cancelled, server, n_before + n))
            assert (server.explain().running, server.explain().waiting) == (0, 0)
        if not streams:
            assert client.predict({"instance": {"x": [0, 0, 1], "n": 1}})[0] == 200
    finally:
        client.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_client_may_leave_at_any_time(model: Served, seed: int) -> None:
    server, rng = ab.serve(model.run, backend="reference", max_running=8), np.random.default_rng(seed)
    client = Client(server)
    try:
        one = json.dumps({"x": [0, 0, 1], "n": 10**7})
        body = f"{one}\n".encode() * 200
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nContent-Type: {NDJSON}\r\n\r\n"
        for _ in range(20):
            asking = socket.create_connection(("127.0.0.1", client.port), timeout=WITHIN)
            asking.sendall(head.encode() + body)
            time.sleep(float(rng.exponential(0.02)))
            asking.close()
        assert client.predict({"instance": {"x": [0, 0, 1], "n": 1}})[0] == 200
        time.sleep(0.2)
        wait_for(lambda: server.explain().running + server.explain().waiting == 0)
    finally:
        client.close()


def has_cancelled(server: ab.serving.Server, n: int) -> bool:
    return server.explain().cancelled == n


def wait_for(holds: Callable[[], bool]) -> None:
    last = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.01)


def test_an_async_generator_is_streamed(model: Served) -> None:
    client = Client(ab.serve(model.grow, module=model, backend="reference"))
    try:
        given = {"x": [0.1, 0.2, -0.3], "n": 4}
        status, _, text = client.ask("POST", "/predict", {"instance": given}, accept=NDJSON)
        assert status == 200
        items = [json.loads(line)["item"] for line in text.splitlines()]
        assert [item["step"] for item in items] == [0, 1, 2, 3]
        assert items[-1]["total"] == pytest.approx(expected(model, given))
        assert client.predict({"instance": given})[1]["result"] == items
        _, _, text = client.ask("POST", "/predict", {"instance": {**given, "n": 7}}, accept=NDJSON)
        assert len(text.splitlines()) == 8
        assert json.loads(text.splitlines()[-1])["status"] == 500
    finally:
        client.close()


@pytest.mark.parametrize(
    "accept", ["application/json, application/x-ndjson", NDJSON, "Application/X-NDJSON;q=1", "*/*"]
)
def test_a_result_is_given_to_clients_that_take_lines(accept: str, client: Client) -> None:
    for n in (0, 3):
        given = {"instance": {"x": [0.1, 0.2, -0.3], "n": n}}
        plain = client.ask("POST", "/predict", given)
        found = client.ask("POST", "/predict", given, accept=accept)
        assert (found[0], found[1]["content-type"], found[2]) == (200, "application/json", plain[2])


@pytest.mark.parametrize(
    "kind", ["application/x-ndjson", "Application/X-NDJSON", "APPLICATION/X-NDJSON ; charset=utf-8"]
)
def test_media_types_have_no_case(kind: str, model: Served) -> None:
    client = Client(ab.serve(model.grow, module=model, backend="reference"))
    try:
        given = {"x": [0.1, 0.2, -0.3], "n": 2}
        _, headers, text = client.ask("POST", "/predict", json.dumps(given) + "\n", content_type=kind)
        assert (headers["content-type"], json.loads(text)["index"]) == (NDJSON, 0)
        _, headers, text = client.ask("POST", "/predict", {"instance": given}, accept=kind)
        assert (headers["content-type"], len(text.splitlines())) == (NDJSON, 2)
    finally:
        client.close()


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate, gzip", "identity", "Identity", ""])
def test_encoded_bodies_are_refused(encoding: str, client: Client) -> None:
    given = {"instance": {"x": [0, 0, 1], "n": 1}}
    status, _, text = client.ask("POST", "/predict", given, content_encoding=encoding)
    if encoding.lower() in ("", "identity"):
        assert status == 200
    else:
        assert (status, f"encoded, got {encoding!r}" in json.loads(text)["error"]) == (415, True)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("{", 400, "the body must be valid JSON"),
        ("[1]", 400, "either"),
        ({"instance": 1, "instances": []}, 400, "either"),
        ({"instances": 3}, 400, "must be a list"),
        ({"instances": []}, 400, "at least one instance"),
        ({"instances": [0] * 9}, 413, "at most 8 instances, got 9"),
        ({"instance": {"x": [1], "n": 0}}, 422, "an instance is an object"),
        ({"instance": {"x": ["a", "b", "c"], "n": 0}}, 422, "cannot read the instance (ValueError: "),
        ({"instance": {"x": [0, 0, 0], "n": 7}}, 500, "the model failed on the instance (Boom)."),
        (b"x" * 5000, 413, "at most 4000 bytes"),
        ("[" * 3000, 400, "must be valid JSON"),
        ('{"instance": {"x": [NaN, 0, 0], "n": 1}}', 400, "NaN is not a JSON number"),
    ],
)
def test_wrong_requests_are_refused_in_a_sentence(model: Served, body: Any, status: int, says: str) -> None:
    client = Client(ab.serve(model.run, backend="reference"), max_body=4000, max_instances=8)
    try:
        found, answer = client.predict(body)
        assert found == status
        assert says in answer["error"]
        assert "Traceback" not in answer["error"]
        assert client.predict({"instance": {"x": [0, 0, 1], "n": 1}})[0] == 200
    finally:
        client.close()


def test_lines_are_counted_before_they_are_parsed(model: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[bytes]()
    parse = asgi._parse

    async def counted(text: bytes, what: str) -> Any:
        parsed.append(text)
        return await parse(text, what)

    monkeypatch.setattr(asgi, "_parse", counted)
    client = Client(ab.serve(model.run, backend="reference"), max_instances=8)
    try:
        status, _, text = client.ask("POST", "/predict", "x\n\n" * 9, content_type=NDJSON)
        assert (status, parsed) == (413, [])
        assert "at most 8 instances, got 9" in json.loads(text)["error"]
        status, _, text = client.ask("POST", "/predict", "x\n\n" * 8, content_type=NDJSON)
        assert (status, len(parsed), len(text.splitlines())) == (200, 8, 8)
        assert client.ask("POST", "/predict", "\n", content_type=NDJSON)[0] == 400
    finally:
        client.close()


def test_a_line_that_fails_keeps_no_traceback() -> None:
    refusal = asyncio.run(asgi._parse_line(b"x" * 100, 3))
    assert (refusal.status, refusal.__traceback__, refusal.__context__) == (400, None, None)
    assert str(refusal).startswith("line 3 must be valid JSON")


def nest(depth: int, kind: str, core: str) -> str:
    opening, closing = {"list": ("[", "]"), "object": ('{"a": ', "}"), "both": ('[{"a": ', "}]")}[kind]
    return opening * depth + core + closing * depth


@pytest.mark.parametrize("kind", ["list", "object", "both"])
@pytest.mark.parametrize("depth", [3, 400, 1_000, 20_000])
def test_an_instance_may_be_nested_to_any_depth(model: Served, depth: int, kind: str) -> None:
    def read_depth(x: Any) -> tuple[Any, int]:
        found = 0
        while isinstance(x, (list, dict)):
            x, found = (x[0] if isinstance(x, list) else x["a"]), found + 1
        assert x == 1
        return np.full(3, found / 1e6), 0

    expected = depth * (2 if kind == "both" else 1) / 1e6
    client = Client(ab.serve(model.run, backend="reference"), read=read_depth)
    try:
        good, cut, strange = (nest(depth, kind, core) for core in ("1", "1, ", "NaN"))
        status, found = client.predict(f'{{"instance": {good}}}')
        assert status == 200, found
        assert found["result"]["x"] == [expected] * 3
        for wrong, says in ((cut, ""), (strange, "NaN is not a JSON number")):
            status, found = client.predict(f'{{"instance": {wrong}}}')
            assert status == 400
            assert found["error"].startswith(f"the body must be valid JSON: {says}")
        _, _, text = client.ask("POST", "/predict", f"{good}\n{cut}\n{good}\n", content_type=NDJSON)
        lines = sorted(map(json.loads, text.splitlines()), key=lambda line: line["index"])
        assert [line.get("status", 200) for line in lines] == [200, 400, 200]
        assert lines[2]["result"]["x"] == [expected] * 3
    finally:
        client.close()


def test_other_paths_and_methods(client: Client) -> None:
    assert client.ask("GET", "/nowhere")[0] == 404
    assert client.ask("GET", "/predict")[0] == 405


def test_health_metrics_schema_and_page(client: Client) -> None:
    assert client.ask("GET", "/healthz")[0] == 200
    for _ in range(100):
        if client.ask("GET", "/readyz")[0] == 200:
            break
        time.sleep(0.05)
    assert client.ask("GET", "/readyz")[0] == 200
    client.predict({"instances": [{"x": [0, 0, 1], "n": n} for n in range(3)]})
    text = client.ask("GET", "/metrics")[2]
    assert 'autobatch_instances_total{status="200"} 3.0' in text
    assert "autobatch_instance_seconds_count 3.0" in text
    live = json.loads(client.ask("GET", "/live")[2])
    assert live["done"] == 3
    assert all(ran in ready and rows > 0 for ready, ran, rows in live["walk"])
    assert live["walk"]
    document = json.loads(client.ask("GET", "/openapi.json")[2])
    assert "/predict" in document["paths"]
    assert "<title>autobatch</title>" in client.ask("GET", "/")[2]


@pytest.mark.slow
def test_the_page_shows_what_the_server_does(client: Client, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("Chromium is not installed")
    client.predict({"instances": [{"x": [0, 0, 1], "n": n} for n in range(5)]})
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=3000", "--dump-dom", f"http://127.0.0.1:{client.port}/",
    ]  # fmt: skip
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.search(r"<dt>done</dt><dd>5 requests</dd>", page)
    assert re.search(r"<dt>latency when warm, 99th percentile</dt><dd>(none|\d+\.\d ms)</dd>", page)
    assert re.search(r"own nodes \d+%", page)
    assert len(re.findall(r"<rect ", page)) >= 2
    assert re.search(r"<li style=\"background-color: [^>]+>[^<]+<small> → [^<]+ × \d+<", page), page[
        page.find("<ol") :
    ][:500]
    assert re.search(r'<p id="problem" class="off"></p>', page)


def test_it_is_ready_when_it_has_warmed_up(model: Served) -> None:
    warmed = threading.Event()
    client = Client(ab.serve(model.run, backend="reference"), warm_up=lambda: warmed.wait(60))
    try:
        assert client.ask("GET", "/healthz")[0] == 200
        assert client.ask("GET", "/readyz")[0] == 503
        warmed.set()
        while client.ask("GET", "/readyz")[0] != 200:
            time.sleep(0.01)
    finally:
        client.close()


def test_it_says_why_it_cannot_warm_up(model: Served) -> None:
    def warm_up() -> None:
        raise Boom("no instances")

    client = Client(ab.serve(model.run, backend="reference"), warm_up=warm_up)
    try:
        while (answer := client.ask("GET", "/readyz"))[2] == "not ready: warming up\n":
            time.sleep(0.01)
        assert answer[0] == 503
        assert answer[2] == "not ready: warming up failed, Boom: no instances\n"
    finally:
        client.close()


def test_a_token_is_asked_for(model: Served) -> None:
    client = Client(ab.serve(model.run, backend="reference"), token="secret")
    try:
        body = {"instance": {"x": [0, 0, 1], "n": 1}}
        assert client.predict(body)[0] == 401
        assert client.predict(body, authorization="Bearer wrong")[0] == 401
        assert client.predict(body, authorization="Bearer secret")[0] == 200
        assert client.ask("GET", "/metrics")[0] == 401
        assert client.ask("GET", "/healthz")[0] == 200
    finally:
        client.close()


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_mounted_application_is_ready(token: str | None, model: Served) -> None:
    warmed = list[int]()
    server = ab.serve(model.run, backend="reference")
    made = ab.serving.app(server, read=read, token=token, warm_up=lambda: warmed.append(1))
    outer = Starlette(routes=[Mount("/sums", made)])

    async def ask(path: str, headers: dict[str, str]) -> int:
        body, statuses = [{"type": "http.request"}], list[int]()

        async def receive() -> Any:
            return body.pop() if body else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        await outer({"type": "http", "method": "GET", "path": path, "root_path": "", "headers": given}, receive, send)
        return statuses[0]

    async def run() -> None:
        assert await ask("/sums/healthz", {}) == 200
        assert await ask("/sums/readyz", {}) == 503
        while await ask("/sums/readyz", {}) != 200:
            await asyncio.sleep(0.01)
        assert await ask("/sums/metrics", {}) == (200 if token is None else 401)
        assert await ask("/sums/metrics/healthz", {}) == (404 if token is None else 401)
        assert await ask("/sums/metrics", {"authorization": f"Bearer {token}"}) == 200

    with server:
        asyncio.run(asyncio.wait_for(run(), 60))
    assert warmed == [1]


def test_too_many_and_too_late(model: Served) -> None:
    server = ab.serve(model.run, backend="reference", max_running=1, max_waiting=1)
    client = Client(server, deadline=0.3)
    try:
        status, found = client.predict({"instances": [{"x": [0, 0, 1], "n": 10_000}] * 4})
        statuses = [one.get("status") for one in found["results"]]
        assert status == 200
        assert set(statuses) == {503, 504}
    finally:
        client.close()


@pytest.mark.parametrize("x", [object(), {1, 2}, b"bytes"])
def test_what_json_cannot_hold_is_an_error(x: Any) -> None:
    from autobatch.system.nested_json import to_json

    with pytest.raises(DataError, match="results must consist of JSON values, arrays and dataclasses, got"):
        to_json([x])
    assert to_json({"a": (np.float32(0.5), np.arange(2), float("nan"), None)}) == {"a": [0.5, [0, 1], None, None]}


def test_an_error_of_the_program_is_in_the_log(model: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(ab.serve(model.run, backend="reference"))
    try:
        client.predict({"instance": {"x": [0, 0, 0], "n": 7}})
    finally:
        client.close()
    (said,) = [record for record in caplog.records if record.name == "autobatch.serve"]
    assert said.getMessage() == "the model failed on an instance."
    assert said.exc_info is not None
    assert type(said.exc_info[1]).__name__ == "Boom"
