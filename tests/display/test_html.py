"""Test what objects show in a notebook: well-formed HTML without scripts, with escaped content."""

from __future__ import annotations

import copy
import pickle
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.display.batches import MOST_BATCHES, MOST_COLUMNS, MOST_NODES
from autobatch.display.html import FONT, LETTER, fold, write_fixed, write_lines, write_table
from autobatch.display.states import BACK, DOT, MOST_LETTERS, Drawing, DrawnState
from autobatch.graph.build import merge_graphs
from autobatch.policies.fsm.drawing import PER_INCH, SHARPNESS
from autobatch.policies.fsm.machine import Fsm
from autobatch.policies.fsm.walk import MOST_DRAWN
from autobatch.policies.learning import learn
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Schedule
from helpers.checkers.refusals import Model
from helpers.programs.graphs import chain, random_dag, random_tree
from helpers.runs.ways import each

SVG = "{http://www.w3.org/2000/svg}"
SPECIAL = "<b>&\"'</b>"


def parse(html: str) -> ET.Element:
    return ET.fromstring(f"<div>{html}</div>")


def shown(thing: Any) -> ET.Element:
    """Return a thing's elements, after checking that nothing can run or be fetched."""
    root = parse(thing._repr_html_())
    assert {element.tag.removeprefix(SVG) for element in root.iter()}.isdisjoint({"script", "style", "img", "link"})
    return root


def words(root: ET.Element) -> set[str]:
    return set(" ".join(root.itertext()).split())


def in_picture(root: ET.Element, tag: str) -> list[ET.Element]:
    return list(root.iter(SVG + tag))


def letters(*sizes: int) -> Schedule:
    """Return a schedule of batches with these sizes, of alternating types 0 and 1."""
    types = np.arange(len(sizes), dtype=np.int32) % 2
    return Schedule(types, np.cumsum([0, *sizes]).astype(np.int32), np.arange(sum(sizes), dtype=np.int32))


def test_tables_and_lines_are_escaped() -> None:
    html = write_lines([SPECIAL]) + write_table((SPECIAL, "n"), [(SPECIAL, 1)]) + fold(SPECIAL, write_fixed(SPECIAL))
    assert "".join(parse(html).itertext()) == 2 * SPECIAL + "n" + SPECIAL + "1" + 2 * SPECIAL


@each("training", (False, True))
def test_a_report_shows_what_it_prints_and_its_schedule(model: Model, training: bool) -> None:
    report = ab.batched(model.loss).explain([1, 2, 3], training=training, memory=True)
    root = shown(report)
    assert set(str(report).split()) <= words(root)
    assert len(in_picture(root, "g")) == report.batches


def test_a_profile_shows_what_it_prints(model: Model) -> None:
    profile = ab.batched(model.loss).profile([1, 2, 3])
    assert set(str(profile).split()) <= words(shown(profile))


def test_a_picture_has_a_title_above(model: Model) -> None:
    picture = ab.batched(model.loss).explain([1, 2]).picture
    assert set(picture.title.split()) <= words(shown(picture))


def test_a_small_schedule_shows_each_node_in_its_batch() -> None:
    schedule = make_schedule(random_tree(3), ab.policies.get("score"))
    root = shown(schedule)
    batches = [[box.text for box in group.iter(SVG + "text")] for group in in_picture(root, "g")]
    assert batches == [[str(node) for node in nodes] for _, nodes in schedule]


def test_types_are_named_and_names_escaped() -> None:
    schedule = letters(1, 2)
    assert {"type", "0"} <= words(parse(schedule.draw()))
    assert f"batch 1: {SPECIAL} x 2" in "\n".join(parse(schedule.draw(["a", SPECIAL])).itertext())


def test_a_batch_of_a_large_schedule_is_as_high_as_it_is_large() -> None:
    root = shown(letters(MOST_NODES, 10, 100, 20))
    heights = [float(box.attrib["height"]) for box in in_picture(root, "rect")]
    assert heights == pytest.approx([30, 15, 20, 30])
    assert {"150", "10", "100", "20"} <= words(root)


