"""Two processes equal one process on the joined batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing import assert_close

from helpers import on_two_ranks
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead

HEADS = {"cosine": CosineHead, "capsule": CapsuleHead, "deconfound": DeconfoundHead}
# features of each rank, step by step: equal, unequal, one empty, both empty, the other empty
SHARES = [(4, 4), (5, 2), (0, 3), (0, 0), (1, 0)]


def make(name):
    torch.manual_seed(0)
    return HEADS[name](8, 5).double()


def batch(step):
    """Features and classes of all ranks together at one step."""
    generator = torch.Generator().manual_seed(step)
    size = sum(SHARES[step])
    x = torch.rand(size, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(5, (size,), generator=generator)


def train(name, share):
    """What one process sees: logits and gradient of the first step, then the mean after each."""
    head = make(name)
    x, target = (part[share(0)] for part in batch(0))
    logits = head(x)
    F.cross_entropy(logits, target).backward()
    if dist.is_initialized():  # as DistributedDataParallel does
        dist.all_reduce(head.weight.grad)
        head.weight.grad /= dist.get_world_size()
    means = [head.mean_feature.clone()]
    for step in range(1, len(SHARES)):
        head(batch(step)[0][share(step)])
        means.append(head.mean_feature.clone())
    after = head.eval()(batch(1)[0]).detach()
    return {"logits": logits.detach(), "gradient": head.weight.grad, "means": means, "eval": after}


def train_on_rank(folder):
    rank = dist.get_rank()

    def share(step):
        first = SHARES[step][0]
        return slice(first) if rank == 0 else slice(first, None)

    torch.save({name: train(name, share) for name in HEADS}, folder / f"{rank}.pt")


def test_two_ranks_equal_one_process_on_the_joined_batch(tmp_path):
    on_two_ranks(train_on_rank, tmp_path, store=tmp_path / "store")
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name in HEADS:
        alone = train(name, lambda step: slice(None))
        first, second = (rank[name] for rank in ranks)
        assert_close(torch.cat([first["logits"], second["logits"]]), alone["logits"])
        for rank in (first, second):
            assert_close(rank["gradient"], alone["gradient"])
            assert_close(rank["means"], alone["means"])
            assert_close(rank["eval"], alone["eval"])
        assert torch.equal(alone["means"][3], alone["means"][2])  # the empty step
