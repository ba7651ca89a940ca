"""The plan of a mini-batch: where each node's rows lie; its checker, cache, and the limit on memory."""
