"""Policies that are small networks: features of types, and the network that scores them."""
