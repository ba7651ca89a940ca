"""Register the environments of `autobatch.policies.rl.env` in Gymnasium, on import.

`gymnasium.make("autobatch.policies.env:autobatch/Batching-v0", dags=...)` imports it by itself.
"""

from __future__ import annotations

from autobatch.policies.rl.env import Batching, BatchingVector, register

__all__ = ["ID", "Batching", "BatchingVector"]

ID = "autobatch/Batching-v0"

register(ID)
