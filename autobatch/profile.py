"""Where the time of calls went: milliseconds and bytes per stage and per batch, as a table and as a trace.

While a profile is taken, the clock of each call keeps the spans of its stages, and the backend tells when each batch is
done (`autobatch.executor.Timer`): one reading of the clock and one list entry each. Off, it costs a test for each.
The trace is in Chrome's format, which Perfetto (ui.perfetto.dev) opens; calls hold stages, and these hold batches.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

from autobatch.checkpoint import write_whole
from autobatch.errors import DataError
from autobatch.graph import Graph, Types
from autobatch.plan import Batch, Plan, PlannedCell
from autobatch.program import NODE
from autobatch.report import Step

N_CALLS = 100
STAGES = ("record", "lookup", "merge", "rewrite", "schedule", "place", "forward", "backward", "weights")
