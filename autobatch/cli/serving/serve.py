"""`autobatch serve`: serve the predictions of a trained model."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.util import find_spec

import click

from autobatch.cli import options
from autobatch.cli.machine import use_threads
from autobatch.cli.serving.workers import HELD, begin_log, listen, run_workers
from autobatch.cli.training.trained import Trained, trained_model
from autobatch.errors import BackendError, DataError
from autobatch.release import pip_install

TOKEN = "AUTOBATCH_TOKEN"
MILLISECONDS = 1000
MOST_PORT = 65_535


@click.command()
@trained_model
@options.count_option("--port", 8000, "Port to listen on; 0 for any free port.", least=0, most=MOST_PORT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@options.count_option("--workers", 1, "Number of processes that share the port, each with a copy of the model.")
@options.count_option("--max-running", 128, "Maximum number of running requests per process.")
@options.count_option("--max-waiting", 4096, "Maximum number of waiting requests per process; others are rejected.")
@options.count_option("--deadline", None, "Milliseconds after which a request times out.  [default: never]")
@options.other_backend_option
@options.max_bytes_option
@options.threads_option
def serve(
    trained: Trained,
    port: int,
    host: str,
    workers: int,
    max_running: int,
    max_waiting: int,
    deadline: int | None,
    backend: str | None,
    max_bytes: int | None,
    threads: int | str,
) -> int:
    """Serve the predictions of a trained MODEL over HTTP.

    MODEL is the name used in training. An instance is a string in the format of the data's files, and its result is the
    output of `autobatch predict`. Concurrent requests share batches.

    A new checkpoint or file is loaded without downtime, within a second of being written or on SIGHUP. SIGTERM ends the
    server after all accepted requests. If AUTOBATCH_TOKEN is set, requests must present this token. It is required on
    addresses that other machines can reach.

    \b
    Examples:
      autobatch serve tree-lstm --checkpoint runs/trees
      autobatch serve --model trees.ab
      curl localhost:8000/predict -d '{"instance": "(2 (2 a) (3 film))"}'
    """
    for package in ("starlette", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise BackendError(f"serving: the package {package} is not installed; {pip_install('serve')}.")
    token = os.environ.get(TOKEN)
    if token is not None:
        from autobatch.serving.clients import check_token

        check_token(token)
    if token is None and not _is_local(host):
        raise DataError(
            f"{TOKEN} must be set to serve at {host}, which other machines can reach; clients send it as the header "
            f"Authorization: Bearer TOKEN."
        )
    use_threads(threads)
    begin_log()
    name = trained.read().settings.model
    socket = listen(host, port)
    if HELD not in os.environ:
        bound, place = socket.getsockname()[1], f"[{host}]" if ":" in host else host
        click.echo(f"serving {name} at http://{place}:{bound}/, predictions at /predict; SIGTERM ends the server.")
        sys.stdout.flush()
        if workers > 1:
            return run_workers(workers, socket)
    from autobatch.cli.serving.process import run_process

    return run_process(
        socket, trained, token, None if deadline is None else deadline / MILLISECONDS,
        max_running=max_running, max_waiting=max_waiting, backend=backend, max_bytes=max_bytes, threads=threads,
    )  # fmt: skip


def _is_local(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
