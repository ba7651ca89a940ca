"""Commands for training, evaluation and prediction."""
