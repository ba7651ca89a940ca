"""Do independent jobs as tasks of Ray, in processes of this machine or on others (extra `ray`).

A job is a function and its arguments, of which a worker gets a pickle of its own: unlike what Ray shares, its arrays
may be written, as in this process. A worker that dies loses its job, which another one then does from the beginning. So
results are those of the jobs done here, one after the other, if a job depends on nothing but its arguments.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from autobatch.errors import AutobatchError, DistributedError
from autobatch.release import pip_install
from autobatch.system.processor import usable_cores

LOCAL = "local"
"""Stands for a Ray of this machine, which begins and ends with the command."""
AUTO = "auto"
"""Stands for the Ray that runs on this machine already, alone or as a part of a cluster."""
RETRIES = 3
"""How often a job begins again because its worker died."""
SECONDS_TO_ANSWER = 10.0
ENVIRONMENT = "AUTOBATCH_", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"
"""How names of variables begin that a worker has from here; one on this machine has all."""

T = TypeVar("T")


def to_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no address: another word of the command line, which stands behind an option without a value."""
    if value is None or value in (LOCAL, AUTO) or _place(value) is not None:
        return value
    raise click.BadParameter(
        f"{value!r} is no address; give HOST:PORT or {AUTO}, or write --ray={LOCAL} for a Ray of this machine."
    )


def ray_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option that has work done on Ray; its value is None where it is not given."""
    return click.option(
        "--ray", "ray", metavar="[ADDRESS]", is_flag=False, flag_value=LOCAL, default=None, callback=to_address,
        help=f"{text} Without ADDRESS, a Ray of this machine begins and ends with the command.",
    )  # fmt: skip


def require_ray(what: str) -> None:
    """Refuse to begin where Ray is not installed.

    Raises:
        DistributedError: it is not.
    """
    if find_spec("ray") is None:
        raise DistributedError(f"{what}: --ray needs the package ray; {pip_install('ray')}.")


def run_jobs(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], address: str, what: str) -> list[T]:
    """Do jobs, and give their results in the order of the jobs; see `as_done`."""
    found = dict(as_done(function, jobs, address, what))
    return [found[number] for number in range(len(jobs))]


def as_done(
    function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], address: str, what: str
) -> Iterator[tuple[int, T]]:
    """Do jobs in workers of Ray; give the number and the result of each as soon as it is done.

    Args:
        function: is called in a worker; it and what it takes and gives must be what cloudpickle can carry.
        jobs: the arguments of the calls.
        address: "local", "auto" or HOST:PORT.
        what: is being done, for messages.

    Raises:
        DistributedError: there is no Ray at the address, a job lost one worker after the other, or Ray fails.
        Exception: the first that a job raised; the others are given up.
    """
    require_ray(what)
    if not jobs:
        return
    with connect(address, what):
        import ray
        from ray import cloudpickle
        from ray.exceptions import RayError

        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_make_work())
        paths = [os.path.abspath(path) for path in sys.path]
        number_of = {task.remote(paths, cloudpickle.dumps((function, job))): k for k, job in enumerate(jobs)}
        waiting = [*number_of]
        try:
            while waiting:
                (done,), waiting = ray.wait(waiting)
                number = number_of[done]
                try:
                    content = ray.get(done)
                except RayError as error:
                    raise _explain(error, number, len(jobs), what) from error
                is_good, result = cloudpickle.loads(content)
                if not is_good:
                    raise result
                yield number, result
        finally:
            for other in waiting:
                with suppress(RayError):
                    ray.cancel(other, force=True)


def _make_work() -> Callable[[Sequence[str], bytes], bytes]:
    """Make what a worker does, as a function that is sent by value: it can begin before anything of ours is found."""

    def work(paths: Sequence[str], content: bytes) -> bytes:
        """Give a pickle of (True, the result), or of (False, an exception)."""
        import sys

        from ray import cloudpickle

        sys.path.extend([path for path in paths if path not in sys.path])
        try:
            function, job = cloudpickle.loads(content)
            found = True, function(*job)
        except Exception as error:
            found = False, error
        pickled: bytes = cloudpickle.dumps(found)
        return pickled

    return work


def _explain(error: Exception, number: int, n_jobs: int, what: str) -> AutobatchError:
    """Say what Ray's exception means."""
    from ray.exceptions import RayTaskError, WorkerCrashedError

    job = f"{what}: job {number + 1} of {n_jobs}"
    if isinstance(error, WorkerCrashedError):
        return DistributedError(
            f"{job} was begun {1 + RETRIES} times, and each time its worker died, as it does when memory is short; run "
            f"it without --ray to see why."
        )
    lines = str(error.cause if isinstance(error, RayTaskError) else error).strip().splitlines()
    return DistributedError(f"{job} failed in Ray: {type(error).__name__}, {lines[0].rstrip('.') if lines else ''}.")


@contextmanager
def connect(address: str, what: str) -> Iterator[None]:
    """Be connected to Ray while the block runs; a Ray that this process has is used as it is.

    Raises:
        DistributedError: there is none at the address, or it does not begin.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    place, before = _place(address), signal.getsignal(signal.SIGTERM)
    if place is not None:
        _require_answer(place, address, what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        own: dict[str, Any] = {"num_cpus": usable_cores(), "include_dashboard": False}
        if address != LOCAL:
            own = {"runtime_env": {"env_vars": {k: x for k, x in os.environ.items() if k.startswith(ENVIRONMENT)}}}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            said = " ".join(str(error).split()).rstrip(".")
            raise DistributedError(f"{what}: no connection to Ray at {address!r}: {said}.") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's own handler prints a stack; what it began ends with this process
    try:
        yield
    finally:
        ray.shutdown()


def _place(address: str) -> tuple[str, int] | None:
    """Give host and port of an address that has them."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port) if host is not None and port is not None and not parts.path else None


def _require_answer(place: tuple[str, int], address: str, what: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for a minute, and end the process."""
    try:
        socket.create_connection(place, timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise DistributedError(
            f"{what}: nothing answers at {address!r} ({error.strerror or error}); ray start --head begins a Ray."
        ) from error
