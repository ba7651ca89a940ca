"""Serving, in which requests of any shape join a running mini-batch: from Python (`serve`), or over HTTP (`app`)."""

from autobatch.serving.asgi import app
from autobatch.serving.counts import Counts
from autobatch.serving.server import Server, serve

__all__ = ["Counts", "Server", "app", "serve"]
