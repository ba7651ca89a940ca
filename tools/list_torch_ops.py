"""Write `docs/reference/torch_ops.md`: what runs each op of PyTorch's own table in a cell. This takes minutes."""

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
