"""Test programs in the idioms of published PyTorch models: batched equals PyTorch, one instance at a time.

Each program is a minimal port whose layers are cells and which is otherwise unchanged. The tests assert the number of
nodes recorded for an instance, because single ops outside cells are the cost of such a port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autobatch as ab
import autobatch.torch as abt

DIM, WORDS = 4, 11


def check(model: nn.Module, instances: list[Any], nodes: Callable[[Any], dict[str, int]]) -> None:
    """Compare a module's values and gradients with torch alone, and each instance's nodes with the expected ones."""
    model.double()
    abt.check_batched(model, instances, backend="reference")
    batched = abt.batched(model, backend="reference")
    recorded = batched.record_all(instances)
    for graph, instance in zip(recorded, instances, strict=True):
        names = Counter(batched.recorder.types[number].name for number in graph.type_id.tolist())
        assert names == {name: n for name, n in nodes(instance).items() if n}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# A child-sum Tree-LSTM over objects, by recursion, with torch.stack and sum.


@dataclass
class Tree:
    word: int
    children: list[Tree] = field(default_factory=list)
    state: Any = None

    def size(self) -> int:
        return 1 + sum(child.size() for child in self.children)

    def n_leaves(self) -> int:
        return sum(child.n_leaves() for child in self.children) or 1


class ChildSumTreeLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = abt.cell(nn.Embedding(WORDS, DIM))
        self.ioux, self.iouh = abt.cell(nn.Linear(DIM, 3 * DIM)), abt.cell(nn.Linear(DIM, 3 * DIM))
        self.fx, self.fh = abt.cell(nn.Linear(DIM, DIM)), abt.cell(nn.Linear(DIM, DIM))

    @abt.cell
    def forget(self, fx: Tensor, fh: Tensor, c: Tensor) -> Tensor:
        return torch.sigmoid(fx + fh) * c

    @abt.cell
    def combine(self, ioux: Tensor, iouh: Tensor, fc_sum: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = torch.split(ioux + iouh, DIM, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u) + fc_sum
        return torch.sigmoid(o) * torch.tanh(c), c

    def node_forward(self, inputs: Tensor, child_c: Any, child_h: Any) -> Any:
        child_h_sum = torch.sum(torch.stack(child_h), dim=0)
        fx = self.fx(inputs)
        fc = [self.forget(fx, self.fh(h), c) for h, c in zip(child_h, child_c, strict=True)]
        return self.combine(self.ioux(inputs), self.iouh(child_h_sum), torch.sum(torch.stack(fc), dim=0))

    def forward(self, tree: Tree) -> Tensor:
        for child in tree.children:
            self(child)
        if not tree.children:
            zeros = self.fx.weight.detach().new(DIM).fill_(0.0)
            child_c, child_h = [zeros], [zeros]
        else:
            child_h, child_c = zip(*(child.state for child in tree.children), strict=True)  # type: ignore[assignment]
        tree.state = self.node_forward(self.embedding(torch.tensor(tree.word)), child_c, child_h)
        return tree.state[0]  # type: ignore[no-any-return]


def test_child_sum_tree_lstm() -> None:
    def leaf(word: int) -> Tree:
        return Tree(word)

    trees = [Tree(1, [leaf(2), Tree(3, [leaf(4), leaf(5), leaf(1)])]), leaf(7), Tree(8, [leaf(9)])]

    def nodes(tree: Tree) -> dict[str, int]:
        n = tree.size()
        n_read = n - 1 + tree.n_leaves()  # states of children, and the zeros that leaves read
        return {
            "Embedding": n, "Linear": 3 * n + n_read, "forget": n_read, "combine": n, "constant": 1,
            "sum_n": 2 * n - tree.n_leaves(),
        }  # fmt: skip

    check(ChildSumTreeLSTM(), trees, nodes)


# A shift-reduce parser encoder: buffers and stacks of states, with chunk, cat and unbind.


class Spinn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, DIM)
        self.projection = abt.cell(nn.Linear(DIM, 2 * DIM))
        self.left, self.right = nn.Linear(DIM, 5 * DIM), nn.Linear(DIM, 5 * DIM, bias=False)
        self.tracker = abt.cell(nn.LSTMCell(3 * DIM, DIM))
        self.by_tracker = nn.Linear(DIM, 5 * DIM, bias=False)
        self.transition, self.dropout = abt.cell(nn.Linear(DIM, 2)), nn.Dropout(0.0)

    @abt.cell
    def reduce(self, left: Tensor, right: Tensor, tracking: Tensor) -> Tensor:
        (h1, c1), (h2, c2) = left.chunk(2, -1), right.chunk(2, -1)
        gates = self.left(h1) + self.right(h2) + self.by_tracker(tracking)
        a, i, f1, f2, o = gates.chunk(5, -1)
        c = a.tanh() * i.sigmoid() + f1.sigmoid() * c1 + f2.sigmoid() * c2
        return torch.cat([o.sigmoid() * c.tanh(), c], -1)

    def forward(self, item: tuple[Tensor, str]) -> tuple[Tensor, Tensor]:
        words, transitions = item
        buffer = list(torch.unbind(self.projection(self.embed(words)), 0))[::-1]
        stack: list[Tensor] = []
        state: Any = None
        loss: Any = 0.0
        zero = torch.zeros(2 * DIM, dtype=self.embed.weight.dtype)
        for transition in transitions:
            tops = [*stack[-2:], zero, zero][:2]
            given = torch.cat([(buffer[-1] if buffer else zero)[:DIM], tops[0][:DIM], tops[1][:DIM]])
            state = self.tracker(given) if state is None else self.tracker(given, state)
            logits = self.transition(self.dropout(state[0]))
            loss += F.cross_entropy(logits.unsqueeze(0), torch.tensor([int(transition == "R")]))
            if transition == "S":
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(self.reduce(left, right, state[0]))
        assert len(stack) == 1
        assert isinstance(stack[0], torch.Tensor)
        return stack.pop()[:DIM], loss


def test_shift_reduce_with_buffers_and_stacks() -> None:
    items = [(torch.tensor([1, 2, 3]), "SSSRR"), (torch.tensor([4, 5]), "SSR"), (torch.tensor([6, 7, 8]), "SSRSR")]

    def nodes(item: tuple[Tensor, str]) -> dict[str, int]:
        words, transitions = item
        n = len(transitions)
        n_read, depth, n_left = 0, 0, len(words)  # states of words and phrases that the tracker reads
        for transition in transitions:
            n_read += min(depth, 2) + bool(n_left)
            depth, n_left = (depth + 1, n_left - 1) if transition == "S" else (depth - 1, n_left)
        return {
            "embedding": 1, "Linear": 1 + n, "unbind": 1, "slice": n_read + 1, "constant": 1, "cat": n, "LSTMCell": n,
            "unsqueeze": n, "cross_entropy": n, "add": n - 1, "reduce": transitions.count("R"),
        }  # fmt: skip

    model = Spinn().eval()
    check(model, items, nodes)


# A BiLSTM-CRF: the forward algorithm with logsumexp, and Viterbi with back pointers.


class BiLstmCrf(nn.Module):
    def __init__(self, n_tags: int = 4) -> None:
        super().__init__()
        self.n_tags, self.start, self.stop = n_tags, n_tags - 2, n_tags - 1
        self.word_embeds = nn.Embedding(WORDS, DIM)
        self.forwards, self.backwards = abt.cell(nn.LSTMCell(DIM, DIM)), abt.cell(nn.LSTMCell(DIM, DIM))
        self.hidden2tag = abt.cell(nn.Linear(2 * DIM, n_tags))
        self.transitions = nn.Parameter(torch.randn(n_tags, n_tags))
        self.transitions.data[self.start, :] = -10000.0
        self.transitions.data[:, self.stop] = -10000.0

    @abt.cell
    def log_add(self, forward_var: Tensor, feat: Tensor) -> Tensor:
        return torch.logsumexp(forward_var.unsqueeze(0) + self.transitions + feat.unsqueeze(1), dim=1)

    @abt.cell
    def best_step(self, forward_var: Tensor, feat: Tensor) -> tuple[Tensor, Tensor]:
        scores, pointers = torch.max(forward_var.unsqueeze(0) + self.transitions, dim=1)
        return scores + feat, pointers

    @abt.cell
    def gold_step(self, feat: Tensor, now: int, before: int) -> Tensor:
        return self.transitions[now][before] + feat[now]

    def features(self, words: Tensor) -> list[Tensor]:
        embeds = self.word_embeds(words)
        seen = []
        for cell, rows in ((self.forwards, embeds), (self.backwards, embeds.flip(0))):
            state: Any = None
            found = []
            for row in rows:
                state = cell(row) if state is None else cell(row, state)
                found.append(state[0])
            seen.append(found)
        both = zip(seen[0], reversed(seen[1]), strict=True)
        return [self.hidden2tag(torch.cat((one, other))) for one, other in both]

    def initial(self) -> Tensor:
        init = torch.full((self.n_tags,), -10000.0, dtype=self.transitions.dtype)
        init[self.start] = 0.0
        return init

    def forward(self, item: tuple[Tensor, list[int]]) -> Tensor:
        words, tags = item
        forward_var, gold, before = self.initial(), torch.zeros(1, dtype=self.transitions.dtype), self.start
        for feat, tag in zip(self.features(words), tags, strict=True):
            forward_var = self.log_add(forward_var, feat)
            gold = gold + self.gold_step(feat, tag, before)
            before = tag
        gold = gold + self.transitions[self.stop, before]
        total = torch.logsumexp(forward_var + self.transitions[self.stop], dim=0)
        return total - gold

    async def viterbi(self, words: Tensor) -> tuple[Tensor, list[int]]:
        forward_var, pointers = self.initial(), []
        for feat in self.features(words):
            forward_var, chosen = self.best_step(forward_var, feat)
            pointers.append(chosen)
        terminal = forward_var + self.transitions[self.stop]
        path = [int(await ab.value(terminal.argmax()))]
        for chosen in reversed(await ab.value(pointers)):
            path.append(int(chosen[path[-1]]))
        assert path.pop() == self.start
        return terminal.max(), path[::-1]


def test_bilstm_crf() -> None:
    items = [(torch.tensor([1, 2, 3]), [0, 1, 0]), (torch.tensor([4]), [1]), (torch.tensor([5, 6]), [1, 1])]

    def nodes(item: tuple[Tensor, list[int]]) -> dict[str, int]:
        n = len(item[1])
        return {
            "embedding": 1, "flip": 1, "slice": 2 * n, "LSTMCell": 2 * n, "cat": n, "Linear": n, "log_add": n,
            "gold_step": n, "constant": 2, "getitem": 3, "add": n + 2, "logsumexp": 1, "sub": 1,
        }  # fmt: skip

    model = BiLstmCrf()
    check(model, items, nodes)
    abt.check_batched(model.viterbi, [words for words, _ in items], module=model, backend="reference")


# A graph network: messages along edges, summed per target with index_add, and a GRU cell.


class MessagePassing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.init = abt.cell(nn.Linear(3, DIM))
        self.message = abt.cell(nn.Sequential(nn.Linear(2 * DIM, DIM), nn.ReLU(inplace=True)))
        self.update = abt.cell(nn.GRUCell(DIM, DIM))
        self.readout = nn.Linear(DIM, 1)

    def forward(self, graph: tuple[Tensor, list[tuple[int, int]]]) -> Tensor:
        features, edges = graph
        h = [self.init(x) for x in features]
        for _ in range(2):
            inbox: list[list[Tensor]] = [[] for _ in h]
            for source, target in edges:
                inbox[target].append(self.message(torch.cat([h[source], h[target]], dim=-1)))
            silent = torch.zeros_like(h[0])
            sums = [torch.stack(m).sum(dim=0) if m else silent for m in inbox]
            h = [self.update(m, x) for m, x in zip(sums, h, strict=True)]
        return self.readout(torch.stack(h).mean(dim=0)).squeeze(-1)  # type: ignore[no-any-return]


def test_message_passing() -> None:
    graphs = [
        (torch.randn(3, 3).double(), [(0, 1), (1, 0), (2, 1)]),
        (torch.randn(2, 3).double(), [(0, 1)]),
        (torch.randn(1, 3).double(), list[tuple[int, int]]()),
    ]

    def nodes(graph: tuple[Tensor, list[tuple[int, int]]]) -> dict[str, int]:
        features, edges = graph
        n, n_targets = len(features), len({target for _, target in edges})
        return {
            "constant": n + (n_targets < n), "Linear": n, "cat": 2 * len(edges), "Sequential": 2 * len(edges),
            "sum_n": 2 * n_targets, "GRUCell": 2 * n, "mean_n": 1, "linear": 1, "squeeze": 1,
        }  # fmt: skip

    check(MessagePassing(), graphs, nodes)


# A sequence-to-sequence model with attention, bmm, masked_fill and teacher forcing.


class AttentionSeq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, DIM)
        self.encoder, self.decoder = abt.cell(nn.GRUCell(DIM, DIM)), abt.cell(nn.GRUCell(2 * DIM, DIM))
        self.query, self.out = abt.cell(nn.Linear(DIM, DIM)), abt.cell(nn.Linear(2 * DIM, WORDS))
        self.criterion = nn.NLLLoss()

    def attend(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        scores = torch.bmm(query.view(1, 1, -1), memory.t().unsqueeze(0)).squeeze(0)
        scores = scores.masked_fill(mask, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return torch.mm(weights, memory).squeeze(0)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        source, target = pair
        h = torch.zeros(DIM, dtype=self.embedding.weight.dtype)
        outputs = []
        for x in self.embedding(source):
            h = self.encoder(x, h)
            outputs.append(h)
        memory = torch.stack(outputs)
        mask = (source == 0).unsqueeze(0)
        loss, token = h.new_zeros(1), torch.tensor(1)
        for label in target:
            context = self.attend(self.query(h), memory, mask)
            h = self.decoder(torch.cat([self.embedding(token), context], dim=0), h)
            log_probs = F.log_softmax(self.out(torch.cat((h, context), 0)), dim=0)
            loss = loss + self.criterion(log_probs.unsqueeze(0), label.unsqueeze(0))
            token = label
        return loss / len(target)


def test_attention_decoder_with_teacher_forcing() -> None:
    pairs = [
        (torch.tensor([3, 4, 0]), torch.tensor([5, 6])), (torch.tensor([7]), torch.tensor([8])),
        (torch.tensor([2, 9]), torch.tensor([10, 3, 1])),
    ]  # fmt: skip

    def nodes(pair: tuple[Tensor, Tensor]) -> dict[str, int]:
        n, m = map(len, pair)
        once = ("view", "t", "bmm", "masked_fill", "softmax", "mm", "log_softmax", "nll_loss", "add")
        return {
            "embedding": 1 + m, "slice": n, "constant": 2, "GRUCell": n + m, "Linear": 2 * m, "stack": 1,
            "unsqueeze": 2 * m, "squeeze": 2 * m, "cat": 2 * m, "div": 1, **dict.fromkeys(once, m),
        }  # fmt: skip

    check(AttentionSeq2Seq(), pairs, nodes)


# A neural module network: the layout of each question selects modules from a ModuleDict.


class Find(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.text = nn.Conv2d(3, DIM, 1), nn.Linear(DIM, DIM)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        mapped = self.conv(image.unsqueeze(0)).squeeze(0)
        return F.normalize(mapped * self.text(text).view(-1, 1, 1), dim=0).sum(0, keepdim=True)


class And(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.min(one, other)


class Transform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.text = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(DIM, 1)

    def forward(self, attention: Tensor, text: Tensor) -> Tensor:
        return self.conv(attention.unsqueeze(0)).squeeze(0) * self.text(text).view(1, 1, 1)  # type: ignore[no-any-return]


class Describe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, image: Tensor, attention: Tensor) -> Tensor:
        weights = F.softmax(attention.flatten(), dim=0)
        return self.linear((image.flatten(1) * weights).sum(dim=1))  # type: ignore[no-any-return]


class ModuleNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = {"find": Find(), "and": And(), "transform": Transform(), "describe": Describe()}
        self.modules_by_name = nn.ModuleDict({name: abt.cell(module) for name, module in kinds.items()})
        self.words = abt.cell(nn.Embedding(WORDS, DIM))

    def run(self, layout: Any, image: Tensor) -> Tensor:
        name, *arguments = layout
        module, found = self.modules_by_name[name], []
        for argument in arguments:
            found.append(self.words(argument) if isinstance(argument, int) else self.run(argument, image))
        return module(image, *found) if name in ("find", "describe") else module(*found)  # type: ignore[no-any-return]

    def forward(self, item: tuple[Tensor, Any, int]) -> Tensor:
        image, layout, answer = item
        logits = self.run(layout, image)
        return F.cross_entropy(logits.unsqueeze(0), torch.tensor([answer]))


def test_neural_module_network() -> None:
    image = torch.randn(3, 2, 2).double()
    items = [
        (image, ("describe", ("and", ("find", 1), ("transform", ("find", 2), 3))), 0),
        (2 * image, ("describe", ("find", 4)), 3),
        (image.flip(0), ("describe", ("transform", ("transform", ("find", 1), 2), 5)), 1),
    ]

    def walk(layout: Any) -> Iterator[str]:
        if isinstance(layout, int):
            yield "Embedding"
            return
        yield layout[0].capitalize()
        for part in layout[1:]:
            yield from walk(part)

    def nodes(item: tuple[Tensor, Any, int]) -> dict[str, int]:
        return Counter(walk(item[1])) | {"constant": 1, "unsqueeze": 1, "cross_entropy": 1}

    check(ModuleNetwork(), items, nodes)


# A recursive network in which each word has a vector and a matrix.


class MatrixVector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(WORDS, DIM)
        self.matrices = nn.Parameter(torch.stack([torch.eye(DIM) + 0.1 * torch.randn(DIM, DIM) for _ in range(WORDS)]))
        self.w, self.wm = nn.Linear(2 * DIM, DIM), nn.Parameter(0.1 * torch.randn(DIM, 2 * DIM))
        self.classify = nn.Linear(DIM, 3)

    @abt.cell
    def compose(self, a: Tensor, A: Tensor, b: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.tanh(self.w(torch.cat([B.mv(a), A.mv(b)])))
        return p, self.wm.mm(torch.cat([A, B], dim=0))

    def walk(self, tree: Any, losses: list[Tensor]) -> tuple[Tensor, Tensor]:
        label, *children = tree
        if len(children) == 1:
            word = torch.tensor(children[0])
            state = self.vectors(word), self.matrices[word]
        else:
            (a, A), (b, B) = (self.walk(child, losses) for child in children)
            state = self.compose(a, A, b, B)
        logits = self.classify(state[0])
        losses.append(F.cross_entropy(logits.view(1, -1), torch.tensor([label])))
        return state

    def forward(self, tree: Any) -> tuple[Tensor, Tensor]:
        losses: list[Tensor] = []
        vector, _ = self.walk(tree, losses)
        return torch.stack(losses).sum(), vector.detach()


def test_matrix_vector_recursion() -> None:
    trees = [(0, (1, 3), (2, (0, 4), (1, 5))), (1, 6), (2, (0, 7), (1, 8))]

    def words(tree: Any) -> int:
        return 1 if len(tree) == 2 else sum(map(words, tree[1:]))

    def nodes(tree: Any) -> dict[str, int]:
        n = words(tree)
        return {
            "embedding": n, "getitem": n, "linear": 2 * n - 1, "view": 2 * n - 1, "cross_entropy": 2 * n - 1,
            "compose": n - 1, "sum_n": 1, "detach": 1,
        }  # fmt: skip

    check(MatrixVector(), trees, nodes)
