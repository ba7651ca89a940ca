"""Cells, programs and graphs to run: random ones, published ones, and a case for every op and guard."""
