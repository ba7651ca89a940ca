"""Parameters and the modules that hold them; stacks of parameters, gradients, sparse gradients of tables, files."""
