"""Inception v3 on ImageNet: 8 workers, ternary gradients, 299x299 pixels, RMSprop, smoothed labels, averaged weights.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_inception_v3 --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_inception_v3 --config.data.name=./data/imagenet \
        --config.mean.method=float --workdir=runs/imagenet_inception_v3_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The loss of the auxiliary head counts .4. The last layers of both heads stay float. Evaluation takes moving averages of
weights and moments. RMSprop has decay .9 and epsilon 1. Unlike the authors', it has no momentum, and batch norm has a
scale.

Measured: nothing.
Published: top-1 error 21.2 %, top-5 5.6 %, float, one crop, 50 workers with 32 examples each (Szegedy et al. 2015,
Rethinking the Inception Architecture for Computer Vision). Nothing with ternary gradients.
Hardware: 8 GPUs with 32 examples each.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "./data/imagenet"
    config.data.preprocessing = "inception"
    config.model.name = "inception_v3"
    config.data.image_size = 299
    config.model.label_smoothing = 0.1
    config.run.num_workers = 8
    config.run.batch_size = 256
    config.run.num_steps = 500_456  # 100 epochs
    config.mean.float_last_layer = True
    config.mean.exclude = ("auxiliary/fc/.*",)
    config.optimizer.name = "rmsprop"
    config.optimizer.learning_rate = 0.045
    config.optimizer.schedule = "exponential"
    config.optimizer.decay_epochs = 2.0
    config.optimizer.decay_factor = 0.94
    config.optimizer.weight_decay = 4e-5
    config.model.average_decay = 0.9999
    config.run.evaluate_every = 10_000
    config.run.checkpoint_every = 5000
    return config
