"""Small-network policies: features of types, and the network that scores them."""
