"""GoogLeNet on ImageNet, 2 workers with ternary gradients, TernGrad's recipe: momentum .04 falling as (1 - t/T)^.5.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_googlenet --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_googlenet --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_googlenet_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The last layer stays float.

Measured: nothing yet.
Published: top-5 86.77 %, float 88.30 % (Wen et al. 2017; with other rates and batches 85.96 and 87.82 % for 4
workers, 86.47 and 89.00 % for 8).
Hardware: 2 GPUs with 64 examples each, or one, which has both workers.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/imagenet"
    config.preprocessing = "inception"
    config.model = "googlenet"
    config.dropout_rate = 0.2
    config.num_workers = 2
    config.batch_size = 128
    config.num_steps = 600_000
    config.clip_sigmas = 2.5
    config.float_last_layer = True
    config.optimizer = "momentum"
    config.momentum = 0.9
    config.learning_rate = 0.04
    config.schedule = "polynomial"
    config.power = 0.5
    config.weight_decay = 4e-5
    config.log_every = 100
    config.evaluate_every = 10_000
    config.checkpoint_every = 5000
    return config
