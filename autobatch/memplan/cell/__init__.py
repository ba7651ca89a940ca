"""The layout inside a cell: which values are adjacent, and which residuals are saved or rematerialised."""
