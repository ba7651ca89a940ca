"""How tests run things: in several ways, as commands, as programs, planned only, compiled for GPUs."""
