"""Recipes that are none: flags, files of recipes, and the config.json of runs."""

# ruff: noqa: E501 - tables
import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from jaxtern.training.recipe.recipe import Recipe

TRAIN = {
    "a field without a name": (["--config.=1"], ["config"]),
    "a field of a field": (["--config.seed.x=1"], ["seed.x"]),
    "a field in brackets": (["--config[seed]=1"], ["config"]),
    "a field that is all fields": (["--config.__class__=1"], ["__class__"]),
    "a field of another alphabet": (["--config.größe=1"], ["größe"]),
    "a field with a line feed": (["--config.see\nd=1"], ["config.see"]),
    "a field of ten thousand letters": ([f"--config.{'x' * 10_000}=1"], ["xxx"]),
    "a value of ten thousand letters": ([f"--config.model.name={'x' * 10_000}"], ["model.name='xxx"]),
    "an escape sequence": (["--config.model.name=\x1b[31mred"], ["model.name="]),
    "bytes that are no text": ([b"--config.model.name=\xff\xfe"], ["model.name="]),
    "no value": (["--config.run.seed"], ["seed"]),
    "an empty value": (["--config.run.seed="], ["seed"]),
    "None for a number": (["--config.run.seed=None"], ["seed"]),
    "a word for a switch": (["--config.mean.delayed=perhaps"], ["delayed"]),
    "a negative seed": (["--config.run.seed=-1"], ["seed=-1"]),
    "a seed of too many bits": ([f"--config.run.seed={2**32}"], [f"seed={2**32}"]),
    "a seed of too many digits": ([f"--config.run.seed={'9' * 5000}"], ["seed"]),
    "a batch of nothing": (["--config.run.batch_size=0"], ["batch_size=0"]),
    "workers of nothing": (["--config.run.num_workers=-4"], ["num_workers=-4"]),
    "more workers than a batch": (["--config.run.num_workers=128"], ["batch_size=64"]),
    "workers without number": ([f"--config.run.num_workers={2**40}", f"--config.run.batch_size={2**40}"], ["num_workers"]),
    "more steps than are counted": ([f"--config.run.num_steps={2**31}"], ["num_steps"]),
    "more steps than a float has": ([f"--config.run.num_steps={10**400}"], ["num_steps"]),
    "more warm-up than is counted": ([f"--config.optimizer.warmup_steps={2**40}"], ["warmup_steps"]),
    "ternary from beyond": ([f"--config.mean.compress_from={2**63}"], ["compress_from"]),
    "a rate that is none": (["--config.optimizer.learning_rate=nan"], ["learning_rate=nan"]),
    "a rate below zero": (["--config.optimizer.learning_rate=-0.1"], ["learning_rate=-0.1"]),
    "a rate above all floats": (["--config.optimizer.learning_rate=1e39"], ["learning_rate=1e+39"]),
    "a rate with a comma": (["--config.optimizer.learning_rate=0,1"], ["learning_rate"]),
    "a rate in hexadecimal": (["--config.optimizer.learning_rate=0x1p-3"], ["learning_rate"]),
    "momentum that is none": (["--config.optimizer.momentum=nan"], ["momentum=nan"]),
    "an average that never moves": (["--config.model.average_decay=1"], ["average_decay=1"]),
    "an average that is none": (["--config.model.average_decay=nan"], ["average_decay=nan"]),
    "smoothing of all": (["--config.model.label_smoothing=1.5"], ["label_smoothing=1.5"]),
    "a loss scale of nothing": (["--config.model.loss_scale=0"], ["loss_scale=0"]),
    "a loss scale above all floats": (["--config.model.loss_scale=1e300"], ["loss_scale=1e+300"]),
    "dropout of all": (["--config.model.dropout_rate=1"], ["dropout_rate=1"]),
    "clipping at no number": (["--config.mean.clip_sigmas=nan"], ["clip_sigmas=nan"]),
    "clipping at infinity": (["--config.mean.clip_sigmas=inf"], ["clip_sigmas=inf"]),
    "too many levels": (["--config.mean.method=quantized", f"--config.mean.levels={2**40}"], ["levels"]),
    "levels of too many digits": (["--config.mean.method=quantized", f"--config.mean.levels={10**400}"], ["levels"]),
    "blocks of nothing": (["--config.mean.block_size=0"], ["block_size=0"]),
    "blocks of less": (["--config.mean.block_size=-512"], ["block_size=-512"]),
    "tensors of less than nothing": (["--config.mean.min_size=-1"], ["min_size=-1"]),
    "buckets of nothing": (["--config.mean.bucket_size=0"], ["bucket_size=0"]),
    "a latency below zero": (["--config.mean.latency=-1"], ["latency=-1"]),
    "a latency that is none": (["--config.mean.latency=nan"], ["latency=nan"]),
    "a bandwidth of nothing": (["--config.mean.bandwidth=0"], ["bandwidth=0"]),
    "a bandwidth of infinity": (["--config.mean.bandwidth=inf"], ["bandwidth=inf"]),
    "epochs that are none": (["--config.optimizer.schedule=exponential", "--config.optimizer.decay_epochs=nan"], ["decay_epochs=nan"]),
    "stairs that fall": (["--config.optimizer.schedule=piecewise", "--config.optimizer.boundaries=(2.0,1.0)"], ["boundaries=(2.0, 1.0)"]),
    "stairs that are none": (["--config.optimizer.schedule=piecewise", "--config.optimizer.boundaries=('a',)"], ["boundaries"]),
    "stairs at no number": (["--config.optimizer.schedule=piecewise", "--config.optimizer.boundaries=(float('nan'),)"], ["boundaries"]),
    "stairs of code": (["--config.optimizer.boundaries=(__import__('os').getpid(),)"], ["boundaries"]),
    "half a tuple": (["--config.optimizer.boundaries=(1.0,"], ["boundaries"]),
    "a tuple in ten thousand brackets": ([f"--config.optimizer.boundaries={'(' * 10_000}"], ["boundaries"]),
    "half a span": (["--config.optimizer.schedule=5:"], ["schedule='5:'"]),
    "a span of words": (["--config.optimizer.schedule=five:fast"], ["five:fast"]),
    "spans that fall": (["--config.optimizer.schedule=5:0.1,4:0.2"], ["must rise"]),
    "a span to no number": (["--config.optimizer.schedule=5:nan"], ["5:nan"]),
    "a span to infinity": (["--config.optimizer.schedule=1e999:0.1"], ["1e999:0.1"]),
    "a span from nothing by factors": (["--config.optimizer.schedule=5:0=>0.1"], ["exponentially"]),
    "a span of points": (["--config.optimizer.schedule=5:1.2.3"], ["5:1.2.3"]),
    "a thousand spans": (["--config.optimizer.schedule=" + ",".join(["5:x"] * 1000)], ["schedule="]),
    "half an expression": (["--config.mean.exclude=('conv(',)"], ["mean.exclude=('conv(',)"]),
    "an expression of too many": (["--config.mean.exclude=('a{99999999999}',)"], ["exclude="]),
    "an expression in ten thousand brackets": ([f"--config.mean.exclude=('{'(' * 10_000}',)"], ["exclude="]),
    "an expression that is a number": (["--config.mean.exclude=(1,)"], ["exclude"]),
    "an expression of nothing there": (["--config.model.freeze=('nothing',)"], ["freeze='nothing'"]),
    "a slice outside": (["--config.model.freeze=('conv1/kernel[:,:,:,999]',)"], ["freeze="]),
    "nothing to train": (["--config.model.freeze=('.*',)"], ["freeze="]),
    "made images of no number": (["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8,'x')"], ["synthetic_shape"]),
    "made images of half a pixel": (["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8.5,1)"], ["synthetic_shape"]),
    "made images of a switch": (["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8,True)"], ["synthetic_shape"]),
    "made images of a world": (
        ["--config.data.name=synthetic", "--config.data.synthetic_shape=(1000000,1000000,3)"], ["synthetic_shape"],
    ),
    "made images without number": (
        ["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8,1)", f"--config.data.synthetic_examples={10**15}"],
        ["synthetic_examples"],
    ),
    "made images of more": (
        ["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8,1)", f"--config.data.synthetic_examples={10**30}"],
        ["synthetic_examples"],
    ),
    "made classes without number": (
        ["--config.data.name=synthetic", "--config.data.synthetic_shape=(8,8,1)", f"--config.data.synthetic_classes={10**12}"],
        ["synthetic_classes"],
    ),
    "made text without end": (
        ["--config=charlm", "--config.data.name=synthetic", "--config.data.synthetic_classes=9", f"--config.data.sequence_length={10**15}"],
        ["sequence_length"],
    ),
    "images without end": (
        ["--config.data.name=synthetic", "--config.data.preprocessing=vgg", f"--config.data.image_size={10**9}", "--config.data.feed=streaming"],
        ["image_size"],
    ),
    "threads without number": (["--config.data.feed=streaming", f"--config.data.decode_threads={10**9}"], ["decode_threads"]),
    "processes without number": (["--config.data.feed=streaming", f"--config.data.decode_processes={10**9}"], ["decode_processes"]),
    "devices without number": ([f"--config.run.num_devices={2**70}"], ["num_devices"]),
    "no dataset": (["--config.data.name="], ["dataset=''"]),
    "a dataset of spaces": (["--config.data.name=   "], ["dataset="]),
    "a dataset of five thousand letters": ([f"--config.data.name=./{'x' * 5000}"], ["xxx"]),
    "a dataset that is a device": (["--config.data.name=/dev/null"], ["dataset='/dev/null'"]),
    "a dataset that is an address": (["--config.data.name=https://example.org/x.zip"], ["dataset='https://example.org/x.zip'"]),
    "a split in half brackets": (["--config.data.train_split=train[:50%"], ["train_split"]),
    "a recipe without a name": (["--config="], ["--config="]),
    "a recipe that is a folder": (["--config=./"], ["--config=./"]),
    "a recipe that is a device": (["--config=/dev/null"], ["/dev/null"]),
    "a recipe behind a space": (["--config", "nothing"], ["nothing"]),
    "a recipe of five thousand letters": ([f"--config=./{'x' * 5000}.py"], ["xxx"]),
    "weights of nowhere": (["--config.model.init_from=nowhere"], ["init_from='nowhere'"]),
    "weights of an empty folder": (["--config.model.init_from=."], ["init_from='.'"]),
    "weights of a device": (["--config.model.init_from=/dev/null"], ["/dev/null"]),
    "a folder that is a file": (["--workdir=/dev/null"], ["/dev/null"]),
    "a folder in a file": (["--workdir=/dev/null/run"], ["/dev/null/run"]),
    "a folder of five thousand letters": ([f"--workdir={'x' * 5000}"], ["xxx"]),
}  # fmt: skip

