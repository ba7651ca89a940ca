"""Lay out `.types/autobatch` as links, so that mypy sees the package as it installs.

The editable install maps `autobatch.policies` to `policies/` with an import hook, which mypy does not
follow. Here each entry of `autobatch/`, and each folder mapped into it, becomes a link in one folder.
The links are made afresh at every call: it takes no time, and a module that was deleted leaves no trace.
"""

from __future__ import annotations

import shutil

from checkout import ROOT, package_dirs


def main() -> None:
    """Make `.types/autobatch` anew."""
    target = ROOT / ".types" / "autobatch"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    folders = package_dirs()
    for entry in folders.pop("autobatch").iterdir():
        if entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)
    for package, folder in folders.items():
        (target / package.removeprefix("autobatch.")).symlink_to(folder)


if __name__ == "__main__":
    main()
