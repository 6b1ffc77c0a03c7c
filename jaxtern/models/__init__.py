"""The networks, by name."""

from flax import nnx

from jaxtern.models.cifarnet import CifarNet
from jaxtern.models.lenet import LeNet
from jaxtern.models.transformer import Transformer

# Those that the trainer can train. Not alexnet, until it keeps moments of batch norm and has keys for dropout.
MODELS = {"lenet": LeNet, "cifarnet": CifarNet, "transformer": Transformer}

_KINDS = {True: "text", False: "images"}


def create_model(name: str, image_shape: tuple[int, ...], num_classes: int, seed: int) -> nnx.Module:
    """A network with fresh weights.

    Args:
      name: one of MODELS.
      image_shape: height, width, channels; or, for networks of text, how many characters.
      num_classes: width of the logits.
      seed: of the weights.

    Raises:
      ValueError: for an unknown name, or a network of text where images are given, or the other way round.
    """
    if name not in MODELS:
        raise ValueError(f"model={name!r}: must be one of {', '.join(MODELS)}")
    takes, given = (_KINDS[text] for text in (hasattr(MODELS[name], "takes_text"), len(image_shape) == 1))
    if takes != given:
        raise ValueError(f"model={name!r}: takes {takes}, and preprocessing gives {given}")
    return MODELS[name](image_shape, num_classes, rngs=nnx.Rngs(params=seed))
