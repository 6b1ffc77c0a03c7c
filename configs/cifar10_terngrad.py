"""CifarNet on CIFAR-10 as TernGrad trains it: 2 workers, ternary gradients, 300,000 steps of Adam at a fixed rate.

    python -m jaxtern.prepare cifar-10-binary.tar.gz data/cifar10
    python -m jaxtern.train --config=cifar10_terngrad
    python -m jaxtern.train --config=cifar10_terngrad --config.mean.method=float --workdir=runs/cifar10_terngrad_float

This is the original method: a scale for each tensor, clipped at 2.5 deviations, without rotation or dither. Evaluation
takes moving averages of the weights. `cifar10` is shorter and has this package's own method.

Measured: nothing.
Published: test accuracy 85.64 % with 2 workers, float 86.56 %; and with --config.run.num_workers=16
--config.run.batch_size=2048 --config.run.num_steps=18750 82.80 %, float 83.19 % (Wen et al. 2017).
Hardware: one GPU, or two with --config.run.num_devices=2; 2 CPU cores take about a day.
"""

from jaxtern.configs import cifar10


def get_config():
    config = cifar10.get_config()
    config.run.num_steps = 300_000
    config.mean.method = "terngrad"
    config.model.average_decay = 0.9999
    config.optimizer.learning_rate = 2e-4
    config.optimizer.schedule = "fixed"
    config.run.log_every = 1000
    config.run.evaluate_every = 3910
    config.run.checkpoint_every = 3910
    return config
