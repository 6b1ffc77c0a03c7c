"""ResNet-50 from ImageNet's weights, fine-tuned on five kinds of flowers: 2 workers, ternary gradients, only the last
layer is trained.

    tar xzf flower_photos.tgz && python -m jaxtern.prepare flower_photos data/flowers
    python -m jaxtern.train --config=flowers_resnet50
    python -m jaxtern.train --config=flowers_resnet50 --config.mean.method=float --workdir=runs/flowers_resnet50_float

The photos are https://download.tensorflow.org/example_images/flower_photos.tgz. This writes the weights on a machine
with torchvision; images are standardized by ImageNet's colours, as these weights need:

    python -c 'import torchvision, safetensors.torch as s; s.save_file(
        torchvision.models.resnet50(weights="IMAGENET1K_V2").state_dict(), "resnet50.safetensors")'

Measured: nothing.
Published: nothing for this recipe; `flowers` has TernGrad's network and fine-tuning.
Hardware: one GPU, or two with --config.run.num_devices=2.
"""

from jaxtern.configs import flowers


def get_config():
    config = flowers.get_config()
    config.data.preprocessing = "vgg_f"
    config.data.image_size = 224
    config.model.name = "resnet_50"
    config.model.init_from = "resnet50.safetensors"
    config.model.init_exclude = ("fc/.*",)
    config.model.train_only = ("fc/.*",)
    return config
