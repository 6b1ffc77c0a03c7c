"""CifarNet on CIFAR-10 as TernGrad trains it, 2 workers with ternary gradients: 300,000 steps of Adam at one rate.

    python -m jaxtern.prepare cifar-10-python.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10_terngrad
    python -m jaxtern.train --config=cifar10_terngrad --config.codec=float --workdir=runs/cifar10_terngrad_float

A scale for each tensor, as the original has it; `cifar10` is the shorter recipe, in blocks.

Measured: nothing yet.
Published: test accuracy 85.64 % with 2 workers, float 86.56 %; and with --config.num_workers=16
--config.batch_size=2048 --config.num_steps=18750 82.80 %, float 83.19 % (Wen et al. 2017).
Hardware: one GPU, or two with --config.num_devices=2; 2 CPU cores take about a day.
"""

import ml_collections

from jaxtern.configs import cifar10


def get_config() -> ml_collections.ConfigDict:
    config = cifar10.get_config()
    config.num_steps = 300_000
    config.block_size = None
    config.learning_rate = 2e-4
    config.schedule = "fixed"
    config.log_every = 1000
    config.evaluate_every = 3910
    config.checkpoint_every = 3910
    return config
