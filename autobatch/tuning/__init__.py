"""Choose by measurement among ways to run mini-batches that differ in time, not in results.

variant    the choices, and how they are written and read
trial      variants in turn on whole mini-batches; and a watch over threads that were chosen
store      decisions in the user's cache
tuner      all of it for one function: what `ab.batched(threads="auto")` and `tune="auto"` use
"""

from autobatch.tuning.trial import Trial, Watch
from autobatch.tuning.tuner import Tuning, make_tuning
from autobatch.tuning.variant import Variant

__all__ = ["Trial", "Tuning", "Variant", "Watch", "make_tuning"]
