"""From Python to graphs: calls of cells are recorded as nodes, and the body of each cell is traced once per type.

A mini-batch passes these modules, in this order:

- `record` runs the user's function over the instances and returns their graph.
- `entries` holds the functions of the native core that record the calls of each cell.
- `forms` defines the call forms that such a function recognizes, and the ints that it logs.
- `handles` defines the values that the function returns in place of numbers.
- `calls` handles all other calls: it reads them, traces the cell if the type is new, and adds the form to the function.
  `lifting` turns arrays and parameters among the arguments into values.
- The core turns the log into the graph; `decode` has the codes that tell it how. `results` records the structure of
  what the user's function returned, and puts computed rows back into it.

The core's part is `native/record/`: calls of known forms, the log, handles and decoding.

Users mark functions with `cell`, and define recursions over trees, DAGs and sequences with `fold` and `scan`. `tracer`
turns a body into a program, once per type; `traces` keeps the programs, and traces a body again when something that it
read has changed. `tracking` records what a body reads (`hooks`, `scanning`) and refuses random numbers and clocks
(`draws`); `guards` compares what was read with the present values; `live` holds numbers that change.
"""
