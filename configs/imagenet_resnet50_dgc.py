"""ResNet-50 on ImageNet with Deep Gradient Compression: 4 workers, each of which sends 0.1 % of its gradients.

    python -m jaxtern.prepare TARS data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_dgc --config.data.name=./data/imagenet
    python -m jaxtern.train --config=imagenet_resnet50_dgc --config.data.name=./data/imagenet \
        --config.mean.method=float --config.optimizer.name=momentum --workdir=runs/imagenet_resnet50_dgc_float

TARS holds ImageNet's original tars (python -m jaxtern.prepare --help).

In the first five epochs workers send 25, 6.25, 1.5625, .4 and .1 %. The momentum of .9 is applied by each worker before
compression, so the optimiser has none; a float run has it in the optimiser. Rate and batch are a quarter of those of
`imagenet_resnet50`.

Measured: nothing.
Published: top-1 76.6 % on 8 GPUs with a batch of 256, 75.9 % on 256 GPUs with 8,192; float 76.2 % on 4 GPUs with 64
examples each (Deep Gradient Compression, Lin et al. 2018).
Hardware: 4 GPUs with 64 examples each.
"""

from jaxtern.configs import imagenet_resnet50


def get_config():
    config = imagenet_resnet50.get_config()
    config.run.num_workers = 4
    config.run.batch_size = 256
    config.run.num_steps = 450_410  # 90 epochs
    config.mean.method = "dgc"
    config.mean.density = 0.001
    config.mean.density_warmup = (0.25, 0.0625, 0.015625, 0.004, 0.001)
    config.mean.momentum = 0.9
    config.mean.float_last_layer = False
    config.optimizer.name = "sgd"
    config.optimizer.schedule = "5:0.00025->0.1,30:0.1,60:0.01,80:0.001,90:0.0001"
    config.run.evaluate_every = 10_008
    config.run.checkpoint_every = 5004
    return config
