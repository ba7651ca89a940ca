"""The models again in PyTorch, written independently, to compare with."""

import torch

torch.set_num_threads(1)  # waking threads for tensors this small takes most of the time otherwise
