"""Latent variables, losses of pairs, and networks that generate weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import autobatch as ab
from helpers.zoo.case import Case, Rng, Weights, array, gru, linear

DIM, LATENT, WORDS = 4, 2, 5


class VAE(ab.Module):
    """A variational autoencoder (Kingma, Welling 2014) of binary vectors; the noise is data."""

    def __init__(self, rng: Rng) -> None:
        self.encoder = ab.Linear(DIM, 2 * LATENT, rng=rng)
        self.decoder = [ab.Linear(LATENT, DIM, rng=rng), ab.Linear(DIM, DIM, rng=rng)]

    @ab.cell
    def encode(self, x: Any, noise: Any) -> Any:
        mean, log_var = ab.split(self.encoder(x), 2)
        z = mean + ab.exp(0.5 * log_var) * noise
        return z, -0.5 * ab.sum(1 + log_var - mean**2 - ab.exp(log_var))

    @ab.cell
    def decode(self, z: Any, x: Any) -> Any:
        first, second = self.decoder
        logits = second(ab.relu(first(z)))
        return ab.sum(ab.softplus(logits) - logits * x)

    def loss(self, instance: Any) -> Any:
        x, noise = instance
        z, divergence = self.encode(x, noise)
        return self.decode(z, x) + divergence


def vae(w: Weights, instance: Any) -> Tensor:
    x, noise = map(torch.tensor, instance)
    mean, log_var = linear(w, "encoder", x).chunk(2)
    posterior = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    z = mean + posterior.stddev * noise
    divergence = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum()
    logits = linear(w, "decoder.1", linear(w, "decoder.0", z).relu())
    return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence


def draw_noisy(rng: Rng) -> Any:
    return (rng.random(DIM) < 0.5).astype(float), rng.standard_normal(LATENT)


class SequenceVAE(ab.Module):
    """A variational autoencoder of sentences: a GRU encoder, and a GRU decoder that starts from the latent vector."""

    def __init__(self, rng: Rng) -> None:
        self.embedding = ab.Embedding(WORDS, DIM, rng=rng)
        self.reader, self.writer = ab.GRUCell(DIM, DIM, rng=rng), ab.GRUCell(DIM, DIM, rng=rng)
        self.mean, self.log_std = ab.Linear(DIM, LATENT, rng=rng), ab.Linear(DIM, LATENT, rng=rng)
        self.begin, self.output = ab.Linear(LATENT, DIM, rng=rng), ab.Linear(DIM, WORDS, rng=rng)

    @ab.cell
    def sample(self, h: Any, noise: Any) -> Any:
        mean, log_std = self.mean(h), self.log_std(h)
        kl = ab.sum((ab.exp(2.0 * log_std) + mean * mean - 1.0) / 2.0 - log_std)
        return ab.tanh(self.begin(mean + ab.exp(log_std) * noise)), kl

    @ab.cell
    def word_loss(self, h: Any, word: Any) -> Any:
        return ab.cross_entropy(self.output(h), word)

    def loss(self, instance: Any) -> Any:
        words, noise = instance
        h = None
        for word in words:
            h = self.reader(self.embedding(word), h)
        h, total = self.sample(h, noise)
        for word in words:
            total += self.word_loss(h, word)
            h = self.writer(self.embedding(word), h)
        return total


def sequence_vae(w: Weights, instance: Any) -> Tensor:
    words, noise = instance
    h = torch.zeros(DIM, dtype=torch.float64)
    for word in words:
        h = gru(w, "reader", w["embedding.weight"][word], h)
    posterior = torch.distributions.Normal(linear(w, "mean", h), linear(w, "log_std", h).exp())
    prior = torch.distributions.Normal(torch.zeros(LATENT, dtype=torch.float64), 1.0)
    h = torch.tanh(linear(w, "begin", posterior.mean + posterior.stddev * torch.tensor(noise)))
    states = []
    for word in words:
        states.append(h)
        h = gru(w, "writer", w["embedding.weight"][word], h)
    logits = linear(w, "output", torch.stack(states))
    written = F.cross_entropy(logits, torch.tensor(words), reduction="sum")
    return written + torch.distributions.kl_divergence(posterior, prior).sum()


def draw_noisy_words(rng: Rng) -> Any:
    return rng.integers(0, WORDS, rng.integers(1, 5)).tolist(), rng.standard_normal(LATENT)


class Siamese(ab.Module):
    """One network for two inputs; it draws related pairs together and pushes others apart (Hadsell et al. 2006)."""

    def __init__(self, rng: Rng) -> None:
        self.layers = [ab.Linear(DIM, DIM, rng=rng) for _ in range(2)]

    @ab.cell
    def embed(self, x: Any) -> Any:
        first, second = self.layers
        return second(ab.tanh(first(x)))

    @ab.cell
    def pair_loss(self, a: Any, b: Any, same: bool) -> Any:
        distance = ab.sqrt(ab.sum((a - b) ** 2) + 1e-6)
        return distance**2 if same else ab.relu(1.5 - distance) ** 2

    def loss(self, instance: Any) -> Any:
        a, b, same = instance
        return self.pair_loss(self.embed(a), self.embed(b), same)


def siamese(w: Weights, instance: Any) -> Tensor:
    a, b, same = instance
    a, b = (linear(w, "layers.1", torch.tanh(linear(w, "layers.0", torch.tensor(x)))) for x in (a, b))
    distance = torch.dist(a, b).square().add(1e-6).sqrt()
    return torch.where(torch.tensor(same), distance, F.relu(1.5 - distance)).square()


def draw_pair(rng: Rng) -> Any:
    return rng.standard_normal(DIM), rng.standard_normal(DIM), bool(rng.random() < 0.5)


class Contrastive(ab.Module):
    """InfoNCE (van den Oord et al. 2018) among the views of one instance: which of the others is the second view?"""

    def __init__(self, rng: Rng) -> None:
        self.project = ab.Linear(DIM, DIM, rng=rng)
        self.log_scale = ab.Parameter(0.7)

    @ab.cell
    def embed(self, x: Any) -> Any:
        z = self.project(x)
        return z / ab.sqrt(ab.sum(z**2))

    @ab.cell
    def contrast(self, anchor: Any, positive: Any, others: Any) -> Any:
        scale = ab.exp(self.log_scale)
        chosen = scale * ab.dot(anchor, positive)
        return ab.log(1.0 + ab.sum_n([ab.exp(scale * ab.dot(anchor, z) - chosen) for z in others], shape=()))

    def loss(self, views: Any) -> Any:
        anchor, positive, *others = [self.embed(x) for x in views]
        return self.contrast(anchor, positive, others)


def contrastive(w: Weights, views: Any) -> Tensor:
    z = F.normalize(linear(w, "project", torch.tensor(views)), dim=1)
    return F.cross_entropy(w["log_scale"].exp() * (z[1:] @ z[0]), torch.tensor(0))


def draw_views(rng: Rng) -> Any:
    return rng.standard_normal((rng.integers(2, 6), DIM))


class HyperNetwork(ab.Module):
    """A network that generates the weights of another one for each instance (Ha, Dai, Le 2017)."""

    def __init__(self, rng: Rng) -> None:
        self.tasks = ab.Embedding(3, LATENT, rng=rng)
        self.A = array(rng, DIM * DIM, LATENT)
        self.b = ab.Linear(LATENT, DIM, rng=rng)
        self.v = array(rng, DIM)

    @ab.cell
    def weights(self, task: Any) -> Any:
        z = self.tasks(task)
        return ab.reshape(self.A @ z, (DIM, DIM)), self.b(z)

    @ab.cell
    def layer(self, weights: Any, x: Any) -> Any:
        W, b = weights
        return ab.tanh(W @ x + b)

    def loss(self, instance: Any) -> Any:
        task, x, y = instance
        weights = self.weights(task)
        for _ in range(2):
            x = self.layer(weights, x)
        return ab.squared_error(ab.sum(self.v * x), y)


def hyper_network(w: Weights, instance: Any) -> Tensor:
    task, x, y = instance
    z = w["tasks.weight"][task]
    x = torch.tensor(x)
    for _ in range(2):
        x = torch.tanh(F.linear(x, (w["A"] @ z).reshape(DIM, DIM), linear(w, "b", z)))
    return F.mse_loss(x @ w["v"], torch.tensor(y, dtype=torch.float64))


def draw_task(rng: Rng) -> Any:
    return int(rng.integers(3)), rng.standard_normal(DIM), float(rng.standard_normal())


class HyperRNN(ab.Module):
    """In one cell: the input determines how a shared matrix is scaled and rotated before it multiplies the state."""

    def __init__(self, rng: Rng) -> None:
        self.W, self.left, self.right = array(rng, DIM, DIM), array(rng, DIM, DIM), array(rng, DIM, DIM)
        self.make = ab.Linear(DIM, DIM * DIM, rng=rng)

    @ab.cell
    def step(self, x: Any, h: Any) -> Any:
        made = ab.reshape(self.make(x), (DIM, DIM))
        W = self.W * (self.left @ x)[:, None] + ab.outer(self.right @ x, h)
        return ab.tanh((W + ab.transpose(made)) @ h + x)

    def loss(self, xs: Any) -> Any:
        h = np.ones(DIM)
        for x in xs:
            h = self.step(x, h)
        return ab.mean(h * h)


def hyper_rnn(w: Weights, xs: Any) -> Tensor:
    h = torch.ones(DIM, dtype=torch.float64)
    for x in torch.tensor(xs):
        made = linear(w, "make", x).reshape(DIM, DIM)
        turned = torch.outer(w["right"] @ x, h)
        h = torch.tanh(torch.diag(w["left"] @ x) @ w["W"] @ h + turned @ h + made.T @ h + x)
    return h.square().mean()


CASES = [
    Case("variational autoencoder", VAE, draw_noisy, vae),
    Case("variational autoencoder of sequences", SequenceVAE, draw_noisy_words, sequence_vae),
    Case("siamese network", Siamese, draw_pair, siamese),
    Case("contrastive loss", Contrastive, draw_views, contrastive),
    Case("hyper network", HyperNetwork, draw_task, hyper_network),
    Case("hyper rnn", HyperRNN, draw_views, hyper_rnn),
]
