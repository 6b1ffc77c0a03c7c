"""VGG-16 with batch norm on ImageNet, 8 workers with ternary gradients, with the settings of AlexNet at a batch of 256.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_vgg --config.data.name=./data/imagenet --config.mean.method=float \
        --workdir=runs/imagenet_vgg_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

--config.model.name=vgg_a takes the network of 8 convolutions. Tensors below 9,217 elements and the last layer stay
float.

Measured: nothing yet.
Published: no accuracy with ternary gradients, but what made this network one to compress: on 512 GPUs with Ethernet and
a PCI switch TernGrad's model has steps of vgg_a 7.7 times as fast as with float32, on InfiniBand and NVLink 2.2 times
(Wen et al. 2017).
Hardware: 8 GPUs with 32 examples each, or fewer, which share the workers.
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
