"""The plan of a mini-batch: a schedule with a place for every value; its checker, its cache, and a memory limit."""
