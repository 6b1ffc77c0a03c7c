"""ResNet-20 on CIFAR-10 with Deep Gradient Compression: 4 workers, each of which sends 0.1 % of its gradients.

    python -m jaxtern.prepare cifar-10-binary.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10_dgc
    python -m jaxtern.train --config=cifar10_dgc --config.mean.method=float --config.optimizer.name=momentum \
        --workdir=runs/cifar10_dgc_float

In the first five epochs workers send 25, 6.25, 1.5625, .4 and .1 %. The momentum of .9 is applied by each worker before
compression, so the optimiser has none; a float run has it in the optimiser. The rest is as in `cifar10_resnet`.

Measured: nothing.
Published: nothing for this network.
Hardware: one GPU, or up to four with --config.run.num_devices=4.
"""

from jaxtern.configs import cifar10_resnet


def get_config():
    config = cifar10_resnet.get_config()
    config.run.num_workers = 4
    config.mean.method = "dgc"
    config.mean.density = 0.001
    config.mean.density_warmup = (0.25, 0.0625, 0.015625, 0.004, 0.001)
    config.mean.momentum = 0.9
    config.optimizer.name = "sgd"
    return config
