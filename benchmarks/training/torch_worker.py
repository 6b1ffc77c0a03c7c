"""The torch worker of benchmarks.training --time_to: the same LeNet, first weights and batches, by DDP over gloo.

It takes them from a file of the parent's (`time_to.save_task`), as its Python may have no JAX.
"""
# pyright: reportMissingImports=false
# torch may live in an environment of its own.

import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.exchange.torch_worker import join, options_of, register_hook
from benchmarks.netlab.worker import serve


class LeNet(torch.nn.Module):
    """As jaxtern's `LeNet`, whose weights it takes: HWIO kernels, features in the order of NHWC."""

    def __init__(self, weights: dict[str, np.ndarray]):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 20, 5, padding="same"), torch.nn.Conv2d(20, 50, 5, padding="same")
        self.fc1, self.fc2 = torch.nn.Linear(7 * 7 * 50, 500), torch.nn.Linear(500, 10)
        with torch.no_grad():
            for name, layer in self.named_children():
                kernel = weights[f"{name}/kernel"]
                kernel = kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T
                layer.weight.copy_(torch.from_numpy(kernel.copy()))
                layer.bias.copy_(torch.from_numpy(weights[f"{name}/bias"]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.permute(0, 2, 3, 1).flatten(1))))


class Worker:
    """LeNet in training on this host."""

    def __init__(self, file: str, rate: float, momentum: float):
        with np.load(file) as found:
            self.task = dict(found)
        self.host, self.hosts = join()
        self.rate, self.momentum = rate, momentum
        self.model: Any = None  # DistributedDataParallel, and its optimizer
        self.optimizer: Any = None

    def prepare(self, model: str, variant: str, batch: int) -> dict:
        """Fresh weights, a hook and an optimiser; a backward pass without an exchange warms torch up."""
        del model
        weights = {name: value for name, value in self.task.items() if "/" in name}
        size = sum(each.nbytes for each in weights.values())
        hook = variant.removeprefix("torch ")
        self.model = DistributedDataParallel(LeNet(weights), gradient_as_bucket_view=True, **options_of(hook, size))
        register_hook(self.model, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), self.rate, self.momentum)
        with self.model.no_sync():
            functional.cross_entropy(self.model(*self.draw(0, batch)[:1]), self.draw(0, batch)[1]).backward()
        self.optimizer.zero_grad()
        return {"exchange": "", "predicted_bytes": 0.0, "elements": size // 4}

    def draw(self, step: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This host's examples of a step."""
        first = step * batch * self.hosts + self.host * batch
        indices = self.task["order"][first : first + batch]
        return standardize(self.task["images"][indices]), torch.from_numpy(self.task["labels"][indices]).long()

    def train(self, first: int, steps: int, batch: int) -> dict:
        """Seconds of so many steps on the training split, from the examples in memory to the last weights."""
        dist.barrier()
        start = time.perf_counter()
        for step in range(first, first + steps):
            images, labels = self.draw(step, batch)
            self.optimizer.zero_grad(set_to_none=False)
            functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
        return {"seconds": time.perf_counter() - start}

    def evaluate(self) -> dict:
        """How many of this host's part of the test split are right."""
        images, labels = (self.task[name][self.host :: self.hosts] for name in ("test_images", "test_labels"))
        with torch.no_grad():
            found = self.model.module(standardize(images)).argmax(1).numpy()
        return {"right": int(np.sum(found == labels)), "examples": len(labels)}


def standardize(images: np.ndarray) -> torch.Tensor:
    """uint8[B, H, W, 1] to float32[B, 1, H, W] from -1 to 1, as for jaxtern's LeNet."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def main(file: str, rate: str, momentum: str) -> None:
    serve(lambda: Worker(file, float(rate), float(momentum)), ("prepare", "train", "evaluate"))


if __name__ == "__main__":
    main(*sys.argv[1:])
