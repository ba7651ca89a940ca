"""Shared code of the tests.

`models`, `programs` and `data` are the inputs of tests; `twins` and `zoo` have reference models in PyTorch. `checkers`
check results, `counters` count costs, `fakes` stand in for devices, backends and clocks, and `runs` has the ways in
which tests run things.
"""
