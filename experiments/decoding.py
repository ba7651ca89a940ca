"""Measure decoding in rounds, compared with PyTorch and with the same graph known in advance.

The model is an LSTM encoder and a greedy LSTM decoder with attention over all encoder states, which waits for each
word. Sentences and lengths of translations come from `../shared/data/iwslt15`, or are drawn if it does not exist. The
model is untrained, so a translation ends at the length of its reference; ours awaits every word nevertheless. PyTorch
decodes one sentence at a time, and as an expert writes it: a padded mini-batch with masks, in which finished sentences
stay until all have finished. The replayed graph is ours, recorded with the known words, and merged and planned in every
call. Training computes the loss of each word, with awaited words and with the recorded graph. All variants use one
thread and take turns; words are compared first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import autobatch as ab
from autobatch.cli.results import format_table
from harness import DATA, run, take_turns
from records import Findings, Settings

WARM_UP, START = 2, 0
Array = NDArray[Any]


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the model and the mini-batches."""

    dim: int = 256
    words: int = 4000
    batch_size: int = 64
    minibatches: int = 2
    repeats: int = 5


class Pair(NamedTuple):
    """A sentence, and the number of words in its translation."""

    source: Array
    length: int


class Decoder(ab.Module):
    """An LSTM encoder, and an LSTM decoder with attention over all encoder states (Luong et al. 2015)."""

    def __init__(self, words: int, dim: int, rng: np.random.Generator) -> None:
        self.source = ab.Parameter(0.1 * rng.standard_normal((words, dim)))
        self.target = ab.Parameter(0.1 * rng.standard_normal((words, dim)))
        self.encoder = ab.LSTMCell(dim, dim, rng=rng)
        self.decoder = ab.LSTMCell(dim, dim, rng=rng)
        self.combine = ab.Linear(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, words, rng=rng)
        self.zero = np.zeros(dim, np.float32)

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Read a word of the source."""
        return self.encoder(ab.lookup(self.source, word), state)

    @ab.cell
    def step(self, word: int, state: Any, memory: list[Any]) -> Any:
        """Compute the next state and the logits of the next word."""
        h, c = self.decoder(ab.lookup(self.target, word), state)
        context = ab.attend(h, memory, memory)
        return (h, c), self.output(ab.tanh(self.combine(ab.concat((h, context)))))

    @ab.cell
    def word_loss(self, logits: Any, word: int) -> Any:
        return ab.cross_entropy(logits, word)

    def encode(self, source: Array) -> Any:
        """Encode a sentence. Return the last state, and the output of every step."""
        state, memory = (self.zero, self.zero), []
        for word in source.tolist():
            state = self.read(word, state)
            memory.append(state[0])
        return state, memory

    async def translate(self, pair: Pair) -> list[int]:
        """Translate a sentence greedily."""
        state, memory = self.encode(pair.source)
        word, words = START, list[int]()
        while len(words) < pair.length:
            state, logits = self.step(word, state, memory)
            word = int(await ab.value(ab.argmax(logits)))
            words.append(word)
        return words

    async def loss(self, pair: Pair) -> Any:
        """Compute the loss of a translation whose input is its own words."""
        state, memory = self.encode(pair.source)
        word, losses = START, []
        for k in range(pair.length):
            state, logits = self.step(word, state, memory)
            losses.append(self.word_loss(logits, int(pair.source[k % len(pair.source)])))
            word = int(await ab.value(ab.argmax(logits)))
        return ab.sum_n(losses)


class TorchDecoder(torch.nn.Module):
    """The same model in PyTorch, batched by hand."""

    def __init__(self, model: Decoder, words: int, dim: int) -> None:
        super().__init__()
        self.source, self.target = (torch.nn.Parameter(torch.empty(words, dim)) for _ in range(2))
        self.encoder, self.decoder = torch.nn.LSTM(dim, dim, batch_first=True), torch.nn.LSTMCell(dim, dim)
        self.combine, self.output = torch.nn.Linear(2 * dim, dim), torch.nn.Linear(dim, words)
        state = {
            f"{name}_l0" if name.startswith("encoder.") else name: torch.from_numpy(data)
            for name, data in model.state_dict().items()
        }
        self.load_state_dict(state)

    @torch.no_grad()
    def translate(self, pairs: list[Pair]) -> list[list[int]]:
        """Translate sentences until all have finished."""
        lengths = torch.tensor([len(pair.source) for pair in pairs])
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(p.source) for p in pairs], batch_first=True)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.source[padded], lengths, batch_first=True, enforce_sorted=False
        )
        outputs, (h, c) = self.encoder(packed)
        memory, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        is_padding = torch.arange(memory.shape[1])[None] >= lengths[:, None]
        h, c = h[0], c[0]
        word = torch.full((len(pairs),), START)
        ends = [pair.length for pair in pairs]
        found = []
        for _ in range(max(ends)):
            h, c = self.decoder(self.target[word], (h, c))
            scores = torch.bmm(memory, h[:, :, None])[:, :, 0] / h.shape[1] ** 0.5
            weights = torch.softmax(scores.masked_fill(is_padding, -torch.inf), 1)
            context = torch.bmm(weights[:, None], memory)[:, 0]
            logits = self.output(torch.tanh(self.combine(torch.cat((h, context), 1))))
            word = logits.argmax(1)
            found.append(word)
        words = torch.stack(found, 1).tolist()
        return [row[:end] for row, end in zip(words, ends, strict=True)]

    def one_by_one(self, pairs: list[Pair]) -> list[list[int]]:
        """Translate sentences one after the other."""
        return [self.translate([pair])[0] for pair in pairs]


def read_pairs(config: Config, rng: np.random.Generator) -> list[Pair]:
    """Read the sentences of the development set, or draw sentences of 1 to 50 words."""
    n = config.batch_size * config.minibatches
    if not (DATA / "iwslt15").is_dir():
        sizes = rng.integers(1, 51, (n, 2)).tolist()
        return [Pair(rng.integers(1, config.words, m), length) for m, length in sizes]
    lines = [(DATA / "iwslt15" / f"dev.{language}").read_text().splitlines() for language in ("en", "vi")]
    pairs = [(len(a.split()), len(b.split())) for a, b in zip(*lines, strict=True) if a.split() and b.split()]
    return [Pair(rng.integers(1, config.words, m), min(length, 100)) for m, length in pairs[:n]]


def measure(config: Config) -> Findings:
    """Compare the words, and time all variants on each mini-batch."""
    torch.set_num_threads(config.threads)
    rng = np.random.default_rng(config.seed)
    model = Decoder(config.words, config.dim, rng)
    twin = TorchDecoder(model, config.words, config.dim)
    pairs = read_pairs(config, rng)
    translate = ab.batched(model.translate, threads=config.threads, plan_cache=0)
    loss = ab.batched(model.loss, threads=config.threads, plan_cache=0)
    seconds: dict[str, list[float]] = {}
    rows, figures = list[tuple[str, ...]](), dict[str, Any]()
    for first in range(0, len(pairs), config.batch_size):
        batch = pairs[first : first + config.batch_size]
        graphs, recorded = translate.record_all(batch), loss.record_all(batch)
        ways: dict[str, Callable[[], Any]] = {
            "rounds": partial(translate, batch),
            "replayed": partial(translate, graphs),
            "torch, batched": partial(twin.translate, batch),
            "torch, one by one": partial(twin.one_by_one, batch),
            "training, rounds": partial(loss.value_and_grad, batch),
            "training, replayed": partial(loss.value_and_grad, recorded),
        }
        ours, theirs = translate(batch), twin.translate(batch)
        same = np.mean([a == b for a, b in zip(ours, theirs, strict=True)])
        for way in (*ways.values(),) * WARM_UP:
            way()
        translate(batch)
        last = translate.last
        assert last is not None
        timed = take_turns(ways, config.repeats)
        seconds |= {f"{first}, {way}": times for way, times in timed.items()}
        figures[str(first)] = {
            "rounds": last.rounds, "nodes": last.nodes, "batches": last.batches, "same": float(same),
            "stages": {stage: round(ms, 1) for stage, ms in last.ms.items()},
            "ms": {way: round(1e3 * float(np.median(times)), 1) for way, times in timed.items()},
        }  # fmt: skip
        rows.append((str(first), *(f"{1e3 * np.median(times):.0f}" for times in timed.values())))
    table = format_table(("first sentence", *ways), rows)
    ratios = {
        "torch, batched / rounds": ("torch, batched", "rounds"),
        "torch, one by one / rounds": ("torch, one by one", "rounds"),
        "replayed / rounds": ("replayed", "rounds"),
        "training: rounds / replayed": ("training, rounds", "training, replayed"),
    }
    lines = []
    for name, (above, below) in ratios.items():
        pairs_of = [
            (seconds[f"{first}, {above}"], seconds[f"{first}, {below}"])
            for first in range(0, len(pairs), config.batch_size)
        ]
        figures[name] = [round(float(np.median(a) / np.median(b)), 2) for a, b in pairs_of]
        lines.append(f"{name}: {figures[name]}")
    return Findings(seconds, figures, f"milliseconds, medians\n\n{table}\n\n" + "\n".join(lines))


if __name__ == "__main__":
    run(Config(), measure)
