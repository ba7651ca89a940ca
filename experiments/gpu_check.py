"""Check that the cuda backend works on this GPU, and measure its speed. Run this first on a machine with a GPU.

Each section runs in its own process, so that one that fails or hangs does not end the others. Each writes a record and
prints a table. The exit status is 1 if a section failed, and 69 without a GPU. It takes less than ten minutes.

    python experiments/gpu_check.py
    python experiments/gpu_check.py --section products --minutes 3
    AUTOBATCH_CUDA=host python experiments/gpu_check.py --quick

The last command needs no GPU: a processor runs the same kernels, with sizes so small that it takes a minute or two. Its
results are valid; its times mean nothing, and the output says so.
"""

from __future__ import annotations

import faulthandler
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from autobatch.cli.experiment import UNAVAILABLE
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.gpu.correctness import check_correctness, train_on_both
from autobatch.cli.gpu.products import time_launches, time_products
from autobatch.cli.results import format_table
from autobatch.devices.finding import find_device
from autobatch.errors import AutobatchError, BackendError
from digest import GPU
from gpu.bandwidth import time_kernels
from gpu.policies import time_policies
from gpu.race import race
from gpu.rounds import decode_on_both
from gpu.tests import run_tests
from gpu.torch_modules import check_torch
from gpu.traffic import count_traffic
from harness import find_data, run
from records import Findings, Settings


class Part(NamedTuple):
    """A section, and its share of the time; later sections share the time that it does not use."""

    section: Callable[[Check], Result]
    share: float


SECTIONS = {
    "tests": Part(run_tests, 0.15),
    "correctness": Part(check_correctness, 0.15),
    "training": Part(partial(train_on_both, trees=find_data("sst")), 0.06),
    "traffic": Part(count_traffic, 0.05),
    "launches": Part(time_launches, 0.03),
    "products": Part(time_products, 0.06),
    "bandwidth": Part(time_kernels, 0.07),
    "race": Part(race, 0.21),
    "policies": Part(time_policies, 0.12),
    "rounds": Part(decode_on_both, 0.05),
    "torch": Part(check_torch, 0.1),
}


@dataclass(frozen=True)
class Config(Settings):
    """How much is measured."""

    quick: bool = False
    """Measure as little as possible, to see that the check itself runs."""
    minutes: float = 8.0
    """Time limit: nothing new starts after it, and the output lists what was left out."""
    section: str = ""
    """Run only this section: tests, correctness, training, traffic, launches, products, bandwidth, race, policies,
    rounds, torch.
    """


def measure(config: Config) -> Iterator[Findings]:
    """Run a section, or all of them."""
    if config.section and config.section not in SECTIONS:
        raise AutobatchError(f"section must be one of {', '.join(SECTIONS)}, got {config.section!r}.")
    try:
        device = find_device()
    except BackendError as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE)
    if not config.section:
        sys.exit(run_all(config))
    started = time.perf_counter()
    faulthandler.dump_traceback_later(seconds_until_killed(config.minutes) - 1)
    check = Check(device, config.quick, config.seed, started + 60 * config.minutes)
    result = SECTIONS[config.section].section(check)
    figures = {**check.describe(), **result.figures()}
    device_name = re.sub(r"\W+", "-", device.name.lower()) if check.is_gpu else "host"
    yield Findings(result.seconds, figures, result.table(check.say_device()), f"{device_name}-{config.section}")
    faulthandler.cancel_dump_traceback_later()
    if result.failures:
        sys.exit(f"{config.section}: {len(result.failures)} failures")


def run_all(config: Config) -> int:
    """Run all sections, each in a process. Return the exit status."""
    rows, deadline = [], time.perf_counter() + 60 * config.minutes
    shares = sum(part.share for part in SECTIONS.values())
    for name, part in SECTIONS.items():
        started = time.perf_counter()
        minutes = max(deadline - started, 0) / 60 * part.share / shares
        shares -= part.share
        print(f"\n=== {name}\n", flush=True)
        ended = run_section(name, minutes)
        rows.append((name, ended, f"{time.perf_counter() - started:.0f}"))
    print("\n" + format_table(("section", "", "seconds"), rows))
    return int(any(ended != "ok" for _, ended, _ in rows))


def run_section(name: str, minutes: float) -> str:
    """Run a section in a new process. Return how it ended."""
    command = [sys.executable, *sys.argv, f"section={name}", f"minutes={minutes:.3f}"]
    try:
        status = subprocess.run(command, check=False, timeout=seconds_until_killed(minutes)).returncode
    except subprocess.TimeoutExpired:
        return "FAILED, did not end"
    return "ok" if status == 0 else f"FAILED, exit status {status}"


def seconds_until_killed(minutes: float) -> float:
    """Return the time limit of a section: two minutes extra for work in progress and for compiling kernels."""
    return 60 * minutes + 120


if __name__ == "__main__":
    run(Config(), measure, modules=GPU)
