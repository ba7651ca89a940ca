"""The machine and the process: cache folders, files, the processor, locks and background compilation."""
