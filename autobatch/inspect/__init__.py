"""Reports, profiles and plots of calls: what ran together, how long it took, and why."""
