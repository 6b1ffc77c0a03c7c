"""LeNet on MNIST with TernGrad's recipe: 4 workers, ternary gradients, momentum, rate .01 (1 - t/T)^.5, batch 64.

    python -m jaxtern.train --config=mnist --config.data.dir=FOLDER
    python -m jaxtern.train --config=mnist --config.data.dir=FOLDER --config.mean.method=float \
        --workdir=runs/mnist_float

FOLDER holds the four idx files (train-images-idx3-ubyte and so on, .gz or not).

Measured: test accuracy 99.32 %, float 99.33 %, means of three seeds (docs/results.md).
Published: 99.09 % with 4 workers, float 99.20 % (Wen et al. 2017, read off their figure).
Hardware: 2 CPU cores.
"""

from jaxtern.configs import default


def get_config():
    config = default.get_config()
    config.data.name = "mnist"
    config.run.num_workers = 4
    config.run.batch_size = 64
    config.run.num_steps = 10_000
    config.model.average_decay = 0.9999  # the averages are evaluated, as in TernGrad
    config.optimizer.name = "momentum"
    config.optimizer.momentum = 0.9
    config.optimizer.learning_rate = 0.01
    config.optimizer.schedule = "polynomial"
    config.optimizer.power = 0.5
    config.optimizer.weight_decay = 5e-4
    config.run.log_every = 500
    config.run.evaluate_every = 1000
    return config
