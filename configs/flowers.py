"""Inception v3, trained on ImageNet, fine-tuned to five kinds of flowers, the heads alone: 2 workers with ternary
gradients.

    tar xzf flower_photos.tgz && python -m jaxtern.prepare flower_photos data/flowers
    python -m jaxtern.train --config=flowers --config.init_from=runs/imagenet_inception_v3
    python -m jaxtern.train --config=flowers --config.init_from=runs/imagenet_inception_v3 --config.codec=float \
        --workdir=runs/flowers_float

init_from is a run of `imagenet_inception_v3`, of which both heads are left out; they start fresh, and nothing else is
trained. Then all layers may be, for less, from where that ended:

    python -m jaxtern.train --config=flowers --config.init_from=runs/flowers --config.init_exclude='()' \
        --config.train_only='()' --config.learning_rate=1e-4 --config.num_steps=500 --workdir=runs/flowers_all

Measured: nothing yet.
Published: test accuracy 93.4 % after 2,000 steps, float (TensorFlow's Inception, whose fine-tuning TernGrad has). With
ternary gradients nothing is published.
Hardware: one GPU, or two with --config.num_devices=2.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/flowers"
    config.synthetic_classes = 5  # which a dry run takes while the images are not there
    config.preprocessing = "inception"
    config.image_size = 299
    config.model = "inception_v3"
    config.init_from = "runs/imagenet_inception_v3"
    config.init_exclude = ("fc/.*", "auxiliary/.*")
    config.train_only = ("fc/.*", "auxiliary/.*")
    config.num_workers = 2
    config.batch_size = 32
    config.num_steps = 1000
    config.clip_sigmas = 2.5
    config.optimizer = "rmsprop"
    config.learning_rate = 0.01
    config.weight_decay = 4e-5
    config.log_every = 10
    config.evaluate_every = 100
    config.checkpoint_every = 100
    return config
