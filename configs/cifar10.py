"""CifarNet on CIFAR-10, 2 workers with ternary gradients, in 30 epochs: Adam 1e-3, falling as a cosine to 0.

    python -m jaxtern.prepare cifar-10-python.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10
    python -m jaxtern.train --config=cifar10 --config.codec=float --workdir=runs/cifar10_float

Measured: 77.50 %, float 77.89 %; with --config.num_workers=8 76.80 %, and with --config.clip_sigmas=0
--config.block_size=16 besides, for 9.3 bits an element in place of 6.7, 77.02 % (docs/results.md).
Hardware: 2 CPU cores.

TernGrad's own recipe, of 768 epochs at one rate, is `cifar10_terngrad`.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/cifar10"
    config.preprocessing = "cifar10"
    config.model = "cifarnet"
    config.num_workers = 2
    config.batch_size = 128
    config.num_steps = 11_730
    config.clip_sigmas = 2.5
    config.block_size = 64
    config.optimizer = "adam"
    config.learning_rate = 1e-3
    config.schedule = "cosine"
    config.weight_decay = 0.004  # of the kernels of fc1 and fc2, as the network has it
    config.log_every = 100
    config.evaluate_every = 391
    config.checkpoint_every = 391
    return config
