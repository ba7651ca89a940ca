"""Test clients that send or read too little, or leave: the server's waits are limited, and no error is logged."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import autobatch as ab
from autobatch.errors import DataError

uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")

from autobatch.cli.serving.process import Connection  # noqa: E402
from autobatch.serving import clients  # noqa: E402
from helpers.programs.http_client import NDJSON, Client, Served  # noqa: E402

BODY = json.dumps({"instance": {"x": [0, 0, 1], "n": 3}})
STREAM = json.dumps({"x": [0, 0, 1], "n": 300}) + "\n"
HEAD = "POST /predict HTTP/1.1\r\nHost: x\r\n"


def sent(body: str, kind: str = "application/json") -> bytes:
    return f"{HEAD}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name in ("PART_WITHIN", "BODY_WITHIN"):
        monkeypatch.setattr(clients, name, 0.5)
    monkeypatch.setattr("autobatch.cli.serving.process.HEAD_WITHIN", 0.4)
    config = uvicorn.Config
    monkeypatch.setattr(uvicorn, "Config", lambda app, **options: config(app, http=Connection, **options))
    made = Client(ab.serve(Served().run, backend="reference"))
    yield made
    made.close()


def connect(client: Client, begin: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", client.port), timeout=60)
    made.sendall(begin)
    return made


WHOLE = sent(BODY)
CUTS = [0, 3, len(HEAD), WHOLE.index(b"{") - 2, WHOLE.index(b"{"), WHOLE.index(b"{") + 1, len(WHOLE) - 1, len(WHOLE)]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_is_no_error(
    cut: int, reset: bool, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    stream = sent(STREAM * 5, NDJSON)
    for begin in (WHOLE[:cut], stream[: cut if cut < CUTS[-2] else len(stream)]):
        with connect(client, begin) as leaving:
            time.sleep(0.05)
            if reset:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    time.sleep(0.3)
    assert client.predict(BODY)[0] == 200
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.parametrize("cut", CUTS[:-1])
def test_a_client_that_sends_no_more_is_given_up(cut: int, client: Client) -> None:
    with connect(client, WHOLE[:cut]) as slow:
        answer = b""
        while part := slow.recv(1000):  # until the server closes the connection
            answer += part
        if cut >= WHOLE.index(b"{"):
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"the body did not arrive in time" in answer
    assert client.predict(BODY)[0] == 200


def test_a_client_that_drips_is_given_up(client: Client) -> None:
    with connect(client, WHOLE[: WHOLE.index(b"{")]) as slow:
        slow.settimeout(0.05)
        began, answer = time.monotonic(), b""
        while not answer and time.monotonic() - began < 30:
            try:
                slow.sendall(b" ")
                answer = slow.recv(1000)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_takes_no_answer_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "SEND_WITHIN", 0.3)
    page = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.settimeout(0.2)
        greedy.connect(("127.0.0.1", client.port))
        try:
            for _ in range(100_000):
                greedy.sendall(page)
        except OSError:  # the server no longer reads
            pass
        time.sleep(1.0)
        assert client.predict(BODY)[0] == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("kind", "status"), [("application/json", 503), (NDJSON, 200)])
def test_a_request_that_the_end_of_the_server_cuts_off_is_refused(
    kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless its answer has begun, which is then cut short."""
    endless = {"x": [0, 0, 1], "n": 10**6}
    body = json.dumps(endless if kind == NDJSON else {"instance": endless})
    server = ab.serve(Served().run, backend="reference")
    client = Client(server)
    client.process.config.timeout_graceful_shutdown = 1
    with connect(client, sent(body, kind)) as waiting:
        while not server.explain().running:
            time.sleep(0.01)
        client.close()
        answer = b""
        while part := waiting.recv(1000):
            answer += part
    head, _, found = answer.decode().partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    if status == 503:
        assert "retry-after: 1" in head
        assert json.loads(found) == {"error": "the server was closed before the request was done."}
    assert not [record for record in caplog.records if record.exc_info]


def test_lines_that_are_no_json_fail_alone(client: Client) -> None:
    good = json.dumps({"x": [0, 0, 1], "n": 1})
    lines = [good, "{", "", good, "NaN", "\udcff", "[1", "3", good + good, good]
    body = "\n".join(lines).encode("utf-8", "surrogateescape")
    status, _, text = client.ask("POST", "/predict", body, content_type=NDJSON)
    found = {line["index"]: line for line in map(json.loads, text.splitlines())}
    assert status == 200
    assert [found[k].get("status", 200) for k in range(9)] == [200, 400, 200, 400, 400, 400, 422, 400, 200]
    assert found[1]["error"].startswith("line 2 must be valid JSON: ")
    assert found[7]["error"].startswith("line 9 must be valid JSON: ")


