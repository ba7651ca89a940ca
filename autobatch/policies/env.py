"""Register the environment of `autobatch.policies.rl.env` in Gymnasium, on import.

`gymnasium.make("autobatch.policies.env:autobatch/Batching-v0", dags=...)` imports this module by itself. `episodes`
records the graphs of a model, and `Agent` turns a trained agent into a policy.
"""

from __future__ import annotations

from autobatch.policies.rl.agent import Agent, episodes
from autobatch.policies.rl.env import Batching, register

__all__ = ["ID", "Agent", "Batching", "episodes"]

ID = "autobatch/Batching-v0"
"""The name of the environment in Gymnasium."""

register(ID)
