"""Write policies to files and read them: JSON with one state of the machine per line and types by name.

    {"ready": ["leaf", "merge"], "critical": ["leaf"], "values": {"leaf": [-3.25, 40], "merge": [-4.0, 7]}}

In this state leaves and merges are ready (ranked in this order by the encoding "sort"), and leaf is critical. Running
the leaves has an expected return of -3.25, after 40 updates of that value. A digest of the content detects edited
files. To change a policy by hand, load it, change its tables, and save it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from autobatch.errors import PolicyError
from autobatch.system.cache import UNREADABLE
from autobatch.system.files import open_regular, write_whole

FORMAT = "autobatch policy"
VERSION = 1
LINE_WIDTH = 110
ADVICE = "give a file that policy.save wrote"


class Savable(Protocol):
    """A policy that can be saved."""

    rule: ClassVar[str]
    direction: Any
    compact: bool
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the rule and its options."""

    def describe(self) -> dict[str, Any] | None:
        """Return the learned content as JSON values; None if nothing was learned."""


P = TypeVar("P", bound=Savable)


def save_policy(policy: Savable, path: str | os.PathLike[str]) -> None:
    """Write a policy to a file, replacing an existing file only after everything is written.

    Raises:
        PolicyError: as for `to_text`, or the file cannot be written; an existing file then stays unchanged.
    """
    doing = f"cannot save policy {os.fspath(path)!r}"
    text = to_text(policy, doing)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PolicyError(f"{doing}: {reason}; give a file in an existing, writable folder with free space.") from error


def to_text(policy: Savable, doing: str) -> str:
    """Return the text of a policy file; `doing` begins error messages.

    Raises:
        PolicyError: the policy has learned nothing, two types share a name, or a value is not JSON.
    """
    learned = policy.describe()
    if learned is None:
        raise PolicyError(
            f"{doing}: {policy.name!r} has learned nothing to save; create it by name with ab.policies.get instead."
        )
    names = [known["name"] for known in learned.get("types", ())]
    if len(set(names)) < len(names):
        raise PolicyError(f"{doing}: its types must have different names, got {', '.join(names)}; rename one.")
    content: dict[str, Any] = {"kind": policy.rule, "direction": policy.direction, "compact": policy.compact}
    content |= learned
    content["about"] = policy.about
    try:
        # Readers compute the digest from what they parse, where tuples are lists and all keys are strings.
        plain = json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{doing}: its values and its `about` must be JSON values ({error}).") from error
    return f"{_lay_out({'format': FORMAT, 'version': VERSION, 'digest': _digest(plain), **plain})}\n"


def load_policy(path: str | os.PathLike[str], kinds: Mapping[str, Callable[..., P]]) -> P:
    """Load a policy from a file; see `from_text`.

    Raises:
        PolicyError: the file is missing or unreadable, or as for `from_text`.
    """
    doing = f"cannot load policy {os.fspath(path)!r}"
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8")
    except OSError as error:
        raise PolicyError(f"{doing}: {(error.strerror or str(error)).lower()}; {ADVICE}.") from error
    except ValueError as error:
        raise PolicyError(f"{doing}: the file is truncated or not JSON ({error}); {ADVICE}.") from error
    return from_text(text, kinds, doing)


def from_text(text: str, kinds: Mapping[str, Callable[..., P]], doing: str) -> P:
    """Rebuild a policy from the text that `to_text` wrote; `doing` begins error messages.

    Args:
        kinds: by rule, a function that rebuilds a policy from its content, direction and compact.

    Raises:
        PolicyError: the text is truncated, edited, or of another format or version.
    """
    content = _check_content(text, doing)
    try:
        if content["kind"] not in kinds:
            raise ValueError(f"kind must be one of {', '.join(kinds)}, got {content['kind']!r}")
        policy = kinds[content["kind"]](content, content["direction"], bool(content["compact"]))
        policy.about = dict(content["about"])
    except (*UNREADABLE, PolicyError) as error:
        raise PolicyError(f"{doing}: its content is not a valid policy ({error!r}); learn the policy again.") from error
    return policy


def _check_content(text: str, doing: str) -> dict[str, Any]:
    """Parse a text, and check its format, version and digest."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{doing}: the file is truncated or not JSON ({error}); {ADVICE}.") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise PolicyError(f"{doing}: it is JSON but not a policy; {ADVICE}.")
    version = content.pop("version", None)
    if version != VERSION:
        raise PolicyError(
            f"{doing}: the format version must be {VERSION}, got {version!r}; use the version of autobatch that "
            f"wrote it, or learn the policy again."
        )
    if content.pop("digest", None) != _digest(content):
        raise PolicyError(
            f"{doing}: its content was edited, as its digest differs; restore the file that policy.save wrote, or "
            f"load, change and save the policy in Python."
        )
    return content


def _digest(content: Mapping[str, Any]) -> str:
    """Return a digest of the content that does not depend on its layout."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _lay_out(content: Any, indent: int = 0) -> str:
    """Format JSON, keeping every value that fits within `LINE_WIDTH` on one line."""
    line = json.dumps(content, ensure_ascii=False)
    if indent + len(line) <= LINE_WIDTH or not isinstance(content, dict | list) or not content:
        return line
    if isinstance(content, dict) and content.keys() >= {"ready", "values"}:
        return line
    if isinstance(content, list) and all(isinstance(entry, float) for entry in content):
        return line
    pad = " " * (indent + 2)
    if isinstance(content, dict):
        parts = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {_lay_out(v, indent + 2)}" for key, v in content.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _lay_out(v, indent + 2) for v in content) + "\n" + " " * indent + "]"