def test_a_long_schedule_shows_the_largest_of_neighbouring_batches() -> None:
    sizes = [1] * (10 * MOST_COLUMNS)
    sizes[5005 % len(sizes)] = 7
    root = shown(letters(*sizes))
    assert len(in_picture(root, "rect")) == 2 * MOST_COLUMNS
    assert sum("x 7" in (hint.text or "") for hint in in_picture(root, "title")) == 1


@each("n_batches", (0, 1, MOST_BATCHES, MOST_BATCHES + 1, MOST_COLUMNS, MOST_COLUMNS + 1))
def test_schedules_of_any_length_are_drawn(n_batches: int) -> None:
    root = shown(letters(*[1] * n_batches))
    assert in_picture(root, "g") or not n_batches
    assert float(in_picture(root, "svg")[0].attrib["width"]) < 1000


@each("name", [*ab.policies.names(), "score+both+compact"])
def test_a_policy_says_what_it_is(name: str) -> None:
    policy = ab.policies.get(name)
    assert policy.name in words(shown(policy))
    assert repr(policy) == f"{type(policy).__name__}({policy.name!r})"


def test_a_rule_shows_its_weights() -> None:
    assert {"critical", "0.55", "height", "0.66"} <= words(shown(ab.policies.get("score")))


def learned() -> Fsm:
    return learn([merge_graphs([random_tree(seed) for seed in range(6)])], episodes=60)


def test_a_learned_machine_shows_its_states_and_moves() -> None:
    policy = learned()
    assert policy.direction == "both"
    root, n_states, n_moves = shown(policy), 0, 0
    dag = policy.to_known(merge_graphs([random_tree(seed) for seed in range(6)]))
    for way in policy.ways:
        walk = policy.follow(way, [dag])
        n_states, n_moves = n_states + len(walk.visits), n_moves + len(walk.moves)
        assert all({*state.split(), walk.runs[state], str(n)} <= words(root) for state, n in walk.visits.items())
    assert len(in_picture(root, "circle")) == n_states
    hints = [hint.text or "" for hint in in_picture(root, "title")]
    assert sum(" times" in hint for hint in hints) == n_moves


def test_a_machine_is_shown_on_what_it_planned_last() -> None:
    policy = learn([random_dag(0)], episodes=60)
    assert "rule" not in words(shown(policy)), "the legend explains only what is drawn"
    policy.schedule(random_dag(3, n_nodes=60))
    root = shown(policy)
    assert "rule" in words(root), "it has states that the machine has not met"
    assert any(circle.attrib["fill"] == "none" for circle in in_picture(root, "circle"))


def test_of_many_states_the_most_visited_are_drawn() -> None:
    policy = learn([random_dag(0, n_nodes=300)], episodes=60, direction="forward")
    walk = policy.follow("forward", [policy.to_known(random_dag(0, n_nodes=300))])
    assert len(walk.visits) > MOST_DRAWN
    root = shown(policy)
    assert len(in_picture(root, "circle")) == MOST_DRAWN
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert rows[1:] == [[state, walk.runs[state], str(walk.visits[state])] for state in walk.in_order()]
    shown_visits = sum(n for _, n in walk.visits.most_common(MOST_DRAWN))
    assert f"{shown_visits / walk.visits.total():.0%}" in words(root)


@each("take", (copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))))
def test_a_copy_shows_what_it_runs_in_each_state(take: Any) -> None:
    again = take(learned())
    root = shown(again)
    assert not in_picture(root, "svg")
    assert sum(1 for _ in root.iter("tr")) == sum(1 + len(again.choices(way)) for way in again.ways)


def test_a_loaded_machine_draws_what_it_plans(tmp_path: Path) -> None:
    learned().save(tmp_path / "x.policy.json")
    policy = ab.policies.load(tmp_path / "x.policy.json")
    assert not in_picture(shown(policy), "svg")
    policy.schedule(random_tree(1))
    assert len(in_picture(shown(policy), "svg")) == 2


