"""The networks, by name."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jaxtern.models.alexnet import AlexNet, AlexNetV2
from jaxtern.models.googlenet import GoogLeNet, TernGradGoogLeNet
from jaxtern.models.inception import InceptionV3
from jaxtern.models.model import Model
from jaxtern.models.normalization import Whole
from jaxtern.models.resnet import ResNet20, ResNet50, ResNet56, ResNet101, ResNet152
from jaxtern.models.small import CifarNet, LeNet, MnistNet
from jaxtern.models.transformer import Transformer
from jaxtern.models.vgg import VGG16, VGG19, VGGA, VGGF

MODELS: dict[str, type[Model]] = {
    "lenet": LeNet,
    "cifarnet": CifarNet,
    "mnistnet": MnistNet,
    "alexnet": AlexNet,
    "alexnet_v2": AlexNetV2,
    "vgg_a": VGGA,
    "vgg_16": VGG16,
    "vgg_19": VGG19,
    "vgg_f": VGGF,
    "googlenet": GoogLeNet,
    "googlenet_terngrad": TernGradGoogLeNet,
    "inception_v3": InceptionV3,
    "resnet_20": ResNet20,
    "resnet_56": ResNet56,
    "resnet_50": ResNet50,
    "resnet_101": ResNet101,
    "resnet_152": ResNet152,
    "transformer": Transformer,
}
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # it runs once


def create_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, seed: int, dropout_rate: float | None = None
) -> Model:
    """Creates a network with random weights.

    Args:
      name: a key of MODELS, to which users may add networks.
      input_shape: of one example: height, width and channels of an image, or the number of characters of a text.
      num_classes: width of the logits.
      seed: of the weights.
      dropout_rate: share of activations dropped in training, from 0 to below 1; None: the network's default.

    Raises:
      ValueError: for an unknown name, a shape that the network cannot take, a rate out of range, or any rate for a
        network without dropout.
    """
    if name not in MODELS:
        raise ValueError(
            f"model.name={name!r}: must be one of {', '.join(MODELS)}, or what a recipe or --networks adds to them"
        )
    takes, given = (("images", "text")[is_text] for is_text in (MODELS[name].takes_text, len(input_shape) == 1))
    if takes != given:
        raise ValueError(f"model.name={name!r}: takes {takes}, and preprocessing gives {given}")
    options: dict[str, Any] = {} if dropout_rate is None else {"dropout_rate": dropout_rate}
    if dropout_rate is not None:
        if "dropout_rate" not in inspect.signature(MODELS[name].__init__).parameters:
            raise ValueError(f"dropout_rate={dropout_rate!r}: must be None, as model={name!r} has no dropout")
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate={dropout_rate!r}: must be from 0 to below 1")
    rngs = nnx.Rngs(params=seed)
    rngs.params.count = Whole(rngs.params.count[...])  # pyright: ignore[reportAttributeAccessIssue]
    return MODELS[name](input_shape, num_classes, rngs=rngs, **options)


def draw_weights(create: Callable[[], Model]) -> Model:
    """Makes the network of `create` in one compiled program, rather than one for each tensor."""
    draw = jax.jit(lambda: nnx.to_pure_dict(nnx.state(create())), compiler_options=_QUICKLY)
    return nnx.merge(nnx.graphdef(nnx.eval_shape(create)), draw())


def functions_of(name: str) -> list[Callable]:
    """The functions of a network's class and its base networks; empty for an unknown name."""
    classes = [each for each in MODELS[name].__mro__ if issubclass(each, Model)] if name in MODELS else []
    return [each for own in classes for each in vars(own).values() if callable(each)]