FILES = {
    "nothing": b"",
    "no Python": b"learning rate = 0.1\n",
    "half a bracket": b"def get_config():\n    return dict(\n",
    "tabs and spaces": b"def get_config():\n\tif True:\n        return 1\n",
    "bytes that are no text": b"\xff\xfe\x00",
    "a zero byte": b"x = 1\x00\n",
    "a picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    "ten thousand brackets": b"x = " + b"(" * 10_000,
    "no function": b"learning_rate = 0.1\n",
    "a number for the function": b"get_config = 3\n",
    "a function of two": b"def get_config(a, b):\n    return None\n",
    "what returns nothing": b"def get_config():\n    pass\n",
    "what returns a number": b"def get_config():\n    return 7\n",
    "what returns a dict": b"def get_config():\n    return {'seed': 1}\n",
    "what returns JSON": b"def get_config():\n    return '{}'\n",
    "what raises": b"def get_config():\n    raise RuntimeError('not\\ntoday')\n",
    "what raises without a word": b"def get_config():\n    raise KeyError\n",
    "what divides by zero": b"RATE = 1 / 0\n",
    "what imports what is not there": b"import no_such_module_anywhere\n",
    "what asserts": b"assert False, 'no'\n",
    "what never ends": b"def get_config():\n    return get_config()\n",
    "a field that is none": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'rate': 1})\n",
    "a section that is a number": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'run': 1})\n",
    "a field of a section that is a number": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'run': {1: 1}})\n",
    "a field that is a number": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({1: 1})\n",
    "a config in a config": b"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({'run': {'seed': {'seed': 1}}})\n",
    "a reference to nothing": (
        b"from ml_collections import ConfigDict, FieldReference\ndef get_config():\n"
        b"    return ConfigDict({'run': {'seed': FieldReference(None, field_type=int)}})\n"
    ),
    "a required placeholder": (
        b"from ml_collections import config_dict\ndef get_config():\n"
        b"    return config_dict.ConfigDict({'run': {'seed': config_dict.required_placeholder(int)}})\n"
    ),
}


