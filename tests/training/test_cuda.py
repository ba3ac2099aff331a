"""The captured step agrees with the eager one; needs CUDA."""

import pytest
import torch

import longtail as lt
from helpers import stepping_config, tiny_data
from longtail import methods
from longtail.core.config import Config
from longtail.data.base import Data
from longtail.evaluation.result import KEYS
from longtail.nn import backbones
from longtail.reporting.gradcam import grad_cam
from longtail.runs.fit import fit_all
from longtail.training.batches import ResidentBatches
from longtail.training.cuda_graph import build_step, list_steps
from longtail.training.launch import launch
from longtail.training.loop import train
from longtail.training.schedule import schedule_stages
from longtail.training.trainer import Trainer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the captured step needs a CUDA device"
)

COUNTS = (200, 100, 40)  # 340 images: 21 steps of 16 and a short batch of 4


def cuda_config(**options) -> Config:
    defaults = {"device": "cuda", "precision": "32", "batch_size": 16, "backbone": "resnet32"}
    return stepping_config(**{**defaults, **options})


def losses(configs: list[Config], data: Data, steps: int = 20) -> list[list[float]]:
    """The first losses of each training, all run together."""
    fabric = launch(configs[0].machine)
    built = [methods.build(c.method, c.options) for c in configs]
    batches = ResidentBatches(data, configs[0].train, fabric.device, built[0].views)
    trainers = [Trainer(c, m, data, batches, fabric) for c, m in zip(configs, built, strict=True)]
    for trainer in trainers:
        trainer.enter(0, resumed=False)
        trainer.begin_epoch(0)
    advance = build_step(trainers)
    for sizes in list_steps(trainers)[:steps]:
        advance(sizes)
    return [trainer.losses[:steps].tolist() for trainer in trainers]


