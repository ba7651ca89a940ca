"""The models reimplemented in PyTorch, independently, as references."""

import torch

torch.set_num_threads(1)  # otherwise, most of the time goes to waking threads for such small tensors
