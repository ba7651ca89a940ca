"""Parameters and the modules that hold them: stacks, gradients, rows of gradients of tables, files."""
