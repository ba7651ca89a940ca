"""Serve a recursive network with Ray Serve: each replica has a core and batches its concurrent requests.

pip install 'autobatch-nn[serve]' 'ray[serve]'
python examples/ray_serve.py --replicas 2 --requests 200
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import ray
from ray import serve

import autobatch as ab

URL = "http://127.0.0.1:{port}/"
WORDS = {word: number for number, word in enumerate(("the", "film", "plot", "is", "was", "not", "very", "good", "bad"))}


class Phrases(ab.Module):
    """Scores phrases: a phrase is a word, or a pair of phrases.

    Ray sends the class to its replicas by value, as it also does for classes with methods marked `@ab.cell`.
    """

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Embedding(len(WORDS), dim, rng=rng)
        self.join, self.out = ab.Linear(2 * dim, dim, rng=rng), ab.Linear(dim, 2, rng=rng)

    def encode(self, phrase: Any) -> Any:
        """Encode a phrase, given as JSON, as a vector (dim,)."""
        if isinstance(phrase, str):
            return self.words(WORDS[phrase])
        left, right = map(self.encode, phrase)
        return ab.tanh(self.join(ab.concat((left, right))))

    def scores(self, phrase: Any) -> Any:
        """Return the scores of a phrase (2,)."""
        return self.out(self.encode(phrase))


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=256)
class Replica:
    """A process with its own server; Ray distributes the requests among replicas."""

    def __init__(self, dim: int) -> None:
        self.server = ab.serve(Phrases(dim, np.random.default_rng(0)).scores, max_running=128)

    async def __call__(self, request: Any) -> list[float]:
        """Answer a request whose body is a phrase."""
        scores: list[float] = (await self.server(await request.json(), deadline=60.0)).tolist()
        return scores


def draw(rng: np.random.Generator, n_words: int) -> Any:
    """Draw a phrase of `n_words` words."""
    if n_words == 1:
        return str(rng.choice([*WORDS]))
    left = int(rng.integers(1, n_words))
    return [draw(rng, left), draw(rng, n_words - left)]


def ask(port: int, phrase: Any) -> list[float]:
    """Send a phrase and wait for its scores."""
    with urlopen(Request(URL.format(port=port), json.dumps(phrase).encode(), method="POST"), timeout=60) as answer:
        scores: list[float] = json.loads(answer.read())
    return scores


def main() -> None:
    """Serve the model, send requests from 32 threads, compare the answers with the model's own, and shut down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("replicas", 2), ("requests", 200), ("dim", 64), ("port", 8123)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    ray.init(num_cpus=given.replicas, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    serve.run(Replica.options(num_replicas=given.replicas).bind(given.dim))
    rng, model = np.random.default_rng(1), Phrases(given.dim, np.random.default_rng(0))
    phrases = [draw(rng, int(rng.integers(1, 12))) for _ in range(given.requests)]
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda phrase: ask(given.port, phrase), phrases))
    wrong = [k for k, phrase in enumerate(phrases) if not np.allclose(answers[k], model.scores(phrase), atol=1e-5)]
    print(f"{len(answers)} answers of {given.replicas} replicas, {len(wrong)} of them wrong")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
