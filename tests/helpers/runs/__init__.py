"""Ways to run things in tests: as commands, as programs, planned only, compiled for GPUs."""
