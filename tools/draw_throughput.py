"""Draw the figure of the README, `docs/throughput.png`, from the records of `experiments/against_torch.py`."""

from __future__ import annotations

import json

from matplotlib.figure import Figure

from checkout import ROOT

RESULTS, TARGET = ROOT / "experiments" / "results", ROOT / "docs" / "throughput.png"
MODELS = {
    "tree-lstm": "Tree-LSTM over trees",
    "bilstm-tagger": "BiLSTM over chains",
    "lattice-lstm": "LSTM over lattices",
}
SETTING = {"dim": 64, "batch_size": 64, "n_threads": 1}
ONE, OURS = "PyTorch, one at a time", "autobatch cpu, recorded graphs"
COLORS = ("#b0b0b0", "#7a7a7a", "#1f77b4")


def rates_of(model: str) -> dict[str, float]:
    """Instances trained a second: PyTorch one at a time, the best that is batched by hand, and autobatch."""
    record = json.loads((RESULTS / f"peers-{model}.json").read_text())
    (setting,) = (s for s in record["figures"]["settings"] if all(s[name] == value for name, value in SETTING.items()))
    rates = {name: speed["train"] for name, speed in setting["instances_per_s"].items()}
    by_hand = {name: rate for name, rate in rates.items() if name.startswith("PyTorch") and "ahead" not in name}
    return {ONE: rates[ONE], "PyTorch, batched by hand": max(by_hand.values()), "autobatch": rates[OURS]}


def main() -> None:
    """Draw a panel for each model."""
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots(1, len(MODELS))
    for ax, (model, title) in zip(axes, MODELS.items(), strict=True):
        rates = rates_of(model)
        bars = ax.barh([*rates], [*rates.values()], color=COLORS)
        ax.bar_label(bars, [f"{rate:,.0f}" for rate in rates.values()], padding=3)
        ax.set_title(title)
        ax.set_xlim(right=max(rates.values()) * 1.25)
        ax.set_xticks([])
        ax.invert_yaxis()
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        if ax is not axes[0]:
            ax.set_yticklabels([])
    figure.supxlabel("instances trained a second; width 64, mini-batches of 64, one thread")
    figure.savefig(TARGET, dpi=130)


if __name__ == "__main__":
    main()
