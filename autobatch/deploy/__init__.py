"""From training to use: a trained model in one file, whose cells run without the classes that trained them.

`writing` records a function over examples, and writes the programs of the cells that it called, with all parameters.
`loading` makes a module of such a file. Its cells are `loaded`: where one is traced, its program is appended as it was
written. `encoding` says what of a cell is JSON, and how.
"""
