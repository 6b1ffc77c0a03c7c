"""ResNet-50 on ImageNet with batches of 32,768 and LARS, 64 workers with ternary gradients: 3,600 steps, 92 epochs.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_lars_32k --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_lars_32k --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_resnet50_lars_32k_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

A worker adds the gradients of 8 parts of its batch, 64 examples each, before one exchange. The rate rises from 2 to 29
in 200 steps, then is 29 (1 - t/3600)^2, and 1e-4 at the end. As t counts from the start of the run, the rate falls to
25.87 with the warm-up's end; --config.warmup_peak=None rises to that instead. Activations are float16.

Measured: nothing yet.
Published: top-1 75.3 to 75.4 % in 90 epochs, 74.9 % in 64, float (MoXing, whose schedule this is). With ternary
gradients nothing is published.
Hardware: 64 GPUs, or fewer, which share the workers.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/imagenet"
    config.preprocessing = "inception"
    config.model = "resnet_50"
    config.precision = "float16"
    config.num_workers = 64
    config.virtual_workers = "vmapped"
    config.batch_size = 32_768
    config.accumulation = 8
    config.num_steps = 3600
    config.clip_sigmas = 2.5
    config.float_last_layer = True
    config.optimizer = "lars"
    config.momentum = 0.9
    config.trust_coefficient = 0.001
    config.learning_rate = 29.0
    config.schedule = "polynomial"
    config.power = 2.0
    config.end_rate = 1e-4
    config.warmup_steps = 200
    config.warmup_rate = 2.0
    config.warmup_peak = 29.0
    config.weight_decay = 1e-4
    config.log_every = 20
    config.evaluate_every = 200
    config.checkpoint_every = 100
    return config
