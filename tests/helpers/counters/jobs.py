"""Count the mini-batches that are planned ahead of their runs."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from autobatch.memplan.placement import PlanJob


class CountedJobs:
    """A context that counts the plans that are begun ahead of their runs, and those that are used."""

    def __init__(self) -> None:
        self.begun = self.used = 0

    def __enter__(self) -> CountedJobs:
        init, result = PlanJob.__init__, PlanJob.result

        def begin(job: PlanJob, *args: Any) -> None:
            self.begun += 1
            init(job, *args)

        def use(job: PlanJob) -> Any:
            self.used += 1
            return result(job)

        self._patches = patch.object(PlanJob, "__init__", begin), patch.object(PlanJob, "result", use)
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._patches:
            one.stop()