@pytest.mark.parametrize("path", ["/metrics/", "/predict/", "/healthz/", "//evil.org/", "/%2e%2e/"])
def test_nothing_is_redirected(path: str, client: Client) -> None:
    for method in ("GET", "POST"):
        status, headers, text = client.ask(method, path, Host="evil.org")
        assert status in (404, 405)
        assert "evil.org" not in f"{headers}{text}"


@pytest.mark.parametrize("token", ["", " ", "\t\n", "a b", "secret\n", "geheim\u00df", 3])
def test_a_token_that_no_client_can_show_is_refused(token: Any) -> None:
    with (
        ab.serve(Served().run, backend="reference") as server,
        pytest.raises(
            DataError,
            match=r"the token must be one or more visible ASCII characters|token of app must be a str or None, got 3",
        ),
    ):
        ab.serving.app(server, token=token)


@pytest.mark.parametrize("raised", [SystemExit(1), ValueError("no"), KeyboardInterrupt(), OSError("no room")])
@pytest.mark.parametrize("place", ["read", "given", "write"])
def test_what_the_functions_of_an_application_raise_is_the_error_of_one_instance(
    raised: BaseException, place: str
) -> None:
    def fails(*given: Any) -> Any:
        if given[0] == 7:
            raise raised
        return given[-1]

    options: dict[str, Any] = {place: fails}
    with ab.serve(lambda x: x, backend="reference") as server:
        client = Client(server, **{"read": lambda x: x, **options})
        try:
            found = client.predict({"instances": [1, 7, 2]})[1]["results"]
            assert [one.get("status", 200) for one in found] == [200, 422 if place == "read" and isinstance(
                raised, ValueError) else 500, 200]  # fmt: skip
            assert client.predict({"instance": 3})[0] == 200
        finally:
            client.close()


def test_health_waits_for_no_reading_and_no_writing() -> None:
    """Nor do small requests wait for a large one, whose instances are read a few at a time."""
    opened, order = threading.Event(), list[int]()

    def read(x: Any) -> Any:
        order.append(x)
        assert x != 0 or opened.wait(60)
        return x

    with ab.serve(lambda x: float(x), backend="reference") as server:
        client = Client(server, read=read)
        try:
            large = threading.Thread(target=client.predict, args=({"instances": [0] + [1] * 500},))
            large.start()
            while not order:
                time.sleep(0.01)
            assert client.ask("GET", "/healthz")[0] == 200
            assert client.predict({"instance": 2})[1] == {"result": 2.0}
            assert order == [0, 2]
            opened.set()
            large.join()
            assert len(order) == 502
        finally:
            client.close()


@pytest.mark.parametrize("with_warm_up", [False, True])
def test_it_is_not_ready_while_predictions_fail(with_warm_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.serving.asgi.TRY_AFTER", 0.2)
    broken = threading.Event()

    def run(x: Any) -> Any:
        if x == "poison" or broken.is_set():
            raise OSError("no room")
        return x

    with ab.serve(run, backend="reference") as server:
        warm_up = {"warm_up": lambda: server.submit(1.0).result(60)} if with_warm_up else {}
        client = Client(server, read=lambda x: x, **warm_up)

        def await_status(status: int) -> str:
            while (answer := client.ask("GET", "/readyz"))[0] != status:
                time.sleep(0.01)
            return answer[2]

        try:
            await_status(200)
            client.predict({"instance": "poison"})
            assert client.ask("GET", "/readyz")[0] == 200  # one request does not affect the server's health
            broken.set()
            for _ in range(3):
                assert client.predict({"instance": 1})[0] == 500
            assert client.ask("GET", "/readyz")[2].startswith("not ready: predictions fail")
            assert client.ask("GET", "/healthz")[0] == 200
            if with_warm_up:
                for _ in range(50):
                    assert client.ask("GET", "/readyz")[0] == 503
                    time.sleep(0.02)
            broken.clear()
            await_status(200)
            assert client.predict({"instance": 1})[0] == 200
            assert client.ask("GET", "/readyz")[0] == 200
        finally:
            client.close()
