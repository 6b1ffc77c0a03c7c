"""ResNet-20 on CIFAR-10, 2 workers with ternary gradients; batch norm over the examples of both.

    python -m jaxtern.prepare cifar-10-python.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10_resnet
    python -m jaxtern.train --config=cifar10_resnet --config.codec=float --workdir=runs/cifar10_resnet_float

With --config.batch_norm=local every worker normalises by its own 64 examples.

Measured: nothing yet.
Published: test accuracy 91.25 %, float, on one device with crops of 32x32 pixels from padded images (He et al. 2015,
table 6: error 8.75 %); here crops are of 24x24 pixels, with colours changed, as CifarNet's. With ternary gradients
nothing is published.
Hardware: one GPU, or two with --config.num_devices=2.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/cifar10"
    config.preprocessing = "cifar10"
    config.model = "resnet_20"
    config.batch_norm = "sync"
    config.num_workers = 2
    config.virtual_workers = "vmapped"
    config.batch_size = 128
    config.num_steps = 64_000
    config.clip_sigmas = 2.5
    config.optimizer = "momentum"
    config.momentum = 0.9
    config.learning_rate = 0.1
    config.schedule = "piecewise"
    config.boundaries = (81.92, 122.88)  # after 32,000 and 48,000 steps
    config.weight_decay = 1e-4
    config.log_every = 100
    config.evaluate_every = 1000
    config.checkpoint_every = 1000
    return config