def test_a_chain_is_a_machine_of_its_own_moves() -> None:
    policy = learn([chain("a", "b", "a", "b")], episodes=50, direction="forward", rival=False)
    walk = policy.follow("forward", [policy.to_known(chain("a", "b", "a", "b"))])
    assert walk.moves == {("a (critical)", "b (critical)"): 2, ("b (critical)", "a (critical)"): 1}
    back = [path for path in in_picture(shown(policy), "path") if path.attrib.get("stroke") == BACK]
    assert len(back) == 1


def make_drawing(n: int, length: int) -> Drawing:
    """Make a drawing of n states with long descriptions, and three transitions from each."""
    rng = np.random.default_rng(n)
    states = [
        DrawnState("w" * int(rng.integers(1, length)), (k, "m" * int(rng.integers(1, length))), 10**k, k % 3 > 0)
        for k in range(n)
    ]
    return Drawing("ready types", states, {(k, int(b)): 1 + k for k in range(n) for b in rng.integers(0, n, 3)})


def count_overlaps(boxes: list[tuple[float, float, float, float]]) -> int:
    """Count the pairs of boxes (left, top, right, bottom) that overlap."""
    return sum(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
        for number, a in enumerate(boxes)
        for b in boxes[:number]
    )


@each("n", [1, 2, 7, 30])
@each("length", [8, 200])
def test_texts_of_a_machine_do_not_overlap(n: int, length: int) -> None:
    svg = in_picture(parse(make_drawing(n, length).svg()), "svg")[0]
    boxes = list[tuple[float, float, float, float]]()
    for text in svg.iter(SVG + "text"):
        width, x, y = LETTER * len(text.text or ""), float(text.attrib["x"]), float(text.attrib["y"])
        left = x - width if text.attrib.get("text-anchor") == "end" else x
        boxes.append((left, y - FONT, left + width, y))
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in svg.iter(SVG + "circle")]
    assert len(dots) == n
    assert count_overlaps(boxes + [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots]) == 0
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    assert all(box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height for box in boxes)


@each("n", [1, 30])
def test_texts_of_a_machine_in_a_file_do_not_overlap(n: int) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="draws with it")
    canvas: Any = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
    drawing = make_drawing(n, 200)
    width, height = drawing.size
    figure = figures.Figure(figsize=(width / PER_INCH, height / PER_INCH), dpi=SHARPNESS * PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    drawing.plot(axes)
    canvas(figure).draw()
    boxes = [text.get_window_extent().extents / SHARPNESS for text in axes.texts]
    assert len(boxes) == 3 * (n + 1) + len(drawing.legend())
    assert count_overlaps(boxes) == 0
    assert all(box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height for box in boxes)


def test_names_with_dollar_signs_are_drawn_as_they_are() -> None:
    """Matplotlib would read a text between two dollar signs as a formula, and raise an error if it is none."""
    figures = pytest.importorskip("matplotlib.figure", reason="draws with it")
    canvas: Any = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
    drawing = Drawing("$ready^$", [DrawnState("$^$, a_$b", (0, "$run_$"), 1, True)], {})

    def width_of(text: str) -> float:
        axes = figures.Figure().subplots()
        Drawing(text, [DrawnState("a", (0, "b"), 1, True)], {}).plot(axes)
        return float(axes.texts[0].get_window_extent().width)

    figure = figures.Figure()
    axes = figure.subplots()
    drawing.plot(axes)
    canvas(figure).draw()
    assert {"$ready^$", "$^$, a_$b", "$run_$"} <= {text.get_text() for text in axes.texts}
    assert width_of("$ab$") == width_of("xabx") > width_of("ab")


def test_a_long_description_is_cut_and_told_by_a_hint() -> None:
    drawing = Drawing("", [DrawnState("x" * 300, (0, SPECIAL), 1, True)], {})
    root = parse(drawing.svg())
    assert [hint.text for hint in in_picture(root, "title")] == ["x" * 300]
    assert f"{'x' * (MOST_LETTERS - 1)}…" in words(root)
    assert SPECIAL in "".join(root.itertext())
