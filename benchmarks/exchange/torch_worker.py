"""The torch worker of benchmarks.exchange: DistributedDataParallel over gloo, on the same shapes and links.

A module has parameters of those shapes and a backward pass that hands out gradients which lie ready. They are added
to `.grad`, which is zeroed before, outside of the clock, and is a view of DDP's buckets, so nothing else is copied.
The clock covers `backward()`; what the same backward takes under `no_sync`, where nothing is exchanged, is measured in
the same run, to be subtracted. Imports no JAX.
"""
# pyright: reportMissingImports=false
# torch may live in an environment of its own.

import os
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.exchange.shapes import Shapes, shapes_of
from benchmarks.netlab.worker import digest, measure, serve

WARM_UP = 5  # PowerSGD compresses from the third on, and DDP rebuilds its buckets after the first


class Ready(torch.autograd.Function):
    """A loss whose gradients are there already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return None, *ctx.gradients


class Module(torch.nn.Module):
    """Parameters, and fixed gradients of them."""

    def __init__(self, gradients: list[torch.Tensor]):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros_like(gradient) for gradient in gradients])
        self.gradients = gradients

    def forward(self) -> torch.Tensor:
        return Ready.apply(self.gradients, *self.weights)


def options_of(variant: str, num_bytes: int) -> dict[str, Any]:
    """DDP's options for gradients of so many bytes: with more than one bucket PowerSGD's hook deadlocks on gloo."""
    return {"bucket_cap_mb": num_bytes / 2**20 + 1} if variant.startswith("PowerSGD") else {}


def register_hook(model: DistributedDataParallel, variant: str) -> None:
    """The hook of a variant: "fp16" or "PowerSGD RANK"; none for another name."""
    if variant == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif variant.startswith("PowerSGD"):
        rank = int(variant.removeprefix("PowerSGD "))
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def join() -> tuple[int, int]:
    """Joins the hosts of the laboratory; this host's number, and how many there are."""
    hosts, host = int(os.environ["NETLAB_HOSTS"]), int(os.environ["NETLAB_HOST"])
    address, _, port = os.environ["NETLAB_COORDINATOR"].partition(":")
    where = f"tcp://{address}:{int(port) + 1}"  # beside JAX's
    dist.init_process_group("gloo", init_method=where, rank=host, world_size=hosts)
    return host, hosts


class Worker:
    """Gradients of one host, and at most one model at a time."""

    def __init__(self, shapes: Shapes):
        random = np.random.default_rng(int(os.environ["NETLAB_HOST"]))
        self.gradients = [torch.from_numpy(random.standard_normal(shape, np.float32)) for shape in shapes]
        self.bytes = 4 * sum(gradient.numel() for gradient in self.gradients)
        self.model: DistributedDataParallel | None = None
        self.one = torch.ones(1)

    def barrier(self) -> None:
        dist.all_reduce(self.one.fill_(1))

    def prepare(self, variant: str) -> dict:
        """Builds the model, and runs until the hook is what it will be."""
        options: dict[str, Any] = {"gradient_as_bucket_view": True, "init_sync": False}
        module = Module(self.gradients)
        self.model = DistributedDataParallel(module, **options, **options_of(variant, self.bytes))
        register_hook(self.model, variant)
        for _ in range(WARM_UP):
            self.refill()
            self.backward()
        means = [weight.grad.numpy() for weight in module.weights if weight.grad is not None]
        return {"digest": digest(means), "is_plausible": len(means) == len(self.gradients)}

    def refill(self) -> None:
        assert self.model
        self.model.zero_grad(set_to_none=False)

    def backward(self) -> None:
        assert self.model
        self.model().backward()

    def backward_alone(self) -> None:
        assert self.model
        with self.model.no_sync():
            self.model().backward()

    def time(self, variant: str, repeats: int) -> dict:
        del variant
        alone = measure(self.backward_alone, self.refill, self.barrier, repeats)["seconds"]
        self.refill()
        self.backward()  # the first after no_sync
        found = measure(self.backward, self.refill, self.barrier, repeats)
        return {**found, "alone": alone}

    def drop(self, variant: str) -> dict:
        del variant
        self.model = None
        return {}


def main(size: str) -> None:
    def create() -> Worker:
        join()
        return Worker(shapes_of(size))

    serve(create, ("prepare", "time", "drop"))


if __name__ == "__main__":
    main(sys.argv[1])
