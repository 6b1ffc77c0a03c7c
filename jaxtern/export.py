"""python -m jaxtern.export --workdir=RUN --out=FOLDER: exports a run's network as a folder that predicts by itself.

The folder holds the program (StableHLO, for CPUs and NVIDIA GPUs and any batch size), the weights and the class names.
`python -m jaxtern.predict FOLDER IMAGE...` uses it.
"""

import shlex
from pathlib import Path

from absl import flags

from jaxtern import command_line, run_flags
from jaxtern.run_flags import AVERAGED, BEST, DATA_DIR, STEP, WORKDIR

with command_line.loading(__name__):
    from jaxtern.artifact.storage import Artifact, require_new, write_artifact
    from jaxtern.training.run.exporting import export_run

OUT = flags.DEFINE_string("out", None, "new folder for the network")
flags.adopt_module_key_flags(run_flags)


def main() -> int:
    if OUT.value is None:
        raise command_line.UsageError("--out is missing: give a new folder for the network (--help tells more)")
    run_flags.prepare()
    out = Path(OUT.value)
    with command_line.refusing():
        require_new(out)
        command_line.tell(f"exporting {WORKDIR.value}")
        artifact = export_run(Path(WORKDIR.value), STEP.value, AVERAGED.value, DATA_DIR.value, BEST.value)
        write_artifact(out, artifact)
    print(f"{describe(artifact)}\nin {out}")
    if len(artifact.manifest.input_shape) == 3:
        print(f"to predict: python -m jaxtern.predict {shlex.quote(str(out))} IMAGE_OR_FOLDER")
    return 0


def describe(artifact: Artifact) -> str:
    """Describes an exported network in one line."""
    manifest, shape = artifact.manifest, artifact.manifest.input_shape
    taken = f"{'images' if len(shape) == 3 else 'texts'} of {' by '.join(map(str, shape))}"
    parameters = sum(array.size for array in artifact.weights.values())
    return (
        f"{manifest.model} of step {manifest.step}{', averaged' if manifest.averaged else ''} ({parameters:,} numbers),"
        f" {taken} to {manifest.num_classes} classes, for {' and '.join(manifest.platforms)}"
    )


if __name__ == "__main__":
    command_line.run(main)
