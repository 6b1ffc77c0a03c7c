"""AlexNet on ImageNet with TernGrad's recipe: 8 workers, ternary gradients, rate .04, a tenth of it every 20 epochs.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_alexnet --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_alexnet --config.data.name=./data/imagenet --config.mean.method=float \
        --workdir=runs/imagenet_alexnet_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

The last layer and tensors below 9,217 elements, which are biases and shifts of batch norm, stay float.

Measured: nothing.
Published: top-1 57.54 %, top-5 80.25 %; float 56.62 and 80.28 %, with --config.model.dropout_rate=0.5 (Wen et al.
2017). From the same table, ternary and (float):

    rate 0.01, batch  256, 2 workers, 370,000 steps: 57.61 / 80.47 % (57.33 / 80.56 %)
    rate 0.02, batch  512, 4 workers, 185,000 steps: 57.28 / 80.23 % (57.32 / 80.73 %)

Hardware: 8 GPUs with 128 examples each, or fewer GPUs with several workers each.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "./data/imagenet"
    config.data.preprocessing = "alexnet"
    config.model.name = "alexnet"
    config.model.dropout_rate = 0.2
    config.run.num_workers = 8
    config.run.batch_size = 1024
    config.run.num_steps = 92_500
    config.mean.min_size = 9217
    config.mean.float_last_layer = True
    config.model.average_decay = 0.9999  # the averages are evaluated, as in TernGrad
    config.optimizer.name = "momentum"
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.04
    config.optimizer.schedule = "exponential"
    config.optimizer.decay_epochs = 20.0
    config.optimizer.decay_factor = 0.1
    config.optimizer.weight_decay = 5e-4
    config.run.evaluate_every = 5000
    config.run.checkpoint_every = 2500
    return config
