"""From Python to graphs: calls of cells are recorded as nodes, and the body of each cell is traced once per type.

A mini-batch passes these modules, in this order:

- `record` runs the user's function over the instances and returns their graph.
- `entries` replaces each cell of the module by a function for the time of recording; `generated` writes that function.
- `forms` defines the call forms that the function recognises, and the ints that it logs.
- `handles` defines the values that the function returns in place of numbers.
- `calls` handles all other calls: it reads them, traces the cell if the type is new, and adds the form to the function.
  `lifting` turns arrays and parameters among the arguments into values.
- `decode` turns the log into the graph. `results` records the structure of what the user's function returned, and puts
  computed rows back into it.

Users mark functions with `cell`. `tracer` turns a body into a program, once per type; `traces` keeps the programs, and
traces a body again when something that it read has changed. `tracking` records what a body reads (`hooks`, `scanning`)
and refuses random numbers and clocks (`draws`); `guards` compares what was read with the present values; `live` holds
numbers that change.
"""
