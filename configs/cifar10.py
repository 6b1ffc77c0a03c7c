"""CifarNet on CIFAR-10: 2 workers, ternary gradients, 30 epochs of Adam, whose rate falls from 1e-3 to 0 as a cosine.

    python -m jaxtern.prepare cifar-10-binary.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10
    python -m jaxtern.train --config=cifar10 --config.mean.method=float --workdir=runs/cifar10_float

Measured: test accuracy 78.06 %, float 77.81 %, means of three seeds; the images were JPEGs of quality 75
(docs/results.md).
Hardware: 2 CPU cores.

TernGrad's own recipe, of 768 epochs at one rate, is `cifar10_terngrad`.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "./data/cifar10"
    config.data.preprocessing = "cifar10"
    config.model.name = "cifarnet"
    config.run.num_workers = 2
    config.run.batch_size = 128
    config.run.num_steps = 11_700
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.weight_decay = 0.004  # for the kernels that the network names, fc1's and fc2's
    config.run.log_every = 130
    config.run.evaluate_every = 390
    config.run.checkpoint_every = 390
    return config