@pytest.mark.parametrize("case", TRAIN)
def test_train_refuses_flags(refuses: Callable, tmp_path: Path, case: str):
    arguments, names = TRAIN[case]
    workdir = [] if any(str(argument).startswith("--workdir") for argument in arguments) else ["--workdir=run"]
    refuses("train", *arguments, *workdir, cwd=tmp_path, names=names)


@pytest.mark.parametrize("case", FILES)
def test_train_refuses_a_file_that_is_no_recipe(refuses: Callable, tmp_path: Path, case: str):
    (tmp_path / "bad.py").write_bytes(FILES[case])
    refuses("train", "--config=./bad.py", "--workdir=run", cwd=tmp_path, names=["config"])


RUNS = {  # config.json of a run
    "nothing": b"",
    "spaces": b"  \n",
    "no object": b"[]",
    "a number": b"7",
    "null": b"null",
    "words": b"seed = 1",
    "two objects": b"{}{}",
    "a comma too many": b'{"run": {"seed": 1,}}',
    "single quotes": b"{'run': {'seed': 1}}",
    "bytes that are no text": b"\xff\xfe{}",
    "UTF-16": '{"run": {"seed": 1}}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"run": {"seed": 1}}',
    "zeros": bytes(4096),
    "a hundred thousand brackets": b"[" * 100_000,
    "a hundred thousand objects": b'{"seed":' * 100_000,
    "a number of a hundred thousand digits": b'{"run": {"seed": ' + b"9" * 100_000 + b"}}",
    "an unknown section": b'{"colour": "red"}',
    "an unknown field": b'{"run": {"colour": "red"}}',
    "a section that is a list": b'{"run": []}',
    "fields without sections": b'{"num_workers": 4}',
    "a field of a hundred thousand letters": b'{"run": {"' + b"x" * 100_000 + b'": 1}}',
    "a field of escapes": b'{"run": {"\\u001b[2J\\n\\r": 1}}',
    "half of a pair": b'{"model": {"name": "\\ud800"}}',
    "a zero byte in a name": b'{"data": {"name": "./a\\u0000b"}}',
    "a zero byte in a folder": b'{"data": {"name": "mnist", "dir": "a\\u0000b"}}',
    "a zero byte in a split": b'{"data": {"name": "./", "train_split": "\\u0000"}}',
    "the text of nothing": b'{"data": {"preprocessing": "text", "name": "/dev/null"}, "model": {"name": "transformer"}}',
}
WRONG = {
    bool: ["yes", 1, 0.0, [], {}, None],
    int: [1.5, "7", True, [], [1], {}, math.inf, math.nan, -(2**70), 10**400],
    float: ["0.1", True, [0.1], {}, math.nan, math.inf, -math.inf, 10**400, -1e39],
    str: [1, 0.5, True, [], ["x"], {}, {"x": "y"}],
    tuple: ["abc", 3, 1.5, True, [None], [[]], [{}], {"x": 1}],
}
KINDS = {
    f"{section.name}.{name}": kind
    for section in dataclasses.fields(Recipe)
    for name, kind in typing.get_type_hints(type(getattr(Recipe(), section.name))).items()
}


