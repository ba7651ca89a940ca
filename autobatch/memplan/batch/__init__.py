"""The layout of a mini-batch: where the rows of each type begin, and how long they live."""
