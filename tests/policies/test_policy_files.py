"""Test policy files: loaded policies are bit-identical, and everything else is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.errors import PolicyError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.fsm.table import ENCODINGS
from autobatch.policies.learning import learn
from autobatch.policies.rules.directed import Direction
from autobatch.policies.rules.network import OVERALL_FEATURES, TYPE_FEATURES, Deep, Network
from autobatch.policies.rules.rules import Score, Weights
from helpers.checkers.machine_tables import rows_of
from helpers.programs.graphs import LETTERS, random_dag, random_tree
from helpers.runs.ways import each


def trees(n: int = 3) -> list[Graph]:
    return [merge_graphs([random_tree(20 * i + j) for j in range(10)]) for i in range(n)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.policy.json"


@pytest.fixture
def saved(path: Path) -> Path:
    learn(trees(), episodes=60).save(path)
    return path


@each("machine", [Machine(e, c, m) for e in ENCODINGS for c in (False, True) for m in (False, True)])
@each("direction", ["forward", "backward", "both"])
def test_what_is_saved_is_what_is_loaded(machine: Machine, direction: Direction, path: Path) -> None:
    graphs = [random_dag(i, n_nodes=60) for i in range(4)]
    policy = learn_fsm(
        [to_dag(g) for g in graphs[:2]], TypeNames.of(LETTERS), machine, QLearning(episodes=30, learning_rate=0.37),
        direction=direction, compact=direction == "both", seed=5,
    )  # fmt: skip
    policy.save(path)
    loaded = policies.load(path)
    assert isinstance(loaded, Fsm)
    for way in WAYS:
        n = int(policy.tables[way].n_states[0])
        one, other = policy.tables[way], loaded.tables[way]
        assert [list(rows_of(table).items()) for table in (one,)] == [list(rows_of(other).items())]
        assert one.values[:n].tobytes() == other.values[:n].tobytes()
    assert (loaded.machine, loaded.types, loaded.name) == (policy.machine, policy.types, policy.name)
    assert (loaded.weights, loaded.about) == (policy.weights, policy.about)
    for graph in graphs:
        first, second = policy.schedule(graph), loaded.schedule(graph)
        assert (first.order.tolist(), first.batch_type.tolist()) == (second.order.tolist(), second.batch_type.tolist())
        assert policy.unseen_share == loaded.unseen_share
    before = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == before


def test_a_rule_is_saved_with_its_weights(path: Path) -> None:
    rule = Score("backward", compact=True, weights=Weights(0.1, 1 / 3, -2.0, 1e-300))
    rule.about["seed"] = 7
    rule.save(path)
    loaded = policies.load(path)
    assert isinstance(loaded, Score)
    assert (loaded.name, loaded.weights, loaded.about) == ("score+backward+compact", rule.weights, {"seed": 7})


def test_a_network_is_saved_with_its_weights(path: Path) -> None:
    shapes = [(3, len(TYPE_FEATURES)), (3,), (3, 3), (3, 3), (3, len(OVERALL_FEATURES)), (3,), (3,)]
    rng = np.random.default_rng(0)
    network = Network(*(rng.standard_normal(shape) for shape in shapes))
    Deep(network, direction="both", compact=True, about={"seed": 7}).save(path)
    loaded = policies.load(path)
    assert isinstance(loaded, Deep)
    assert (loaded.name, loaded.about) == ("network+both+compact", {"seed": 7})
    assert [array.tobytes() for array in loaded.network] == [array.tobytes() for array in network]


def test_a_file_reads_well(saved: Path) -> None:
    """One line per state, no other long lines, and types by name."""
    text = saved.read_text()
    rows = [line for line in text.splitlines() if '"ready": [' in line]
    policy = policies.load(saved)
    assert isinstance(policy, Fsm)
    assert len(policy.machines) == 2
    assert len(rows) == sum(int(tables[way].n_states[0]) for _, tables in policy.machines for way in WAYS)
    assert max(len(line) for line in text.splitlines() if line not in rows) <= 120
    row = json.loads(rows[0].rstrip(","))
    assert row["ready"] == ["leaf"] == row["critical"] == list(row["values"])
    assert [kind["name"] for kind in json.loads(text)["types"]] == ["leaf", "inner_a", "inner_b", "output", "loss"]


def test_a_file_laid_out_anew_is_the_same_policy(saved: Path) -> None:
    policy = policies.load(saved)
    saved.write_text(json.dumps(json.loads(saved.read_text()), indent=7))
    assert policies.load(saved).about == policy.about


def refusal(path: Path) -> str:
    """Return the message that refuses a file, without the prefix that names the file."""
    with pytest.raises(PolicyError) as error:
        policies.load(path)
    message = str(error.value)
    assert message.startswith(f"cannot load policy {str(path)!r}: ")
    assert message.endswith(".")
    assert "\n" not in message
    return message.removeprefix(f"cannot load policy {str(path)!r}: ")


def test_a_truncated_file_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for length in [0, 1, *range(100, len(content) - 2, 211), len(content) - 3]:
        saved.write_bytes(content[:length])
        assert "truncated or not JSON" in refusal(saved)


def test_an_edited_file_is_refused(saved: Path) -> None:
    """Digits of learned values, types and settings are changed."""
    text = saved.read_text()
    places = [m.start() for m in re.finditer(r"[0-9]", text)][70::31]
    places += [text.index("true"), text.index("both"), text.index("inner_a"), text.index('"leaf"')]
    for place in places:
        letter = text[place]
        changed = str(9 - int(letter)) if letter.isdigit() else {"t": "f", "b": "d", "i": "o", '"': '"k'}[letter]
        edited = text[:place] + changed + text[place + 1 :]
        saved.write_text(edited.replace("frue", "false"))
        assert "digest" in refusal(saved)
    assert len(places) > 20


def test_a_file_of_another_version_is_refused(saved: Path) -> None:
    saved.write_text(saved.read_text().replace('"version": 1', '"version": 2'))
    assert "version must be 1, got 2" in refusal(saved)


@pytest.mark.parametrize("content", ["{}", "[]", "7", '"autobatch policy"', '{"format": "autobatch checkpoint"}'])
def test_a_foreign_file_is_refused(content: str, path: Path) -> None:
    path.write_text(content)
    assert "JSON but not a policy" in refusal(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"# a policy", b"[" * 100_000, b"\x00" * 100])
def test_what_is_no_json_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert "truncated or not JSON" in refusal(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a directory; give a file that policy.save wrote."
    assert refusal(tmp_path / "x.json") == "no such file or directory; give a file that policy.save wrote."


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda content: content.pop("tables"),
    lambda content: content.pop("weights"),
    lambda content: content.update(kind="network"),
    lambda content: content.update(kind=None),
    lambda content: content.update(types=[]),
    lambda content: content.update(types=3),
    lambda content: content.update(about=[1]),
    lambda content: content.update(direction="sideways"),
    lambda content: content["machine"].update(encoding="sorted"),
    lambda content: content["machine"].update(depth=3),
    lambda content: content["weights"].update(ready="a lot"),
    lambda content: content["weights"].update(ready=float("inf")),
    lambda content: content["types"][0].pop("name"),
    lambda content: content["types"].pop(),
    lambda content: content["tables"].pop("backward"),
    lambda content: content.pop("rivals"),
    lambda content: content["rivals"][0].pop("machine"),
    lambda content: content["rivals"][0]["tables"].pop("forward"),
    lambda content: content["tables"]["forward"].append(content["tables"]["forward"][0]),
    lambda content: content["tables"]["forward"][0].update(ready=["leaves"]),
    lambda content: content["tables"]["forward"][0].update(values={"leaf": [1.0]}),
    lambda content: content["tables"]["forward"][0].update(values={"leaf": [1.0, 10**12]}),
    lambda content: content["tables"]["forward"][0].update(values={"leaf": "high"}),
    lambda content: content["tables"]["forward"][0].pop("critical"),
]


@each("change", CHANGES)
def test_content_that_makes_no_policy_is_refused(change: Callable[[dict[str, Any]], object], saved: Path) -> None:
    """As another program might write it, with a valid digest."""
    written = saved.read_text()
    content = json.loads(written)
    marks = {name: content.pop(name) for name in ("format", "version", "digest")}
    change(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    marks["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    saved.write_text(json.dumps({**marks, **content}))
    assert "not a valid policy (" in refusal(saved)
    saved.write_text(written)


def test_what_cannot_be_saved_leaves_what_was_there(saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    policy = policies.load(saved)
    policy.about["data"] = {1, 2}
    with pytest.raises(PolicyError, match=r"its `about` must be JSON values \(.*set"):
        policy.save(saved)
    twins = Fsm(Machine(), TypeNames(("a", "a"), ("a(x)", "a(y)")), {})
    with pytest.raises(PolicyError, match="different names, got a, a"):
        twins.save(saved)
    assert saved.read_bytes() == before
    with pytest.raises(PolicyError, match="'agenda' has learned nothing"):
        policies.Agenda().save(saved)
    assert saved.read_bytes() == before
    with pytest.raises(PolicyError, match="no such file or directory"):
        policies.Score().save(tmp_path / "none" / "x")
    assert [file.name for file in tmp_path.iterdir()] == [saved.name]


def test_a_path_is_a_policy(saved: Path, tmp_path: Path) -> None:
    policy = policies.get(str(saved))
    assert isinstance(policy, Fsm)
    assert policy.name == "fsm+both+compact"
    plain = saved.rename(tmp_path / "plain")
    assert policies.get(str(plain)).name == policy.name
    with pytest.raises(PolicyError, match=r"^cannot load policy 'none.json': no such file"):
        policies.get("none.json")
    with pytest.raises(PolicyError, match="path of a saved policy, got 'none'"):
        policies.get("none")


def test_policies_are_an_attribute_of_the_package() -> None:
    assert ab.policies is policies
    with pytest.raises(
        AttributeError, match=r"module 'autobatch' has no attribute 'polices'; did you mean ab.policies\?"
    ):
        ab.polices  # type: ignore[attr-defined]  # noqa: B018


def test_a_run_goes_on_with_another_policy_only_if_asked_to(saved: Path, tmp_path: Path) -> None:
    graph = random_dag(0, n_nodes=30)
    with pytest.raises(PolicyError, match=r"learned for the types leaf, .* but this model has a, b, c, d; learn"):
        policies.get(str(saved)).schedule(graph)
    policy = policies.get(f"{saved} or score+both")
    assert policy.name == "fsm+both+compact"
    assert policy.schedule(trees()[0]).n_batches > 0
    assert policy.unseen_share is not None
    with pytest.warns(UserWarning, match=r"Using score\+both instead\.$"):
        schedule = policy.schedule(graph)
    assert policy.name == "score+both"
    assert policy.unseen_share is None
    assert schedule.batch_type.tolist() == policies.get("score+both").schedule(graph).batch_type.tolist()
    assert policy.schedule(graph).n_batches == schedule.n_batches  # without a further warning
    with pytest.warns(UserWarning, match=r"^cannot load policy .*: no such file .* Using agenda instead\.$"):
        assert policies.get(f"{tmp_path / 'none.json'} or agenda").name == "agenda"
    with pytest.raises(PolicyError, match="got 'agneda'"):
        policies.get(f"{saved} or agneda")


def test_names_need_not_be_identifiers(path: Path) -> None:
    types = NamedTypes(("a > b", "a!", "a", "b*"))
    graph = random_dag(0, n_nodes=50, types=types)
    for encoding in ENCODINGS:
        policy = learn([graph], encoding=encoding, episodes=20)
        policy.save(path)
        loaded = policies.load(path)
        assert isinstance(policy, Fsm)
        assert isinstance(loaded, Fsm)
        assert [machine for machine, _ in loaded.machines] == [machine for machine, _ in policy.machines]
        for (_, one), (_, other) in zip(loaded.machines, policy.machines, strict=True):
            assert [rows_of(one[way]) for way in WAYS] == [rows_of(other[way]) for way in WAYS]
    assert np.array_equal(loaded.schedule(graph).order, policy.schedule(graph).order)
