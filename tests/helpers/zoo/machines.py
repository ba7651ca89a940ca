"""Stack machines, and machines that read and write a memory: a program per instance, or a tape of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, gru, linear, lstm

DIM, WORDS, CLASSES, SLOTS, SHIFTS = 3, 5, 3, 4, 3


class Program(NamedTuple):
    """Transitions: a word is shifted, None reduces the two topmost elements."""

    transitions: list[int | None]
    label: int


def draw_program(rng: Rng) -> Program:
    transitions: list[int | None] = []
    depth, left = 0, int(rng.integers(1, 6))
    while left or depth > 1:
        if left and (depth < 2 or rng.random() < 0.5):
            transitions.append(int(rng.integers(WORDS)))
            depth, left = depth + 1, left - 1
        else:
            transitions.append(None)
            depth -= 1
    return Program(transitions, int(rng.integers(CLASSES)))


class Spinn(ab.Module):
    """SPINN (Bowman et al. 2016): a tracking LSTM reads the tops of stack and buffer, and controls reductions."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = array(rng, WORDS, 2 * DIM)
        self.tracker = ab.LSTMCell(3 * DIM, DIM, rng=rng)
        self.left = ab.Linear(DIM, 5 * DIM, rng=rng)
        self.right = ab.Linear(DIM, 5 * DIM, rng=rng, bias=False)
        self.track = ab.Linear(DIM, 5 * DIM, rng=rng, bias=False)
        self.transition = ab.Linear(DIM, 2, rng=rng)
        self.output = ab.Linear(DIM, CLASSES, rng=rng)

    @ab.cell
    def read(self, word: Any) -> Any:
        return ab.split(ab.tanh(ab.lookup(self.embedding, word)), 2)

    @ab.cell
    def step(self, buffer: Any, top: Any, second: Any, state: Any) -> Any:
        return self.tracker(ab.concat((buffer, top, second)), state)

    @ab.cell
    def reduce(self, left: Any, right: Any, tracking: Any) -> Any:
        (h_l, c_l), (h_r, c_r) = left, right
        a, i, f1, f2, o = ab.split(self.left(h_l) + self.right(h_r) + self.track(tracking), 5)
        c = ab.tanh(a) * ab.sigmoid(i) + ab.sigmoid(f1) * c_l + ab.sigmoid(f2) * c_r
        return ab.sigmoid(o) * ab.tanh(c), c

    @ab.cell
    def transition_loss(self, tracking: Any, shifts: bool) -> Any:
        return ab.cross_entropy(self.transition(tracking), int(shifts))

    @ab.cell
    def root(self, top: Any, label: Any) -> Any:
        h, _ = top
        return ab.cross_entropy(self.output(h), label)

    def loss(self, program: Program) -> Any:
        nothing = np.zeros(DIM)
        buffer = [self.read(t) for t in program.transitions if t is not None][::-1]
        stack: list[Any] = [(nothing, nothing)] * 2
        state, losses = (nothing, nothing), []
        for t in program.transitions:
            ahead = buffer[-1][0] if buffer else nothing
            state = self.step(ahead, stack[-1][0], stack[-2][0], state)
            losses.append(self.transition_loss(state[0], t is not None))
            if t is None:
                right, left = stack.pop(), stack.pop()
                stack.append(self.reduce(left, right, state[0]))
            else:
                stack.append(buffer.pop())
        return self.root(stack[-1], program.label) + 0.5 * ab.mean_n(losses)


def spinn(w: Weights, program: Program) -> Tensor:
    zero = torch.zeros(DIM, dtype=torch.float64)
    words = iter([t for t in program.transitions if t is not None] + [None])
    ahead, state = next(words), (zero, zero)
    stack, tracked = [(zero, zero), (zero, zero)], []
    for t in program.transitions:
        seen = zero if ahead is None else torch.tanh(w["embedding"][ahead]).chunk(2)[0]
        state = lstm(w, "tracker", torch.cat((seen, stack[-1][0], stack[-2][0])), state)
        tracked.append(state[0])
        if t is not None:
            h, c = torch.tanh(w["embedding"][t]).chunk(2)
            stack, ahead = [*stack, (h, c)], next(words)
        else:
            (h_l, c_l), (h_r, c_r) = stack[-2:]
            gates = linear(w, "left", h_l) + linear(w, "right", h_r) + linear(w, "track", state[0])
            a, gate = torch.tanh(gates[:DIM]), torch.sigmoid(gates[DIM:]).reshape(4, DIM)
            c = gate[0] * a + gate[1] * c_l + gate[2] * c_r
            stack = [*stack[:-2], (gate[3] * torch.tanh(c), c)]
    shifts = torch.tensor([int(t is not None) for t in program.transitions])
    steering = F.cross_entropy(linear(w, "transition", torch.stack(tracked)), shifts)
    return F.cross_entropy(linear(w, "output", stack[-1][0]), torch.tensor(program.label)) + 0.5 * steering


