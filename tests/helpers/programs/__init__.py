"""Cells, programs and graphs to run: drawn at random, of the literature, and a case for every op and guard."""
