"""The step as a CUDA graph: one graph holds the steps of all trainers, each on its own stream.

A replay launches hundreds of kernels at the price of one, and trainers fill the device together.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch

from longtail.training.trainer import Trainer

WARM_UP_STEPS = 3
"""Steps before the capture, so that cuDNN and the allocator have made their choices."""


Sizes = tuple[int, ...]
"""Images of each trainer in one step; 0 if its epoch has ended."""


def list_steps(trainers: Sequence[Trainer]) -> list[Sizes]:
    """List the steps of an epoch, which lasts as long as that of the slowest trainer."""
    return list(zip_longest(*(trainer.step_sizes for trainer in trainers), fillvalue=0))


def build_step(trainers: Sequence[Trainer]) -> Callable[[Sizes], None]:
    """Build the function that takes one step of every trainer.

    On one CUDA device, steps of every size are captured now; elsewhere they run eagerly.
    """
    fabric, machine = trainers[0].fabric, trainers[0].config.machine
    one_device = fabric.device.type == "cuda" and fabric.world_size == 1
    capturable = all(trainer.batches.capturable for trainer in trainers)
    if machine.graph and one_device and capturable:
        graphs = {sizes: capture(trainers, sizes) for sizes in set(list_steps(trainers))}
        return lambda sizes: graphs[sizes].replay()

    def step_all(sizes: Sizes) -> None:
        for trainer, size in zip(trainers, sizes, strict=True):
            if size:
                trainer.step(size)

    return step_all


def capture(trainers: Sequence[Trainer], sizes: Sizes) -> torch.cuda.CUDAGraph:
    """Capture one step of every trainer, and leave its state as it was."""
    pairs = [(trainer, size) for trainer, size in zip(trainers, sizes, strict=True) if size]
    trainers = [trainer for trainer, _ in pairs]
    with torch.no_grad():  # a recorded clone would tie the gradients to this stream
        saved = [{id(t): t.clone() for t in trainer.tensors()} for trainer in trainers]
    seeds = [trainer.state.generator.get_state() for trainer in trainers]
    _warm_up(pairs)
    graph = torch.cuda.CUDAGraph()
    for trainer in trainers:
        graph.register_generator_state(trainer.state.generator)
    streams = [torch.cuda.Stream() for _ in trainers]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        forked = []
        try:
            for (trainer, size), stream in zip(pairs, streams, strict=True):
                stream.wait_stream(main)
                forked.append(stream)
                with torch.cuda.stream(stream):
                    trainer.step(size)
        finally:  # join even after an error, or the capture's own error hides it
            for stream in forked:
                main.wait_stream(stream)
    with torch.no_grad():  # a buffer that the optimiser has made since starts at zero, as it would
        for trainer, before, seed in zip(trainers, saved, seeds, strict=True):
            for tensor in trainer.tensors():
                tensor.copy_(before[id(tensor)]) if id(tensor) in before else tensor.zero_()
            trainer.state.generator.set_state(seed)
    return graph


def _warm_up(pairs: Sequence[tuple[Trainer, int]]) -> None:
    """Take a few steps on a stream of their own, as a capture needs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for trainer, size in pairs:
            for _ in range(WARM_UP_STEPS):
                trainer.cursor.zero_()
                trainer.step(size)
    torch.cuda.current_stream().wait_stream(stream)
