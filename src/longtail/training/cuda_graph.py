"""The captured step: all replicas' steps as one CUDA graph, each on its own stream.

Replaying launches hundreds of kernels at the price of one, and replicas fill the device together.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from longtail.training.trainer import Trainer

WARM_UP_STEPS = 3
"""Enough for cuDNN and the allocator to settle before the capture."""


Sizes = tuple[int, ...]
"""Images of each replica in one step; 0 for one whose epoch is over already."""


def steps_of_epoch(replicas: Sequence[Trainer]) -> list[Sizes]:
    """The steps that `replicas` take together; an epoch lasts as long as its longest."""
    return list(zip_longest(*(replica.step_sizes for replica in replicas), fillvalue=0))


def stepper(replicas: Sequence[Trainer]) -> Callable[[Sizes], None]:
    """advance(sizes): one step of every replica on its number of images.

    On one CUDA device every step is captured here and now; elsewhere steps run eagerly.
    """
    fabric, machine = replicas[0].fabric, replicas[0].config.machine
    alone = fabric.device.type == "cuda" and fabric.world_size == 1
    if not (machine.graph and alone and all(replica.resident.capturable for replica in replicas)):
        return lambda sizes: _step_all(replicas, sizes)
    graphs = {sizes: capture(replicas, sizes) for sizes in set(steps_of_epoch(replicas))}
    return lambda sizes: graphs[sizes].replay()


def capture(replicas: Sequence[Trainer], sizes: Sizes) -> torch.cuda.CUDAGraph:
    """Record one step of every replica; their state is afterwards what it was before."""
    pairs = [(replica, size) for replica, size in zip(replicas, sizes, strict=True) if size]
    replicas = [replica for replica, _ in pairs]
    with torch.no_grad():  # a recorded clone would tie the gradients to this stream
        saved = [{id(t): t.clone() for t in replica.tensors()} for replica in replicas]
    seeds = [replica.state.generator.get_state() for replica in replicas]
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for replica, size in pairs:
            for _ in range(WARM_UP_STEPS):
                replica.cursor.zero_()
                replica.step(size)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    for replica in replicas:
        graph.register_generator_state(replica.state.generator)
    streams = [torch.cuda.Stream() for _ in replicas]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        begun = []
        try:
            for (replica, size), stream in zip(pairs, streams, strict=True):
                stream.wait_stream(main)
                begun.append(stream)
                with torch.cuda.stream(stream):
                    replica.step(size)
        finally:  # a capture that fails must end too, or its own error hides the first
            for stream in begun:
                main.wait_stream(stream)
    for replica, before, seed in zip(replicas, saved, seeds, strict=True):
        _restore(replica, before)
        replica.state.generator.set_state(seed)
    return graph


def _restore(replica: Trainer, before: dict[int, Tensor]) -> None:
    """Undo the warm-up. A buffer that the optimiser made meanwhile starts at zero, as it would."""
    with torch.no_grad():
        for tensor in replica.tensors():
            tensor.copy_(before[id(tensor)]) if id(tensor) in before else tensor.zero_()


def _step_all(replicas: Sequence[Trainer], sizes: Sizes) -> None:
    for replica, size in zip(replicas, sizes, strict=True):
        if size:
            replica.step(size)
