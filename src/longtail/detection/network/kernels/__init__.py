"""Triton kernels that pay for themselves; PyTorch's own elsewhere."""
