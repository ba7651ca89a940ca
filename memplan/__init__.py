"""Placement: where every value of a schedule lives."""

from __future__ import annotations

from autobatch.memplan.pqtree import PQTree

__all__ = ["PQTree"]