def wrong_values(kind: Any) -> st.SearchStrategy[Any]:
    """Of a field whose annotation is one of the types above, choices of strings, or one of them or None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind) or kind
    return st.sampled_from(WRONG[str if origin is typing.Literal else origin])


@pytest.mark.parametrize("case", RUNS)
def test_evaluate_refuses_a_run_of_no_recipe(refuses: Callable, tmp_path: Path, case: str):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_bytes(RUNS[case])
    refuses("evaluate", "--workdir=run", cwd=tmp_path)


@pytest.mark.slow
@hypothesis.settings(max_examples=120, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.data())
def test_evaluate_refuses_a_field_of_another_type(refuses: Callable, tmp_path: Path, data: st.DataObject):
    field = data.draw(st.sampled_from(sorted(KINDS)))
    value = data.draw(wrong_values(KINDS[field]))
    (tmp_path / "run").mkdir(exist_ok=True)
    section, _, name = field.partition(".")
    (tmp_path / "run" / "config.json").write_text(json.dumps({section: {name: value}}))
    refuses("evaluate", "--workdir=run", cwd=tmp_path, names=["config.json", field])


@hypothesis.settings(max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.floats(0, 0.99))
def test_evaluate_refuses_a_recipe_that_is_cut_short(refuses: Callable, tmp_path: Path, share: float):
    text = json.dumps(Recipe().to_dict())
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "config.json").write_text(text[: int(share * len(text))])
    refuses("evaluate", "--workdir=run", cwd=tmp_path, names=["config.json"])
