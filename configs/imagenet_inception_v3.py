"""Inception v3 on ImageNet, 8 workers with ternary gradients: 299x299 pixels, RMSprop, smoothed labels, averages.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_inception_v3 --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_inception_v3 --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_inception_v3_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The loss of the auxiliary head counts .4. Both heads' last layers stay float. Moving averages of weights and moments are
what is evaluated. RMSprop has decay .9 and epsilon 1, and no momentum, which the authors' has.

Measured: nothing yet.
Published: top-1 error 21.2 %, top-5 5.6 %, float, on 50 workers with 32 examples each, of one crop (Szegedy et al.
2015, Rethinking the Inception Architecture for Computer Vision). With ternary gradients nothing is published.
Hardware: 8 GPUs with 32 examples each.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/imagenet"
    config.preprocessing = "inception"
    config.model = "inception_v3"
    config.image_size = 299
    config.label_smoothing = 0.1
    config.num_workers = 8
    config.batch_size = 256
    config.num_steps = 500_456  # 100 epochs
    config.clip_sigmas = 2.5
    config.float_last_layer = True
    config.exclude = ("auxiliary/fc/.*",)
    config.optimizer = "rmsprop"
    config.learning_rate = 0.045
    config.schedule = "exponential"
    config.decay_epochs = 2.0
    config.decay_factor = 0.94
    config.weight_decay = 4e-5
    config.average_decay = 0.9999
    config.log_every = 100
    config.evaluate_every = 10_000
    config.checkpoint_every = 5000
    return config
