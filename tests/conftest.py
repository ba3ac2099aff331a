"""Settings of every test process."""

import torch

torch.set_num_threads(1)
