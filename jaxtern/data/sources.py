"""Datasets by name."""

from jaxtern.data.dataset import Dataset
from jaxtern.data.digits import load_digits
from jaxtern.data.idx import load_mnist

DATASETS = ("digits", "mnist")


def load_dataset(name: str, data_dir: str | None) -> Dataset:
    """Loads a dataset into memory.

    Raises:
      ValueError: for an unknown name, a missing or superfluous `data_dir`, or damaged files.
      FileNotFoundError: if files are missing.
    """
    if name not in DATASETS:
        raise ValueError(f"dataset={name!r}: must be one of {', '.join(DATASETS)}")
    if name == "digits":
        if data_dir is not None:
            raise ValueError(f"data_dir={data_dir!r}: the dataset digits needs none")
        return load_digits()
    if data_dir is None:
        raise ValueError(f"data_dir is not set: dataset={name!r} needs the folder of its files")
    return load_mnist(data_dir)
