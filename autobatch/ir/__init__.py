"""The program of a cell: values, types of nodes, keys of arguments, layouts of its columns, and the passes over it."""
