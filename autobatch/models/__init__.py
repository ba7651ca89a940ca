"""The models included in autobatch, their data, and the lookup of models by name."""

from autobatch.models.registry import MODELS, find_model
from autobatch.models.spec import ModelSpec

__all__ = ["MODELS", "ModelSpec", "find_model"]
