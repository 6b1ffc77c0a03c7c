"""The networks, by name."""

from flax import nnx

from jaxtern.models.cifarnet import CifarNet
from jaxtern.models.inception import InceptionV3
from jaxtern.models.lenet import LeNet
from jaxtern.models.resnet import ResNet20, ResNet50, ResNet56, ResNet101, ResNet152

# Those that the trainer can train. Not alexnet, until it keeps moments of batch norm and has keys for dropout.
MODELS = {
    "lenet": LeNet,
    "cifarnet": CifarNet,
    "inception_v3": InceptionV3,
    "resnet_20": ResNet20,
    "resnet_56": ResNet56,
    "resnet_50": ResNet50,
    "resnet_101": ResNet101,
    "resnet_152": ResNet152,
}


def create_model(name: str, image_shape: tuple[int, int, int], num_classes: int, seed: int) -> nnx.Module:
    """A network with fresh weights.

    Args:
      name: one of MODELS.
      image_shape: height, width, channels.
      num_classes: width of the logits.
      seed: of the weights.

    Raises:
      ValueError: for an unknown name.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r}: must be one of {', '.join(MODELS)}")
    return MODELS[name](image_shape, num_classes, rngs=nnx.Rngs(params=seed))
