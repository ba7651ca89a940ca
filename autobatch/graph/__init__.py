"""Dataflow graphs of a mini-batch in one array of ints, their checker and builder, and the passes over them."""
