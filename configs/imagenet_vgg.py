"""VGG-16 with batch norm on ImageNet, 8 workers with ternary gradients, with the settings of AlexNet at a batch of 256.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_vgg_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

--config.model=vgg_a takes the network of 8 convolutions. Tensors below 9,217 elements and the last layer stay float.

Measured: nothing yet.
Published: no accuracy with ternary gradients, but what made this network one to compress: on 512 GPUs with Ethernet and
a PCI switch TernGrad's model has steps of vgg_a 7.7 times as fast as with float32, on InfiniBand and NVLink 2.2 times
(Wen et al. 2017).
Hardware: 8 GPUs with 32 examples each, or fewer, which share the workers.
"""

import ml_collections

from jaxtern.configs import imagenet_alexnet


def get_config() -> ml_collections.ConfigDict:
    config = imagenet_alexnet.get_config()
    config.preprocessing = "vgg"
    config.model = "vgg_16"
    config.batch_size = 256
    config.num_steps = 370_000
    config.learning_rate = 0.01
    config.checkpoint_every = 5000
    return config
