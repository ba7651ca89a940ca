"""Dataflow graphs of mini-batches, each in one array of ints; their builder, checker and passes."""

from __future__ import annotations

from autobatch.graph.build import make_graph, merge_graphs, split_graph
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.graph_check import check_graph

__all__ = ["Graph", "NamedTypes", "check_graph", "make_graph", "merge_graphs", "split_graph"]
