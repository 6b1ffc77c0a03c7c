"""A network of two layers on the digits: python -m jaxtern.train --config=docs/examples/two_layers.py"""

import jax
from flax import nnx

from jaxtern.configs import digits
from jaxtern.models import MODELS
from jaxtern.models.model import Model


class TwoLayers(Model):
    last_layer = "head"  # stays float under mean.float_last_layer

    def __init__(self, input_shape, num_classes, *, rngs):
        height, width, channels = input_shape
        self.hidden = nnx.Linear(height * width * channels, 128, rngs=rngs)
        self.head = nnx.Linear(128, num_classes, rngs=rngs)

    def __call__(self, images, key=None):  # a key in training, for dropout; None in evaluation
        return self.head(jax.nn.relu(self.hidden(images.reshape(images.shape[0], -1))))


MODELS["two_layers"] = TwoLayers


def get_config():
    config = digits.get_config()
    config.model.name = "two_layers"
    return config
