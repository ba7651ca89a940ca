"""Policies learned on families of graphs: networks, evolution, Gymnasium environments."""
