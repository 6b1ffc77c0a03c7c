"""AlexNet on ImageNet, 8 workers with ternary gradients, with TernGrad's recipe: momentum .04, a tenth every 20 epochs.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_alexnet --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_alexnet --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_alexnet_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

Tensors below 9,217 elements, which are biases and the shifts of batch norm, and the last layer stay float.

Measured: nothing yet.
Published: top-1 57.54 %, top-5 80.25 %; float 56.62 and 80.28 %, for which --config.dropout_rate=0.5 (Wen et al. 2017).
From the same table, ternary and (float):

    rate 0.01, batch  256, 2 workers, 370,000 steps: 57.61 / 80.47 % (57.33 / 80.56 %)
    rate 0.02, batch  512, 4 workers, 185,000 steps: 57.28 / 80.23 % (57.32 / 80.73 %)

Hardware: 8 GPUs with 128 examples each, or fewer, which share the workers.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/imagenet"
    config.preprocessing = "alexnet"
    config.model = "alexnet"
    config.dropout_rate = 0.2
    config.num_workers = 8
    config.batch_size = 1024
    config.num_steps = 92_500
    config.clip_sigmas = 2.5
    config.min_size = 9217
    config.float_last_layer = True
    config.optimizer = "momentum"
    config.momentum = 0.9
    config.learning_rate = 0.04
    config.schedule = "exponential"
    config.decay_epochs = 20.0
    config.decay_factor = 0.1
    config.weight_decay = 5e-4
    config.log_every = 100
    config.evaluate_every = 5000
    config.checkpoint_every = 2500
    return config
