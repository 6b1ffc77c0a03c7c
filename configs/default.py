"""The defaults of every field; the other recipes start from here."""

import dataclasses

import ml_collections

from jaxtern.training.recipe.recipe import Recipe

_OPTIONAL = {
    "dropout_rate": float,
    "init_from": str,
    "rate_batch_size": int,
    "warmup_peak": float,
    "data_dir": str,
    "test_split": str,
    "image_size": int,
    "decode_threads": int,
    "num_devices": int,
    "devices_per_worker": int,
    "block_size": int,
    "bucket_size": int,
    "network_latency": float,
    "network_bandwidth": float,
}


def get_config() -> ml_collections.ConfigDict:
    """All fields of a recipe at their defaults, each keeping its type."""
    values = dataclasses.asdict(Recipe())
    for name, kind in _OPTIONAL.items():
        values[name] = ml_collections.FieldReference(values[name], field_type=kind)
    return ml_collections.ConfigDict(values)
