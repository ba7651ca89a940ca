"""Parameters and modules, stacks of parameters, dense and sparse gradients, and checkpoint files."""
