"""VGG-F, VGG-16 with a funnel of 512 for its head, on a folder of images of your own: 2 workers with ternary gradients.

    python -m jaxtern.prepare FOLDER data/images
    python -m jaxtern.train --config=image_folder --config.init_from=vgg16.safetensors
    python -m jaxtern.train --config=image_folder --config.init_from=vgg16.safetensors --config.codec=float \
        --workdir=runs/image_folder_float

FOLDER holds one folder of images a class, or such folders in TrainData and ValidationData. The file of weights is
written where torchvision is installed; without init_from all weights start fresh:

    python -c 'import torchvision, safetensors.torch as s; s.save_file(
        torchvision.models.vgg16(weights="IMAGENET1K_V1").state_dict(), "vgg16.safetensors")'

num_steps are 5 epochs of 5,760 images; set what yours need.

Measured: nothing yet.
Published: test accuracy 98.26 % with 1 worker, 98.33 % with 2, float, in 5 epochs on COIL-100 in three classes (edible,
toy, other; 80/20 split) from ImageNet's weights. With ternary gradients nothing is published.
Hardware: 2 GPUs with 64 examples each, or one, which has both workers.
"""

import ml_collections

from jaxtern.configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    config.dataset = "./data/images"
    config.synthetic_classes = 3  # which a dry run takes while the images are not there
    config.preprocessing = "vgg_f"
    config.model = "vgg_f"
    config.init_exclude = ("funnel/.*", "head/.*")
    config.num_workers = 2
    config.batch_size = 128
    config.num_steps = 225
    config.clip_sigmas = 2.5
    config.optimizer = "adam"
    config.learning_rate = 1e-5
    config.log_every = 5
    config.evaluate_every = 45
    config.checkpoint_every = 45
    return config
