"""The layout inside a cell: which values lie side by side, and what backward saves or computes again."""
