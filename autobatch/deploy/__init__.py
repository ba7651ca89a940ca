"""Export a trained model to one file, whose cells run without the classes that trained them.

`writing` records a function over examples, and writes the programs of the cells that it called, with all parameters.
`loading` makes a module from such a file. Its cells are `loaded`: tracing one appends its stored program. `encoding`
converts programs and keys of cells to JSON and back.
"""
