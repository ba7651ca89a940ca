"""All errors that a caller can cause, under one root class.

A message names the operation, the two values that disagree, and a remedy.
"""


class AutobatchError(Exception):
    """Base class of all errors that autobatch raises deliberately."""

    _line = ""  # the part of the message that quotes a line of the user's code, which servers leave out


class ShapeError(AutobatchError):
    """Shapes that an operation cannot combine."""


class GraphError(AutobatchError):
    """A program or graph that cannot be recorded, traced or merged."""


class ScheduleError(AutobatchError):
    """A sequence of batches that is not a schedule of its graph."""


class PlanError(AutobatchError):
    """A placement that loses, overwrites or invents a value."""


class DataError(AutobatchError):
    """Input data that cannot be read, or lies outside its range."""


class NumericError(AutobatchError):
    """A value that is not finite where a finite one is needed."""


class PolicyError(AutobatchError):
    """A batching policy that is unknown, broken or made for another model."""


class BackendError(AutobatchError):
    """A backend that is unknown or that this machine cannot run."""


class CheckpointError(AutobatchError):
    """Stored parameters that cannot be read, or do not fit the model."""


class DistributedError(AutobatchError):
    """A group of training processes in which one has ended or diverges from the others."""


class ServingError(AutobatchError):
    """A request that a server cannot accept, or cannot finish in time."""


class DeadlineError(ServingError):
    """A request whose deadline passed before it was done."""