class StackLSTM(ab.Module):
    """A stack LSTM (Dyer et al. 2015): popping returns to an earlier state, reducing pushes another one."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = ab.Embedding(WORDS, DIM, rng=rng)
        self.lstm = ab.LSTMCell(DIM, DIM, rng=rng)
        self.first_h, self.first_c = array(rng, DIM), array(rng, DIM)
        self.compose = ab.Linear(2 * DIM, DIM, rng=rng)
        self.action = ab.Linear(DIM, 2, rng=rng)

    @ab.cell
    def combine(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.compose(ab.concat([left, right])))

    @ab.cell
    def action_loss(self, state: Any, action: Any) -> Any:
        return ab.cross_entropy(self.action(state[0]), action)

    def loss(self, program: Program) -> Any:
        stack: list[Any] = [(None, (self.first_h, self.first_c))]
        total = 0.0
        for t in program.transitions:
            total = total + self.action_loss(stack[-1][1], int(t is None))
            if t is None:
                (right, _), (left, _) = stack.pop(), stack.pop()
                x = self.combine(left, right)
            else:
                x = self.embedding(t)
            stack.append((x, self.lstm(x, stack[-1][1])))
        return total


def stack_lstm(w: Weights, program: Program) -> Tensor:
    def summary(items: list[Tensor]) -> Tensor:
        """Read the whole stack again from its bottom."""
        state = (w["first_h"], w["first_c"])
        for x in items:
            state = lstm(w, "lstm", x, state)
        return state[0]

    items: list[Tensor] = []
    logits = []
    for t in program.transitions:
        logits.append(linear(w, "action", summary(items)))
        if t is None:
            items[-2:] = [torch.tanh(linear(w, "compose", torch.cat(items[-2:])))]
        else:
            items.append(w["embedding.weight"][t])
    actions = torch.tensor([int(t is None) for t in program.transitions])
    return F.cross_entropy(torch.stack(logits), actions, reduction="sum")


class Turing(ab.Module):
    """A neural Turing machine (Graves, Wayne, Danihelka 2014): content, gate, shift, sharpness; erase and add."""

    def __init__(self, rng: Rng) -> None:
        self.controller = ab.LSTMCell(2 * DIM, DIM, rng=rng)
        self.key = ab.Linear(DIM, DIM, rng=rng)
        self.strength, self.gate, self.sharpness = (ab.Linear(DIM, 1, rng=rng) for _ in range(3))
        self.shift = ab.Linear(DIM, SHIFTS, rng=rng)
        self.erase, self.write = ab.Linear(DIM, DIM, rng=rng), ab.Linear(DIM, DIM, rng=rng)
        self.output = ab.Linear(2 * DIM, DIM, rng=rng)
        self.memory = array(rng, SLOTS, DIM)

    @ab.cell
    def address(self, h: Any, memory: Any, weights: Any) -> Any:
        key = self.key(h)
        lengths = ab.sqrt(ab.sum(memory * memory, axis=1)) * ab.sqrt(ab.sum(key * key))
        content = ab.softmax(ab.softplus(self.strength(h)) * (memory @ key / lengths))
        gate = ab.sigmoid(self.gate(h))
        w = gate * content + (1.0 - gate) * weights
        back, stay, on = ab.split(ab.softmax(self.shift(h)), SHIFTS)
        w = back * ab.concat((w[1:], w[:1])) + stay * w + on * ab.concat((w[-1:], w[:-1]))
        w = w ** (1.0 + ab.softplus(self.sharpness(h)))
        return w / ab.sum(w)

    @ab.cell
    def update(self, h: Any, memory: Any, weights: Any) -> Any:
        erase, write = ab.sigmoid(self.erase(h)), ab.tanh(self.write(h))
        memory = memory * (1.0 - ab.outer(weights, erase)) + ab.outer(weights, write)
        return memory, weights @ memory

    @ab.cell
    def step_loss(self, h: Any, read: Any, target: Any) -> Any:
        return ab.mean(ab.squared_error(self.output(ab.concat((h, read))), target))

    def loss(self, tape: Any) -> Any:
        xs, targets = tape
        memory, read, weights = self.memory, np.zeros(DIM), np.full(SLOTS, 1 / SLOTS)
        state, losses = (np.zeros(DIM), np.zeros(DIM)), []
        for x, target in zip(xs, targets, strict=True):
            state = self.controller(ab.concat((x, read)), state)
            weights = self.address(state[0], memory, weights)
            memory, read = self.update(state[0], memory, weights)
            losses.append(self.step_loss(state[0], read, target))
        return ab.sum_n(losses)


def turing(w: Weights, tape: Any) -> Tensor:
    memory = w["memory"]
    read = torch.zeros(DIM, dtype=torch.float64)
    h, c = read, read
    weights = torch.full((SLOTS,), 1 / SLOTS, dtype=torch.float64)
    loss = torch.tensor(0.0, dtype=torch.float64)
    for x, target in zip(*map(torch.tensor, tape), strict=True):
        h, c = lstm(w, "controller", torch.cat((x, read)), (h, c))
        similar = F.cosine_similarity(memory, linear(w, "key", h)[None])
        content = F.softmax(F.softplus(linear(w, "strength", h)) * similar, 0)
        mixed = torch.lerp(weights, content, torch.sigmoid(linear(w, "gate", h)))
        shift = F.softmax(linear(w, "shift", h), 0)
        shifted = sum(s * mixed.roll(by) for s, by in zip(shift, (-1, 0, 1), strict=True))
        weights = shifted.pow(1 + F.softplus(linear(w, "sharpness", h)))
        weights = weights / weights.sum()
        erase, write = torch.sigmoid(linear(w, "erase", h)), torch.tanh(linear(w, "write", h))
        memory = memory - memory * weights[:, None] * erase + weights[:, None] * write
        read = memory.T @ weights
        loss = loss + F.mse_loss(linear(w, "output", torch.cat((h, read))), target)
    return loss


class NeuralStack(ab.Module):
    """A differentiable stack (Grefenstette et al. 2015) of any number of pushed vectors with strengths."""

    def __init__(self, rng: Rng) -> None:
        self.gru = ab.GRUCell(2 * DIM, DIM, rng=rng)
        self.controls = ab.Linear(DIM, 2, rng=rng)
        self.value = ab.Linear(DIM, DIM, rng=rng)
        self.output = ab.Linear(2 * DIM, DIM, rng=rng)

    @ab.cell
    def control(self, h: Any) -> Any:
        push, pop = ab.split(ab.sigmoid(self.controls(h)), 2)
        return push, pop, ab.tanh(self.value(h))

    @ab.cell
    def take(self, strength: Any, wanted: Any) -> Any:
        """Take as much as is wanted and available; return the remaining strength, and the remaining demand."""
        return ab.relu(strength - wanted), ab.relu(wanted - strength)

    @ab.cell
    def share(self, strength: Any, room: Any) -> Any:
        used = ab.where(strength < room, strength, room)
        return used, room - used

    @ab.cell
    def mix(self, shares: Any, values: Any) -> Any:
        return ab.sum_n([share * value for share, value in zip(shares, values, strict=True)])

    @ab.cell
    def step_loss(self, h: Any, read: Any, target: Any) -> Any:
        return ab.mean(ab.squared_error(self.output(ab.concat((h, read))), target))

    def loss(self, tape: Any) -> Any:
        h, read = np.zeros(DIM), np.zeros(DIM)
        values: list[Any] = []
        strengths: list[Any] = []
        total = 0.0
        for x, target in zip(*tape, strict=True):
            h = self.gru(ab.concat((x, read)), h)
            push, wanted, value = self.control(h)
            for i in reversed(range(len(values))):
                strengths[i], wanted = self.take(strengths[i], wanted)
            values.append(value)
            strengths.append(push)
            room, shares = np.ones(1), []
            for strength in reversed(strengths):
                used, room = self.share(strength, room)
                shares.append(used)
            read = self.mix(shares[::-1], values)
            total = total + self.step_loss(h, read, target)
        return total


def neural_stack(w: Weights, tape: Any) -> Tensor:
    h = read = torch.zeros(DIM, dtype=torch.float64)
    values, strengths = torch.zeros(0, DIM, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    loss = torch.tensor(0.0, dtype=torch.float64)
    for x, target in zip(*map(torch.tensor, tape), strict=True):
        h = gru(w, "gru", torch.cat((x, read)), h)
        push, pop = torch.sigmoid(linear(w, "controls", h))
        above = strengths.sum() - strengths.cumsum(0)
        strengths = torch.cat((F.relu(strengths - F.relu(pop - above)), push[None]))
        values = torch.vstack((values, torch.tanh(linear(w, "value", h))))
        above = strengths.sum() - strengths.cumsum(0)
        read = torch.minimum(strengths, F.relu(1 - above)) @ values
        loss = loss + F.mse_loss(linear(w, "output", torch.cat((h, read))), target)
    return loss


def draw_tape(rng: Rng) -> Any:
    n = int(rng.integers(1, 5))
    return rng.standard_normal((n, DIM)), rng.standard_normal((n, DIM))


CASES = [
    Case("spinn", Spinn, draw_program, spinn),
    Case("stack lstm", StackLSTM, draw_program, stack_lstm),
    Case("neural turing machine", Turing, draw_tape, turing),
    Case("neural stack", NeuralStack, draw_tape, neural_stack),
]
