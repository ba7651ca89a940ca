"""The intermediate representation: programs of cells, node types, keys of arguments, layouts of columns, and passes."""
