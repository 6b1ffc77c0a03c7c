"""VGG-16 with batch norm on ImageNet: 8 workers, ternary gradients, and AlexNet's settings at a batch of 256.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.data.name=./data/imagenet --config.mean.method=float \
        --workdir=runs/imagenet_vgg_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

--config.model.name=vgg_a has 8 convolutions instead. The last layer and tensors below 9,217 elements stay float.

Measured: nothing.
Published: no accuracy with ternary gradients, but speed: in TernGrad's model of 512 GPUs, steps of vgg_a are 7.7 times
as fast as with float32 on Ethernet and a PCI switch, 2.2 times on InfiniBand and NVLink (Wen et al. 2017).
Hardware: 8 GPUs with 32 examples each, or fewer GPUs with several workers each.
"""

from jaxtern.configs import imagenet_alexnet


def get_config():
    config = imagenet_alexnet.get_config()
    config.data.preprocessing = "vgg"
    config.model.name = "vgg_16"
    config.run.batch_size = 256
    config.run.num_steps = 370_000
    config.optimizer.learning_rate = 0.01
    config.run.checkpoint_every = 5000
    return config