@pytest.fixture(scope="module", autouse=True)
def deterministic():
    """Compare what is computed, not the order in which cuDNN adds it up."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("method", ["baseline", "deconfound", "capsule"])
def test_graph_and_eager_agree_over_20_steps(method):
    data = tiny_data(counts=COUNTS)
    (graph,) = losses([cuda_config(method=method, lr=0.005)], data)
    (eager,) = losses([cuda_config(method=method, lr=0.005, graph=False)], data)
    assert len(graph) == 20 and sum(graph[-5:]) < sum(graph[:5])
    assert graph == pytest.approx(eager, rel=2e-3)
    assert graph[:3] == pytest.approx(eager[:3], rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"augment": "resized-crop", "crop_size": 12},
        {"augment": "trivialaugment"},
        {"augment": "randaugment", "crop_size": 72},
        {"augment": "autoaugment"},
        {"augment": "crop-flip", "cutout": 0.5},
        {"augment": "autoaugment", "method": "deconfound-contrastive"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_augmentations_are_captured_too(options):
    data = tiny_data(counts=COUNTS)
    options = {**options, "lr": 0.01}
    (graph,) = losses([cuda_config(**options)], data)
    (eager,) = losses([cuda_config(graph=False, **options)], data)
    assert graph[:5] == pytest.approx(eager[:5], rel=1e-4)
    (on_cpu,) = losses([cuda_config(**{**options, "device": "cpu"})], data, steps=1)
    assert graph[0] == pytest.approx(on_cpu[0], rel=1e-2)  # the same crops, in half precision


@pytest.mark.parametrize("donors", ["instance", "class"])
def test_mixed_batches_are_captured_too(donors):
    box = {"instance": "inside", "class": "clipped"}[donors]
    mixing = {"mixup": 0.4, "cutmix": 0.4, "cutmix_box": box, "donors": donors}
    data, options = tiny_data(counts=COUNTS), {**mixing, "lr": 0.01}
    (graph,) = losses([cuda_config(**options)], data)
    (eager,) = losses([cuda_config(graph=False, **options)], data)
    assert graph[:5] == pytest.approx(eager[:5], rel=1e-4)


@pytest.mark.parametrize(
    ("method", "compiled"),
    # a compilation takes half a minute: the two shapes of network that are compiled
    [(m, False) for m in ("baseline", "deconfound", "mixup", "bbn", "ldam-drw")]
    + [("deconfound", True), ("bbn", True)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile's own
def test_bf16_and_compiled_steps_agree_with_float32(method, compiled):
    """bf16, our own kernels and the compiled backbone follow the plain step, up to rounding."""
    data = tiny_data(counts=COUNTS)
    options = {"method": method, "backbone": "resnet32-dual", "lr": 0.002}
    (fast,) = losses([cuda_config(precision="bf16", compile=compiled, **options)], data)
    (plain,) = losses([cuda_config(graph=False, **options)], data)
    assert fast[:2] == pytest.approx(plain[:2], rel=2e-2)
    assert sum(fast) == pytest.approx(sum(plain), rel=5e-2)
    assert fast != plain


def test_attention_in_bf16_follows_float32(tmp_path):
    """The second stage of `oltr`, which is captured anew, trains attention over the feature map."""
    data, config = tiny_data(counts=COUNTS), cuda_config(epochs=1, lr=0.002)

    def fit(precision: str) -> list[float]:
        changed = config.with_options(precision=precision)
        (run,) = fit_all(changed, ["oltr"], [0], out=tmp_path / precision, data=data)
        assert run.load_model()["backbone.attention.project.weight"].abs().max() > 0
        return [record["loss"] for record in run.metrics]

    assert fit("bf16") == pytest.approx(fit("32"), rel=5e-2)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimisers_are_captured_too(optimizer):
    data = tiny_data(counts=COUNTS)
    options = {"optimizer": optimizer, "lr": 1e-3}
    (graph,) = losses([cuda_config(**options)], data)
    (eager,) = losses([cuda_config(graph=False, **options)], data)
    assert graph[:5] == pytest.approx(eager[:5], rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "one-cycle", "head_lr": 0.05, "decay_norms": False, "mean_decay": "rate"},
        {"schedule": "one-cycle", "optimizer": "adamw", "head_lr": 0.01, "decay_norms": False},
        {"ema": 0.9},
        {"freeze": True, "ema": 0.9, "schedule": "one-cycle"},
    ],
)
def test_rates_averages_and_frozen_features_are_captured_too(options, tmp_path):
    data, config = tiny_data(counts=COUNTS), cuda_config(lr=0.005, epochs=2, **options)

    def fit(folder, **more):
        changed = config.with_options(**more)
        return fit_all(changed, ["deconfound"], [0], out=tmp_path / folder, data=data)[0]

    graph, eager = fit("graph"), fit("eager", graph=False)
    for first, second in zip(graph.metrics, eager.metrics, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-2)
        assert (first["lr"], first["mu"]) == (second["lr"], second["mu"])
    pair = graph.load_model(), eager.load_model()
    torch.testing.assert_close(*(p["head.weight"] for p in pair), rtol=5e-2, atol=5e-3)


def test_dropout_is_captured_and_resumes(tmp_path):
    from interrupted import Kill, KillAfter

    data, config = tiny_data(counts=COUNTS), cuda_config(drop=0.5, lr=0.005, epochs=2)

    def fit(folder, **more):
        return fit_all(config, ["deconfound"], [0], out=tmp_path / folder, data=data, **more)[0]

    whole = fit("whole")
    with pytest.raises(Kill):
        fit("killed", progress=KillAfter(1))
    losses = [[m["loss"] for m in run.metrics] for run in (whole, fit("killed", resume=True))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("name", methods.list_names())
def test_every_method_is_captured_resumes_and_evaluates_the_same_again(name, tmp_path):
    from interrupted import Kill, KillAfter

    data, config = tiny_data(), cuda_config(backbone="conv4", batch_size=8, epochs=2, method=name)
    stages = schedule_stages(methods.build(name).stages, 2)

    def fit(folder, config=config, **more):
        return fit_all(config, [name], [0], out=tmp_path / folder, data=data, **more)[0]

    graph, eager = fit("graph"), fit("eager", config.with_options(graph=False))
    with pytest.raises(Kill):
        fit("killed", progress=KillAfter(stages[-1].stop - 1))
    resumed = fit("killed", resume=True)
    for other, near in ((eager, 2e-2), (resumed, 1e-3)):
        pairs = zip(graph.metrics, other.metrics, strict=True)
        for first, second in pairs:
            assert first["loss"] == pytest.approx(second["loss"], rel=near)
    assert graph.metrics[0]["loss"] == pytest.approx(eager.metrics[0]["loss"], rel=1e-4)
    assert tuple(graph.result)[: len(KEYS)] == KEYS  # a choice adds its own
    again = lt.evaluate(graph, data=data)
    assert again.overall == pytest.approx(graph.result["overall"], abs=100 / 15)


def test_replicas_side_by_side_equal_each_seed_alone():
    data = tiny_data(counts=COUNTS)
    configs = [cuda_config(method="deconfound", seed=seed) for seed in range(4)]
    together = losses(configs, data)
    for config, beside in zip(configs, together, strict=True):
        (alone,) = losses([config], data)
        assert beside[:3] == pytest.approx(alone[:3], rel=1e-5)
        assert beside == pytest.approx(alone, rel=2e-3)
    assert together[0] != together[1]


def test_unlike_trainings_share_a_graph_and_each_is_what_it_is_alone():
    kinds = [("baseline", COUNTS), ("deconfound", COUNTS[::-1]), ("ldam-drw", (24, 12, 4))]

    def trained(kinds) -> list[Trainer]:
        trainers = []
        for method, counts in kinds:
            config, data = cuda_config(method=method, epochs=3), tiny_data(counts=counts)
            fabric = launch(config.machine)
            batches = ResidentBatches(data, config.train, fabric.device)
            trainers.append(Trainer(config, methods.build(method), data, batches, fabric))
        train(trainers, after_epoch=lambda epoch, records: None)
        return trainers

    for kind, beside in zip(kinds, trained(kinds), strict=True):
        (alone,) = trained([kind])
        assert beside.losses.tolist() == pytest.approx(alone.losses.tolist(), rel=5e-2)


def test_methods_of_equal_shape_train_together_and_short_batches_count(tmp_path):
    data = tiny_data(counts=COUNTS)
    config = cuda_config(keep_short_batch=True, epochs=6, precision="auto", lr=0.005)
    names = ["baseline", "deconfound", "deconfound-tde"]
    runs = fit_all(config, names, [0, 1], out=tmp_path, data=data)
    assert {run.result["replicas"] for run in runs} == {4}
    for run in runs:
        assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
        assert run.result["overall"] > 60
    batches = runs[0].load_model()["backbone.stem.1.num_batches_tracked"]
    assert int(batches) == 6 * 22  # 21 full steps and the short one, and no warm-up left in it


def test_a_resumed_capture_starts_where_the_checkpoint_was(tmp_path):
    from interrupted import Kill, KillAfter, without_clock

    data, config = tiny_data(counts=COUNTS), cuda_config(epochs=4, save_seconds=0.0)
    (whole,) = fit_all(config, ["deconfound"], [0], out=tmp_path / "a", data=data)
    with pytest.raises(Kill):
        fit_all(config, ["deconfound"], [0], out=tmp_path / "b", data=data, progress=KillAfter(2))
    (resumed,) = fit_all(config, ["deconfound"], [0], out=tmp_path / "b", data=data, resume=True)
    first, second = without_clock(whole)[1], without_clock(resumed)[1]
    assert [r["loss"] for r in first] == pytest.approx([r["loss"] for r in second], rel=1e-3)


def test_a_model_predicts_on_cuda_what_it_predicts_on_the_cpu(tmp_path):
    data = tiny_data(counts=COUNTS)
    (run,) = fit_all(cuda_config(epochs=2), ["deconfound-tde"], [0], out=tmp_path / "a", data=data)
    path = lt.export(run, out=tmp_path / "m.safetensors", alpha_input=True)
    there, here = lt.load_model(path), lt.load_model(path, device="cpu")
    assert there._network.device.type == "cuda"
    for alpha in (1.5, 0.5):
        there.alpha = here.alpha = alpha
        logits = there.logits(data.test.inputs), here.logits(data.test.inputs)
        torch.testing.assert_close(*logits, rtol=2e-2, atol=2e-2)  # TF32
    there.save_pretrained(tmp_path / "saved")
    again = lt.load_model(tmp_path / "saved", device="cpu").logits(data.test.inputs)
    torch.testing.assert_close(again, logits[1], rtol=1e-4, atol=1e-4)


def test_maps_are_those_of_the_cpu():
    torch.manual_seed(0)
    backbone = backbones.build("resnet32-dual", 3).eval()
    head = lt.DeconfoundHead(backbone.dim, 5).eval()
    head.mean_feature.fill_(1.0)
    inputs, target = torch.rand(4, 3, 32, 32), torch.tensor([0, 2, 4, 1])
    on_cpu = grad_cam(backbone, head, inputs, target)
    on_cuda = grad_cam(backbone.cuda(), head.cuda(), inputs.cuda(), target.cuda())
    assert torch.allclose(on_cuda.cpu(), on_cpu, atol=0.02 * float(on_cpu.max()))


def synchronised(rank: int, folder: str) -> None:
    """One of two ranks on one device: its half of a batch through a network with one step."""
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network())
    images = batch()[rank::2]
    loss = model.backbone(images).square().sum()
    loss.backward()
    gradient = model.backbone.layers[0].weight.grad
    torch.distributed.all_reduce(gradient)
    if rank == 0:
        torch.save((gradient.cpu(), dict(model.cpu().state_dict())), f"{folder}/rank0.pt")
    store.set(f"done {rank}", "yes")
    store.wait(["done 0", "done 1"])
    torch.distributed.destroy_process_group()


def network() -> torch.nn.Module:
    from longtail.training.model import build_model

    torch.backends.cudnn.allow_tf32 = False
    return build_model(stepping_config(), methods.build("baseline"), tiny_data()).cuda().train()


def batch() -> torch.Tensor:
    return torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)).cuda()


def test_synchronised_statistics_are_those_of_the_joined_batch(tmp_path):
    torch.multiprocessing.spawn(synchronised, (str(tmp_path),), nprocs=2)
    gradient, state = torch.load(tmp_path / "rank0.pt", weights_only=True)
    alone = network()
    alone.backbone(batch()).square().sum().backward()
    expected = alone.backbone.layers[0].weight.grad.cpu()
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)
    for key, value in alone.cpu().state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_with_synchronised_statistics_equal_one(tmp_path):
    import subprocess
    import sys

    from longtail.runs.folder import Run

    words = [
        *("train", "digits-lt", "--method", "deconfound", "--epochs", "2", "--precision", "32"),
        *("--augment", "crop", "--pad", "1", "--batch-size", "64"),
    ]
    for devices in (1, 2):
        more = ["--devices", str(devices), "--out", str(tmp_path / str(devices))]
        more += ["--sync-batchnorm"] if devices > 1 else []
        subprocess.run([sys.executable, "-m", "longtail", *words, *more], check=True)
    one, two = ([r["loss"] for r in Run(tmp_path / n).metrics] for n in "12")
    assert one == pytest.approx(two, rel=1e-3)


def test_streamed_and_resident_images_train_alike(tmp_path):
    from benchmarks.common.jpegs import generate, make_data
    from longtail.core.config import DataConfig

    paths = generate(tmp_path, 24, scale=0.2)
    config = cuda_config(backbone="conv4", augment="resized-crop", crop_size=32, lr=0.01)
    kept, streamed = (
        make_data(tmp_path, paths, 48, DataConfig(image_size=40, stream=stream))
        for stream in (False, True)
    )
    (resident,) = losses([config.with_options(graph=False)], kept, steps=3)
    (by_workers,) = stream_losses(config.with_options(workers=2), streamed)
    assert by_workers == pytest.approx(resident, rel=1e-4)


def test_a_prefetched_batch_is_not_read_before_it_arrives():
    from longtail.training.batches import _prefetch

    device = torch.device("cuda", 0)

    def slow():
        for value in range(8):
            batch = torch.full((1 << 20,), -1, device=device)
            torch.cuda._sleep(50_000_000)
            yield batch.fill_(value)

    read = [batch.clone() for batch in _prefetch(slow(), device)]
    assert [part.unique().tolist() for part in read] == [[value] for value in range(8)]


def test_prefetching_does_not_overwrite_a_batch_that_is_still_read():
    from longtail.training.batches import stream_batches

    images = torch.arange(96, dtype=torch.uint8).view(-1, 1, 1, 1).expand(96, 3, 64, 64)
    order = torch.arange(96).split(16)
    device, sums, behind = torch.device("cuda", 0), [], []
    for batch in stream_batches(images, order, cuda_config(workers=2).machine, device):
        torch.cuda._sleep(200_000_000)  # a tenth of a second, in which the host goes on
        sums.append(batch[:, 0, 0, 0].long())
        done = torch.cuda.Event()
        done.record()
        del batch  # its memory must not be handed out before the read
        behind.append(not done.query())
    assert torch.equal(torch.cat(sums).cpu(), torch.arange(96))
    if sum(behind) <= len(order) // 2:
        pytest.skip("the host was slower than the device, so nothing overlapped")


def stream_losses(config: Config, data: Data) -> list[list[float]]:
    from longtail.training.batches import StreamedBatches

    fabric = launch(config.machine)
    batches = StreamedBatches(data, config.train, config.machine, fabric.device)
    trainer = Trainer(config, methods.build(config.method), data, batches, fabric)
    trainer.enter(0, resumed=False)
    trainer.begin_epoch(0)
    advance = build_step([trainer])
    for sizes in list_steps([trainer]):
        advance(sizes)
    return [trainer.losses.tolist()]


def test_gradients_in_parts_are_captured(tmp_path):
    data = tiny_data(images=False, counts=COUNTS)
    options = {"backbone": "identity", "method": "deconfound", "lr": 0.05}
    (whole,) = losses([cuda_config(**options)], data)
    (parts,) = losses([cuda_config(accumulate=4, **options)], data)
    assert parts == pytest.approx(whole, rel=1e-4)
