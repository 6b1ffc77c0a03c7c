"""ResNet-50 on ImageNet with batches of 32,768 and LARS: 64 workers, ternary gradients, 3,600 steps, 92 epochs.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_lars_32k --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_lars_32k --config.data.name=./data/imagenet \
        --config.mean.method=float --workdir=runs/imagenet_resnet50_lars_32k_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

A worker adds the gradients of 8 parts of its batch, of 64 examples each, before an exchange. The rate rises from 2 to
29 in 200 steps, then falls as 29 (1 - t/3600)^2 to 1e-4. As t counts from the start of the run, the rate drops to 25.87
at the end of the warm-up; --config.optimizer.warmup_peak=None rises only to that. Activations are float16.

Measured: nothing.
Published: top-1 75.3 to 75.4 % in 90 epochs, 74.9 % in 64, float (MoXing, whose schedule this is). Nothing with ternary
gradients.
Hardware: 64 GPUs, or fewer GPUs with several workers each.
"""

from jaxtern.configs import imagenet_resnet50


def get_config():
    config = imagenet_resnet50.get_config()
    config.model.precision = "float16"
    config.run.num_workers = 64
    config.run.virtual_workers = "vmapped"
    config.run.batch_size = 32_768
    config.run.accumulation = 8
    config.run.num_steps = 3600
    config.optimizer.name = "lars"
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.learning_rate = 29.0
    config.optimizer.schedule = "polynomial"
    config.optimizer.power = 2.0
    config.optimizer.end_rate = 1e-4
    config.optimizer.warmup_steps = 200
    config.optimizer.warmup_rate = 2.0
    config.optimizer.warmup_peak = 29.0
    config.run.log_every = 20
    config.run.evaluate_every = 200
    config.run.checkpoint_every = 100
    return config
