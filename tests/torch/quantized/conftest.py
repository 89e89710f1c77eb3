"""What needs a GPU is left out where there is none."""

import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_quantized_cuda.py"]
