"""GoogLeNet on ImageNet with TernGrad's recipe: 2 workers, ternary gradients, momentum, rate .04 (1 - t/T)^.5.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_googlenet --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_googlenet --config.data.name=./data/imagenet --config.mean.method=float \
        --workdir=runs/imagenet_googlenet_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The last layer stays float. The network has no auxiliary heads, and its batch norm no scale;
--config.model.name=googlenet has both.

Measured: nothing.
Published: top-5 86.77 %, float 88.30 % (Wen et al. 2017; with other rates and batches 85.96 and 87.82 % for 4
workers, 86.47 and 89.00 % for 8).
Hardware: 2 GPUs with 64 examples each, or one GPU for both workers.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "./data/imagenet"
    config.data.preprocessing = "inception"
    config.model.name = "googlenet_terngrad"
    config.model.dropout_rate = 0.2
    config.run.num_workers = 2
    config.run.batch_size = 128
    config.run.num_steps = 600_000
    config.mean.float_last_layer = True
    config.model.average_decay = 0.9999  # the averages are evaluated, as in TernGrad
    config.optimizer.name = "momentum"
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.04
    config.optimizer.schedule = "polynomial"
    config.optimizer.power = 0.5
    config.optimizer.weight_decay = 4e-5
    config.run.evaluate_every = 10_000
    config.run.checkpoint_every = 5000
    return config
