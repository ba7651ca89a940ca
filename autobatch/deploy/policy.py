"""Policies in files of models and of cases: a learned one as the text of its file, a rule by its name."""

from __future__ import annotations

from collections.abc import Mapping

from autobatch import policies
from autobatch.policies import KINDS
from autobatch.policies.files import from_text, to_text
from autobatch.policies.rules.directed import Directed
from autobatch.schedule.schedule import Policy


def describe_policy(policy: Policy, doing: str) -> dict[str, str]:
    """The `text` of a policy that files hold, or the `name` of another; `doing` begins error messages."""
    if isinstance(policy, Directed) and policy.rule in KINDS:
        return {"text": to_text(policy, doing)}
    return {"name": policy.name}


def read_policy(content: Mapping[str, str], doing: str) -> Policy | str:
    """The policy that `describe_policy` described, or its name; PolicyError if a text is none of a policy."""
    return from_text(content["text"], policies.KINDS, doing) if "text" in content else content["name"]
