"""Run random programs eagerly and batched in many configurations, and show failing programs, shrunk.

python tools/fuzz.py --seeds 0:10000 --state fuzz.json
python tools/fuzz.py --seed 4711
python tools/fuzz.py --torch --seeds 0:5000
python tools/fuzz.py --replay case.zip

The last command runs a mini-batch that `ab.testing.dump` wrote; if it fails, a smaller one is written beside it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import torch

from autobatch.errors import AutobatchError
from fuzzing import campaign
from fuzzing.campaign import Found, State, load_state, run, save_state
from fuzzing.cells import draw_program
from fuzzing.checks import draw_way
from fuzzing.replaying import replay
from fuzzing_torch import campaign as of_torch

SECONDS_BETWEEN_LINES = 20.0


@click.command()
@click.option("--seeds", default="0:1000", metavar="A:B", help="Run the programs with numbers A to B - 1.")
@click.option("--seed", type=int, help="Show and run a single program.")
@click.option(
    "--state", "path", type=click.Path(path_type=Path), help="File for the findings, from which the run resumes."
)
@click.option(
    "--cuda",
    default="0",
    metavar="N|all",
    help="Also run every N-th program on the cuda backend, without a GPU; odd ones with parameters on the device.",
)
@click.option("--stages", is_flag=True, help="Only compile the stages of cells, and run them on names of elements.")
@click.option("--shrink", "seconds", default=40.0, help="Seconds to shrink a failing program; 0 to keep it as it is.")
@click.option("--derivatives", is_flag=True, help="Draw programs that compute derivatives and hold arrays.")
@click.option(
    "--torch", "is_torch", is_flag=True, help="Draw programs of PyTorch modules, and compare them with PyTorch."
)
@click.option("--containing", default="", metavar="REGEX", help="Only run programs whose text matches this.")
@click.option("--replay", "case", type=click.Path(path_type=Path), help="Run a case of ab.testing.dump instead.")
def main(
    seeds: str,
    seed: int | None,
    path: Path | None,
    cuda: str,
    stages: bool,
    seconds: float,
    derivatives: bool,
    is_torch: bool,
    containing: str,
    case: Path | None,
) -> None:
    """Run random programs; the exit status is 1 if one was wrong."""
    if case is not None:
        sys.exit(replay_or_refuse(case, seconds))
    is_on_cuda = _choice(cuda)
    if is_torch:
        torch.set_num_threads(1)  # small tensors are slower with several

    def run_one(seed: int, seconds: float) -> Found | None:
        if is_torch:
            return of_torch.run_one(seed, "cpu", seconds)
        if stages:
            return campaign.run_one(seed, [], seconds, derivatives)
        on_cuda = ["resident" if seed % 2 else "cuda"] * is_on_cuda(seed)
        return campaign.run_one(seed, ["reference", "cpu", *on_cuda], seconds, derivatives)

    def text_of(seed: int) -> str:
        return of_torch.text_of(seed) if is_torch else f"{draw_program(seed, derivatives)}\n# {draw_way(seed)}"

    if seed is not None:
        print(text_of(seed))
        found = run_one(seed, seconds)
        print(found or "right")
        sys.exit(found is not None and not found.is_set_apart)
    start, end = _range(seeds)
    state = load_state(path, start, end)
    began = last_line = time.monotonic()
    before = state.n_run
    for found in run(state, run_one, seconds, text_of, containing):
        if found:
            print(found, flush=True)
        if found or state.next == end or time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            save_state(state, path)
            rate = (state.n_run - before) / max(last_line - began, 1e-9)
            print(f"{state.next}: {state.n_run} run, {len(state.failures)} wrong, {rate:.1f} a second", flush=True)
    print(summary(state))
    sys.exit(bool(state.failures))


def replay_or_refuse(case: Path, seconds: float) -> int:
    """Run a case. Return the exit status: 1 if it is wrong, 2 if it cannot be run."""
    try:
        return int(replay(case, seconds))
    except AutobatchError as error:
        print(error, file=sys.stderr)
        return 2


def summary(state: State) -> str:
    """Summarize the findings, by kind."""
    lines = [f"{state.n_run} programs, {len(state.failures)} wrong"]
    if state.apart:
        lines[0] += f", {sum(state.apart.values())} set apart"
    for signature, count in state.counts().most_common():
        seeds = [found.seed for found in state.failures if found.signature == signature]
        lines.append(f"{count:6} {signature}: seeds {', '.join(map(str, seeds[:5]))}")
    lines += [f"{count:6} {signature}" for signature, count in Counter(state.apart).most_common()]
    return "\n".join(lines)


def _range(text: str) -> tuple[int, int]:
    start, _, end = text.partition(":")
    if not (start.isdecimal() and end.isdecimal()):
        raise click.BadParameter(f"must be a range of numbers, such as 0:1000, got {text!r}.")
    return int(start), int(end)


def _choice(text: str) -> Callable[[int], bool]:
    if text == "all":
        return lambda seed: True
    if not text.isdecimal():
        raise click.BadParameter(f"must be a number or all, got {text!r}.")
    step = int(text)
    return lambda seed: step > 0 and seed % step == 0


if __name__ == "__main__":
    main()
