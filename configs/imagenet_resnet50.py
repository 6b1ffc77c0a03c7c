"""ResNet-50 on ImageNet: 8 workers, ternary gradients, momentum, rate .4 after five epochs of warm-up, a tenth of it at
epochs 30, 60 and 80.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50 --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50 --config.data.name=./data/imagenet --config.mean.method=float \
        --workdir=runs/imagenet_resnet50_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The last layer stays float.

Measured: nothing.
Published: top-1 76.2 %, float, in 90 epochs on 4 GPUs with 64 examples each, the dense baseline of Deep Gradient
Compression (Lin et al. 2018). Nothing with ternary gradients.
Hardware: 8 GPUs with 128 examples each; --config.model.precision=bfloat16 halves the memory of activations.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "./data/imagenet"
    config.data.preprocessing = "inception"
    config.model.name = "resnet_50"
    config.run.num_workers = 8
    config.run.batch_size = 1024
    config.run.num_steps = 112_603  # 90 epochs
    config.mean.float_last_layer = True
    config.optimizer.name = "momentum"
    config.optimizer.momentum = 0.9
    config.optimizer.schedule = "5:0.001->0.4,30:0.4,60:0.04,80:0.004,90:0.0004"
    config.optimizer.weight_decay = 1e-4
    config.run.evaluate_every = 2502
    config.run.checkpoint_every = 1251
    return config
