"""Run the ops of PyTorch's own table in cells, and compare the results with PyTorch.

python tools/check_torch_ops.py --samples 4
python tools/check_torch_ops.py --op clamp --op norm --runs auto
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

import click

from torch_ops.running import run
from torch_ops.samples import select
from torch_ops.verdicts import Outcome, Verdict

BAD = Verdict.WRONG, Verdict.CRASH


@click.command()
@click.option("--op", "ops", multiple=True, help="An op, such as clamp or nn.functional.gelu; by default all.")
@click.option("--samples", type=int, help="Maximum number of samples of each op; by default all.")
@click.option(
    "--runs",
    multiple=True,
    type=click.Choice(["auto", "autobatch", "torch"]),
    help="What runs the cells; by default all three, in turn.",
)
@click.option("--backend", default="reference", show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all outcomes.")
@click.option("--verbose", is_flag=True, help="Print each sample that fails.")
def main(
    ops: tuple[str, ...], samples: int | None, runs: tuple[str, ...], backend: str, path: Path | None, verbose: bool
) -> None:
    """Run ops of torch in cells; the exit status is 1 if one was wrong, or failed without a proper error message."""
    outcomes: list[Outcome] = []
    for outcome in run(select(ops), runs or ("auto", "autobatch", "torch"), samples, backend):
        outcomes.append(outcome)
        if verbose and outcome.verdict in (*BAD, Verdict.REFUSED):
            print(outcome, flush=True)
    if path:
        path.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(summary(outcomes))
    sys.exit(any(outcome.verdict in BAD for outcome in outcomes))


def summary(outcomes: list[Outcome]) -> str:
    """Return the counts, and the first sample of each failing verdict for each op."""
    lines = []
    for runs in dict.fromkeys(outcome.runs for outcome in outcomes):
        of_runs = [outcome for outcome in outcomes if outcome.runs == runs]
        counts = Counter(outcome.verdict for outcome in of_runs)
        lines.append(f"runs={runs!r}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict))
        for verdict in (Verdict.CRASH, Verdict.WRONG, Verdict.REFUSED):
            by_op = defaultdict(list)
            for outcome in of_runs:
                if outcome.verdict == verdict:
                    by_op[outcome.op].append(outcome)
            lines.append(f"  {verdict}: {len(by_op)} ops")
            lines += [f"    {op} ({len(found)}): {found[0].sample}: {found[0].detail}" for op, found in by_op.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
