"""Plan and run the mini-batches of one function, in rounds where programs wait for values."""
