"""ResNet-50 on ImageNet, 8 workers with ternary gradients: momentum .4 after five epochs of warm-up, a tenth at epochs
30, 60 and 80.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50 --config.dataset=./data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50 --config.dataset=./data/imagenet --config.codec=float \
        --workdir=runs/imagenet_resnet50_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The last layer stays float.

Measured: nothing yet.
Published: top-1 76.2 %, float, in 90 epochs of 4 GPUs with 64 examples each, the dense baseline of Deep Gradient
Compression (Lin et al. 2018). With ternary gradients nothing is published.
Hardware: 8 GPUs with 128 examples each; --config.precision=bfloat16 halves what activations take.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/imagenet"
    config.preprocessing = "inception"
    config.model = "resnet_50"
    config.num_workers = 8
    config.batch_size = 1024
    config.num_steps = 112_603  # 90 epochs
    config.clip_sigmas = 2.5
    config.float_last_layer = True
    config.optimizer = "momentum"
    config.momentum = 0.9
    config.schedule = "5:0.001->0.4,30:0.4,60:0.04,80:0.004,90:0.0004"
    config.weight_decay = 1e-4
    config.log_every = 100
    config.evaluate_every = 2502
    config.checkpoint_every = 1251
    return config
