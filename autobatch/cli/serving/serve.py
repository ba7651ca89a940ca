"""`autobatch serve`: answer requests for predictions of a trained model."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.util import find_spec

import click

from autobatch.cli import options
from autobatch.cli.serving.log import begin_log
from autobatch.cli.serving.workers import HELD, listen, run_workers
from autobatch.cli.threads import use_threads
from autobatch.cli.training.trained import Trained, trained_model
from autobatch.errors import BackendError, DataError
from autobatch.release import pip_install

TOKEN = "AUTOBATCH_TOKEN"
MILLISECONDS = 1000
MOST_PORT = 65_535


@click.command()
@trained_model
@options.count_option("--port", 8000, "Where to listen; 0 for any that is free.", least=0, most=MOST_PORT)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@options.count_option("--workers", 1, "Processes that share the port, each with a model of its own.")
@options.count_option("--max-running", 128, "Requests that a process runs at a time.")
@options.count_option("--max-waiting", 4096, "Requests that wait in a process; more are refused.")
@options.count_option("--deadline", None, "Milliseconds after which a request is given up.  [default: never]")
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
    """Answer requests for predictions of a trained MODEL over HTTP.

    MODEL is the name that it was trained by. An instance is a text, as a file of the model's data holds it, and its
    result is what `autobatch predict` writes for it. Requests that come at the same time share batches.

    A new checkpoint in the folder, or a new file, is taken up without a pause, at the latest a second after it was
    written, or by SIGHUP. SIGTERM ends the server when what it has taken is done. Where AUTOBATCH_TOKEN is set,
    requests have to show it; at an address that others reach, it has to be set.

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
        raise DataError(f"serving at {host}: others reach that address; set {TOKEN}, which requests then have to show.")
    use_threads(threads)
    begin_log()
    name = trained.read().settings.model
    socket = listen(host, port)
    if HELD not in os.environ:
        bound, place = socket.getsockname()[1], f"[{host}]" if ":" in host else host
        click.echo(f"{name} is served at http://{place}:{bound}/, predictions at /predict; SIGTERM ends it.")
        sys.stdout.flush()
        if workers > 1:
            return run_workers(workers, socket)
    from autobatch.cli.serving.process import run_process

    return run_process(
        socket, trained, token, None if deadline is None else deadline / MILLISECONDS,
        max_running=max_running, max_waiting=max_waiting, backend=backend, max_bytes=max_bytes, threads=threads,
    )  # fmt: skip


def _is_local(host: str) -> bool:
    """Whether an address is that of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
