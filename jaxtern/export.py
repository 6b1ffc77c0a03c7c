"""python -m jaxtern.export --workdir=RUN --out=FOLDER: a run's network as a folder that predicts by itself.

The folder holds the program (StableHLO, for CPUs and NVIDIA GPUs, any batch), the weights and the names of the classes.
`python -m jaxtern.predict FOLDER IMAGE...` uses it.
"""

from pathlib import Path

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    from jaxtern import own_networks
    from jaxtern.artifact.storage import Artifact, require_new, write_artifact
    from jaxtern.training.run.exporting import export_run

WORKDIR = flags.DEFINE_string("workdir", "runs/digits", "folder of the run")
OUT = flags.DEFINE_string("out", None, "folder to be made")
STEP = flags.DEFINE_integer("step", None, "of the checkpoint [the newest that is whole]")
BEST = flags.DEFINE_bool("best", False, "take the checkpoint of best precision@1, of those evaluated in training")
AVERAGED = flags.DEFINE_bool("averaged", True, "take the moving averages of the weights, where the run keeps them")
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "folder of the dataset, to be asked in place of the run's dataset.json"
)
flags.adopt_module_key_flags(own_networks)


def main() -> int:
    if OUT.value is None:
        raise command_line.UsageError("--out is missing: give the folder to be made (--help tells more)")
    own_networks.add_networks()
    out = Path(OUT.value)
    with command_line.refusing():
        if BEST.value and STEP.value is not None:
            raise ValueError(f"--step={STEP.value}: leave it out where --best says which")
        require_new(out)
        command_line.tell(f"exporting {WORKDIR.value}")
        artifact = export_run(Path(WORKDIR.value), STEP.value, AVERAGED.value, DATA_DIR.value, BEST.value)
        write_artifact(out, artifact)
    print(f"{describe(artifact)}\nin {out}")
    if len(artifact.manifest.input_shape) == 3:
        print(f"to predict: python -m jaxtern.predict {out} IMAGE_OR_FOLDER")
    return 0


def describe(artifact: Artifact) -> str:
    """What was exported, in a line."""
    manifest, shape = artifact.manifest, artifact.manifest.input_shape
    taken = f"{'images' if len(shape) == 3 else 'texts'} of {' by '.join(map(str, shape))}"
    parameters = sum(array.size for array in artifact.weights.values())
    return (
        f"{manifest.model} of step {manifest.step}{', averaged' if manifest.averaged else ''} ({parameters:,} numbers),"
        f" {taken} to {manifest.num_classes} classes, for {' and '.join(manifest.platforms)}"
    )


if __name__ == "__main__":
    command_line.run(main)
