"""Reports, profiles and plots of calls: their batches, times and memory."""
