"""Models that come with autobatch, their data, and the way to a user's own."""

from autobatch.models.registry import MODELS, find_model
from autobatch.models.spec import ModelSpec

__all__ = ["MODELS", "ModelSpec", "find_model"]
