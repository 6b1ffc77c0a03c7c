"""ResNet-20 on CIFAR-10: 2 workers, gradients of 5 levels, batch norm over the examples of both.

    python -m jaxtern.prepare cifar-10-binary.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10_resnet
    python -m jaxtern.train --config=cifar10_resnet --config.mean.method=float --workdir=runs/cifar10_resnet_float

With --config.model.batch_norm=local every worker normalises by its own 64 examples.

Measured: test accuracy 82.36 % in 12,000 steps, float 82.44 %, with ternary gradients 80.87 %; one seed, images of JPEG
quality 75 (docs/results.md).
Published: test accuracy 91.25 %, float, on one device with crops of 32x32 pixels from padded images (He et al. 2015,
table 6: error 8.75 %); crops here have 24x24 pixels and changed colours, as for CifarNet. Nothing with ternary
gradients.
Hardware: one GPU, or two with --config.run.num_devices=2.
"""

from jaxtern.configs import cifar10


def get_config():
    config = cifar10.get_config()
    config.mean.method = "quantized"
    config.mean.levels = 2  # between two workers, the noise of ternary digits costs more than a point
    config.model.name = "resnet_20"
    config.model.batch_norm = "sync"
    config.run.virtual_workers = "vmapped"
    config.run.num_steps = 64_000
    config.optimizer.name = "momentum"
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.1
    config.optimizer.schedule = "piecewise"
    config.optimizer.boundaries = (81.92, 122.88)  # after 32,000 and 48,000 steps
    config.optimizer.weight_decay = 1e-4
    config.run.log_every = 100
    config.run.evaluate_every = 1000
    config.run.checkpoint_every = 1000
    return config
