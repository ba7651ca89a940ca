"""What tests share, in folders by what it is.

`models`, `programs` and `data` are what tests run; `twins` and `zoo` have the same models in PyTorch to compare with.
`checkers` say whether results are right, `counters` what they cost, `fakes` stand in for devices, backends and clocks,
and `runs` has the ways in which tests run things.
"""
