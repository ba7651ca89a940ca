"""The machine and the user's folders: where caches lie, what processor this is, whose turn it is to run."""
