"""GoogLeNet and Inception v3 take torchvision's weights, those of their heads too, and give its logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import traverse_util

State = dict[str, np.ndarray]
SINGLE = ("branch1x1", "branch_pool")  # of Inception v3, whose name has no number behind it


def draw_googlenet(drawn: Any, num_classes: int) -> State:
    for name, shape in (("conv1", (64, 3, 7, 7)), ("conv2", (64, 64, 1, 1)), ("conv3", (192, 64, 3, 3))):
        drawn.unit(name, *shape)
    channels = 192
    for name, first, reduced, second, reduced_more, third, fourth in (
        ("3a", 64, 96, 128, 16, 32, 32), ("3b", 128, 128, 192, 32, 96, 64), ("4a", 192, 96, 208, 16, 48, 64),
        ("4b", 160, 112, 224, 24, 64, 64), ("4c", 128, 128, 256, 24, 64, 64), ("4d", 112, 144, 288, 32, 64, 64),
        ("4e", 256, 160, 320, 32, 128, 128), ("5a", 256, 160, 320, 32, 128, 128), ("5b", 384, 192, 384, 48, 128, 128),
    ):  # fmt: skip
        drawn.unit(f"inception{name}.branch1", first, channels, 1, 1)
        drawn.unit(f"inception{name}.branch2.0", reduced, channels, 1, 1)
        drawn.unit(f"inception{name}.branch2.1", second, reduced, 3, 3)
        drawn.unit(f"inception{name}.branch3.0", reduced_more, channels, 1, 1)
        drawn.unit(f"inception{name}.branch3.1", third, reduced_more, 3, 3)
        drawn.unit(f"inception{name}.branch4.1", fourth, channels, 1, 1)
        channels = first + second + third + fourth
    for name, channels in (("aux1", 512), ("aux2", 528)):
        drawn.unit(f"{name}.conv", 128, channels, 1, 1)
        drawn.kernel(f"{name}.fc1", 1024, 2048, has_bias=True)
        drawn.kernel(f"{name}.fc2", num_classes, 1024, has_bias=True)
    drawn.kernel("fc", num_classes, 1024, has_bias=True)
    return drawn.state


def draw_inception(drawn: Any, num_classes: int) -> State:
    def draw(block: str, channels: int, **branches: tuple[tuple[int, int, int], ...]) -> None:
        """Branches of features, height, width."""
        for branch, layers in branches.items():
            width = channels
            for i, (features, *window) in enumerate(layers, 1):
                drawn.unit(f"{block}.{branch}{f'_{i}' if branch not in SINGLE else ''}", features, width, *window)
                width = features

    def fork(block: str, branch: str) -> None:
        drawn.unit(f"{block}.{branch}a", 384, 384, 1, 3)
        drawn.unit(f"{block}.{branch}b", 384, 384, 3, 1)

    stem = (
        ("1a_3x3", 32, 3, 3),
        ("2a_3x3", 32, 32, 3),
        ("2b_3x3", 64, 32, 3),
        ("3b_1x1", 80, 64, 1),
        ("4a_3x3", 192, 80, 3),
    )
    for name, features, channels, side in stem:
        drawn.unit(f"Conv2d_{name}", features, channels, side, side)
    double = (64, 1, 1), (96, 3, 3), (96, 3, 3)
    for name, channels, pooled in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
        five = (48, 1, 1), (64, 5, 5)
        draw(
            f"Mixed_{name}", channels, branch1x1=((64, 1, 1),), branch5x5=five, branch3x3dbl=double,
            branch_pool=((pooled, 1, 1),),
        )  # fmt: skip
    drawn.unit("Mixed_6a.branch3x3", 384, 288, 3, 3)
    draw("Mixed_6a", 288, branch3x3dbl=double)
    for name, c in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        seven = (c, 1, 1), (c, 1, 7), (192, 7, 1)
        twice = (c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7)
        one = ((192, 1, 1),)
        draw(f"Mixed_{name}", 768, branch1x1=one, branch7x7=seven, branch7x7dbl=twice, branch_pool=one)
    drawn.unit("AuxLogits.conv0", 128, 768, 1, 1)
    drawn.unit("AuxLogits.conv1", 768, 128, 5, 5)
    drawn.kernel("AuxLogits.fc", num_classes, 768, has_bias=True)
    seven = (192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3)
    draw("Mixed_7a", 768, branch3x3=((192, 1, 1), (320, 3, 3)), branch7x7x3=seven)
    for name, channels in (("7b", 1280), ("7c", 2048)):
        block, single, double = f"Mixed_{name}", ((384, 1, 1),), ((448, 1, 1), (384, 3, 3))
        draw(block, channels, branch1x1=((320, 1, 1),), branch3x3=single, branch3x3dbl=double)
        fork(block, "branch3x3_2")
        fork(block, "branch3x3dbl_3")
        draw(block, channels, branch_pool=((192, 1, 1),))
    drawn.kernel("fc", num_classes, 2048, has_bias=True)
    return drawn.state


def draw_images(count: int, side: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, side, side, 3), np.float32)


class Recorded(NamedTuple):
    """What torch 2.13 gave on a CPU for what `draw` draws, of an image of draw_images, by layers put together as
    torchvision publishes them.

    Attributes:
      draw: of a number of classes.
      side: of the image.
      logits: of seven classes.
      exclude: patterns of tensors that a network for so small images has in another shape; evaluation needs none.
    """

    draw: Callable[[Any, int], State]
    side: int
    logits: list[float]
    exclude: tuple[str, ...] = ()


RECORDED = {
    "googlenet": Recorded(
        draw_googlenet, 65, [3.7255886, 7.495513, 8.3625145, -11.764906, -0.89516383, 2.6568725, 3.7978084]
    ),
    "inception_v3": Recorded(
        draw_inception, 75,
        [0.38603523, 0.013484985, 0.80989546, -0.9331363, 0.40920824, 0.49377975, 0.47753718],
        ("auxiliary/conv1/.*",),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_network_gives_the_logits_that_torchvision_gave(
    name: str, drawn: Any, network_of: Callable, save: Callable, assert_close: Callable
):
    recorded = RECORDED[name]
    network, path = network_of(name, recorded.side, 7), save(recorded.draw(drawn, 7))
    tensors = network.read(path, exclude=recorded.exclude)
    for layer in [tensors["auxiliary"].setdefault("conv1", {})] if recorded.exclude else []:
        layer |= jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), network.like["auxiliary"]["conv1"])
    assert_close(network.run(tensors, draw_images(1, recorded.side)), [recorded.logits], 1e-4)


# Likewise of googlenet in training, its dropout taken out: of both images the logits, and those of either head.
TRAINED_LOGITS = (
    [
        [-0.6339109, 1.362775, 0.92859232, -0.630271, 0.62823844, -0.017487258, -0.51861364],
        [-0.51095217, -0.81355894, 0.69002867, -0.35950416, 1.5304051, -0.40579411, 0.47179413],
    ],
    [
        [0.14840132, 0.50121367, 1.0902172, 1.1401271, 1.151829, -0.069688857, 1.4458388],
        [0.26904607, -0.66534424, 0.34921157, -0.48821908, -0.13582365, -2.5421109, 1.4864200],
    ],
    [
        [-1.2053045, 1.6134561, 0.48206085, 1.026071, -0.72648174, 1.9830328, 0.81150806],
        [-1.6836309, 1.0626351, 0.66012032, 1.3409394, -0.11738265, 0.64294606, -0.68783093],
    ],
)


@pytest.mark.slow
def test_heads_of_googlenet_give_the_logits_that_torchs_gave(
    drawn: Any, network_of: Callable, save: Callable, assert_close: Callable
):
    network = network_of("googlenet", 65, 7, dropout_rate=0.0)
    found = network.run(network.read(save(draw_googlenet(drawn, 7))), draw_images(2, 65), trains=True)
    for ours, theirs in zip(found, TRAINED_LOGITS, strict=True):
        assert_close(ours, theirs, 1e-3)


@pytest.mark.parametrize("draw", [draw_googlenet, pytest.param(draw_inception, marks=pytest.mark.slow)])
def test_network_takes_every_tensor_of_torchvisions_with_its_heads(
    draw: Callable, drawn: Any, network_of: Callable, save: Callable
):
    """And its moments, which are of many batches, count in full in training that goes on."""
    name, side = ("googlenet", 32) if draw is draw_googlenet else ("inception_v3", 299)
    network = network_of(name, side, 7)
    read = traverse_util.flatten_dict(network.read(save(draw(drawn, 7))), sep="/")
    like = traverse_util.flatten_dict(network.like, sep="/")
    assert {path: leaf.shape for path, leaf in read.items()} == {path: leaf.shape for path, leaf in like.items()}
    shares = {path: float(leaf) for path, leaf in read.items() if path.endswith("/share")}
    assert set(shares.values()) == {1.0}
    assert len(shares) == sum(path.endswith("norm/mean") for path in read)


def test_file_of_googlenet_without_heads_is_read_where_they_are_excluded(
    drawn: Any, network_of: Callable, save: Callable
):
    """As torchvision's own has none unless they are asked for."""
    path = save({name: x for name, x in draw_googlenet(drawn, 7).items() if not name.startswith("aux")})
    network = network_of("googlenet", 32, 7)
    assert network.like.keys() - network.read(path, exclude=["auxiliary./.*"]).keys() == {"auxiliary1", "auxiliary2"}
    with pytest.raises(ValueError, match=r"aux1\.\S+: must be there, as auxiliary1/\S+ of googlenet"):
        network.read(path)


@pytest.mark.parametrize(("name", "draw"), [("googlenet", draw_googlenet), ("inception_v3", draw_inception)])
def test_network_gives_the_logits_of_torchvisions_own(
    name: str, draw: Callable, drawn: Any, network_of: Callable, save: Callable, assert_close: Callable
):
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    side = 299 if name == "inception_v3" else 64
    state, images = draw(drawn, 7), draw_images(1, side)
    reference = getattr(torchvision.models, name)(num_classes=7, init_weights=False).eval()
    reference.load_state_dict({key: torch.tensor(value) for key, value in state.items()})
    with torch.no_grad():
        expected = reference(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()
    network = network_of(name, side, 7)
    assert_close(network.run(network.read(save(state)), images), expected, 1e-4)
