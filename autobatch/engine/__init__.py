"""The engine: plans the mini-batches of one function and runs them, in rounds where programs wait for values."""
