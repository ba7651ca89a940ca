"""Run independent jobs as Ray tasks, in processes on this machine or on others (extra `ray`).

A job is a function and its arguments. Each worker gets its own pickle of them, so arrays are writeable, unlike those in
Ray's object store. The job of a worker that dies is started again in another one. If a job depends only on its
arguments, results equal those of running the jobs in this process.
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
"""The address of a Ray instance on this machine that starts and ends with the command."""
AUTO = "auto"
"""The address of the Ray instance already running on this machine, alone or as part of a cluster."""
RETRIES = 3
"""Number of times that a job is restarted after its worker died."""
SECONDS_TO_ANSWER = 10.0
ENVIRONMENT = "AUTOBATCH_", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"
"""Prefixes of the environment variables passed to remote workers; local workers inherit all."""

T = TypeVar("T")


def to_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check an address; click takes the next word of the command line as one if --ray has no value."""
    if value is None or value in (LOCAL, AUTO) or _place(value) is not None:
        return value
    raise click.BadParameter(
        f"must be HOST:PORT, {AUTO} or {LOCAL}, got {value!r}; write --ray={LOCAL} to start Ray on this machine."
    )


def ray_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option --ray, whose value is None if it is not given."""
    return click.option(
        "--ray", "ray", metavar="[ADDRESS]", is_flag=False, flag_value=LOCAL, default=None, callback=to_address,
        help=f"{text} Without ADDRESS, a Ray instance on this machine starts and ends with the command.",
    )  # fmt: skip


def require_ray(what: str) -> None:
    """Check that Ray is installed.

    Raises:
        DistributedError: Ray is not installed; `what` names the work in the message.
    """
    if find_spec("ray") is None:
        raise DistributedError(f"{what}: --ray needs the package ray, which is not installed; {pip_install('ray')}.")


def run_jobs(function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], address: str, what: str) -> list[T]:
    """Run jobs and return their results in the order of the jobs; see `as_done`."""
    found = dict(as_done(function, jobs, address, what))
    return [found[number] for number in range(len(jobs))]


def as_done(
    function: Callable[..., T], jobs: Sequence[tuple[Any, ...]], address: str, what: str
) -> Iterator[tuple[int, T]]:
    """Run jobs in Ray workers; yield the number and the result of each as soon as it is done.

    Args:
        function: called in a worker; cloudpickle must support it, its arguments and its results.
        jobs: arguments of the calls.
        address: "local", "auto" or HOST:PORT.
        what: name of the work, for messages.

    Raises:
        DistributedError: Ray is not installed, does not answer or fails, or a job's workers died repeatedly.
        Exception: the first error of a job; the other jobs are cancelled.
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
                # Errors of jobs return as values, because Ray would wrap exceptions in its own.
                is_good, result = cloudpickle.loads(content)
                if not is_good:
                    raise result
                yield number, result
        finally:
            for other in waiting:
                with suppress(RayError):
                    ray.cancel(other, force=True)


def _make_work() -> Callable[[Sequence[str], bytes], bytes]:
    """Make the function of a worker, nested so that it is pickled by value and needs no import of autobatch."""

    def work(paths: Sequence[str], content: bytes) -> bytes:
        """Return a pickle of (True, result) or (False, exception)."""
        import sys

        from ray import cloudpickle

        # Functions of modules are pickled by name, so the worker must find the modules in the same places.
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
    """Convert an exception of Ray to an error that names the job."""
    from ray.exceptions import RayTaskError, WorkerCrashedError

    job = f"{what}: job {number + 1} of {n_jobs}"
    if isinstance(error, WorkerCrashedError):
        return DistributedError(
            f"{job} was started {1 + RETRIES} times and its worker died each time, perhaps out of memory; run it "
            f"without --ray to see the cause."
        )
    lines = str(error.cause if isinstance(error, RayTaskError) else error).strip().splitlines()
    return DistributedError(f"{job} failed in Ray: {type(error).__name__}, {lines[0].rstrip('.') if lines else ''}.")


@contextmanager
def connect(address: str, what: str) -> Iterator[None]:
    """Connect to Ray while the block runs; an existing connection of this process is reused.

    Raises:
        DistributedError: Ray does not answer at the address, or cannot be started.
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
            raise DistributedError(f"{what}: cannot connect to Ray at {address!r}: {said}.") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's handler prints a stack; its processes end with this one anyway
    try:
        yield
    finally:
        ray.shutdown()


def _place(address: str) -> tuple[str, int] | None:
    """Parse HOST:PORT; return None for other addresses."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port) if host is not None and port is not None and not parts.path else None


def _require_answer(place: tuple[str, int], address: str, what: str) -> None:
    """Raise an error if nothing listens at an address, where Ray would retry for a minute and end the process."""
    try:
        socket.create_connection(place, timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise DistributedError(
            f"{what}: nothing answers at {address!r} ({error.strerror or error}); start Ray with ray start --head."
        ) from error
