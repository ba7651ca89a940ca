"""Policies in files of models and cases: a learned policy as the text of its file, others by name."""

from __future__ import annotations

from collections.abc import Mapping

from autobatch import policies
from autobatch.policies import KINDS
from autobatch.policies.files import from_text, to_text
from autobatch.policies.rules.directed import Directed
from autobatch.schedule.schedule import Policy


def describe_policy(policy: Policy, doing: str) -> dict[str, str]:
    """Return the `text` of a learned policy, or the `name` of another; `doing` starts error messages."""
    if isinstance(policy, Directed) and policy.rule in KINDS:
        return {"text": to_text(policy, doing)}
    return {"name": policy.name}


def read_policy(content: Mapping[str, str], doing: str) -> Policy | str:
    """Return the policy that `describe_policy` described, or its name; raise a PolicyError for a malformed text."""
    return from_text(content["text"], policies.KINDS, doing) if "text" in content else content["name"]
