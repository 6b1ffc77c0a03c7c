"""CifarNet on CIFAR-10, 2 workers with ternary gradients, in 30 epochs: Adam 1e-3, falling as a cosine to 0.

    python -m jaxtern.prepare cifar-10-binary.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10
    python -m jaxtern.train --config=cifar10 --config.mean.method=float --workdir=runs/cifar10_float

Measured: in 10 epochs among 4 workers 73.69 %, float 73.26 % and TernGrad's gradients 71.73 % (docs/results.md).
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
    config.run.num_steps = 11_730
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.weight_decay = 0.004  # of the kernels of fc1 and fc2, as the network has it
    config.run.log_every = 100
    config.run.evaluate_every = 391
    config.run.checkpoint_every = 391
    return config
