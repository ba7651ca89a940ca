"""From Python to graphs: calls of cells are recorded as nodes, and the body of each cell is traced once per type.

A mini-batch passes these modules, in this order:

- `record` runs the user's function over the instances, and gives their graph.
- `entries`: meanwhile a function stands in the place of each cell of the module; `generated` writes it.
- `forms`: the ways of calling a cell that this function recognises, and the ints that it logs.
- `handles`: what it returns in place of numbers.
- `calls`: all other calls, which are read, traced if their type is new, and recognised from then on; `lifting` makes
  values of the arrays and parameters among their arguments.
- `decode`: from the log to the graph. `results`: what the function returned, and the way back from computed rows.

Users mark functions with `cell`. `tracer` turns a body into a program, once per type; `traces` keeps the programs, and
traces again when something that a body read has changed. `watching` notes what a body reads (`hooks`, `scanning`) and
refuses what cannot be noted (`draws`); `guards` compares that with what is there now; `live` holds numbers that change.
"""
