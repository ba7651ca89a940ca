"""Commands that train, evaluate and predict."""
