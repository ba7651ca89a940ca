"""Write `docs/reference/torch_ops.md`: for each op of torch's `op_db`, what runs it in a cell. Takes minutes."""

from __future__ import annotations

import torch

from checkout import ROOT
from torch_ops.page import list_torch_ops
from torch_ops.running import run
from torch_ops.samples import select

PAGE = ROOT / "docs" / "reference" / "torch_ops.md"
VERSION = torch.__version__.partition("+")[0]

if __name__ == "__main__":
    PAGE.write_text(list_torch_ops(run(select([]), ["auto"], explained=True), VERSION), encoding="utf-8")
