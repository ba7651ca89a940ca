"""From Python to graphs: calls of cells are recorded as nodes, and the body of each cell is traced once per type.

A mini-batch passes these modules, in this order:

- `record` runs the user's function over the instances and returns their graph.
- `entries` holds the native function that records the calls of each cell.
- `forms` defines the call forms that such a function recognizes, and the ints that it logs.
- `handles` defines the values that the function returns in place of numbers.
- `calls` handles all other calls: it reads the arguments, traces the cell if the type is new, and adds the form to the
  function. `wrapping` turns arrays and parameters among the arguments into values.
- The core decodes the log into the graph, by codes that `forms` makes. `results` records the structure of each result
  of the user's function, and puts computed rows back into it.

The native part is `native/record/`: calls of known forms, the log, handles and decoding.

Users mark functions with `cell`, and define recursions over trees, DAGs, sequences and graphs with `fold`, `scan` and
`fold_edges`. `tracer` turns a body into a program, once per type; `traces` keeps the programs, and retraces a body when
something that it read has changed. `tracking` records the reads of a body (`hooks`, `scanning`) and raises an error for
random numbers and clocks; `guards` compares the values read with the present ones, and holds numbers that change.
"""
