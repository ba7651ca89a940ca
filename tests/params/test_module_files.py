"""Test parameter files: written and read completely or not at all, whatever happens to the file or disk."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import CheckpointError
from autobatch.params.module import Module
from helpers.models.small_modules import NAMES, Head, Model, values_of


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_file_survives_a_round_trip(tmp_path: Path, dtype: str) -> None:
    model, other = Model().astype(dtype), Model().astype(dtype)
    model.table.data = model.table.data / 3.0
    model.save(tmp_path / "model.safetensors")
    model.save(tmp_path / "model.safetensors")
    other.load(str(tmp_path / "model.safetensors"))
    assert values_of(other) == values_of(model)
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_module_without_parameters_can_be_stored(tmp_path: Path) -> None:
    Module().save(tmp_path / "empty")
    Module().load(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"cannot load '.*empty' into Head: missing: 'scale'; build"):
        Head().load(tmp_path / "empty")


def test_saving_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "model")
    Head(1.0).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["model"]


def bfloat16_file() -> bytes:
    header = json.dumps({"scale": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(6)


FOREIGN = {
    "empty": (b"", r"it is truncated or not a safetensors file \(.*\); .* Module\.save\."),
    "text": (b"not a model\n" * 100, r"it is truncated or not a safetensors file"),
    "pickle": (pickle.dumps({"scale": np.ones(3)}), r"it is truncated or not a safetensors file"),
    "bfloat16": (bfloat16_file(), r"numbers of type 'BF16', which NumPy lacks"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = FOREIGN[kind]
    (tmp_path / "file").write_bytes(content)
    head = Head(1.0)
    with pytest.raises(CheckpointError, match=rf"^cannot load '.*file': .*{message}"):
        head.load(tmp_path / "file")
    assert head.scale.data.tolist() == [1.0] * 3


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    Head(1.0).save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    head = Head(2.0)
    for length in range(len(content)):
        (tmp_path / "part").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"it is truncated or not a safetensors file"):
            head.load(tmp_path / "part")
    assert head.scale.data.tolist() == [2.0] * 3


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    Model().save(tmp_path / "model")
    head = Head(1.0)
    with pytest.raises(
        CheckpointError, match=r"cannot load '.*model' into Head: missing: 'scale'; unexpected: '.*' and 4 more;"
    ):
        head.load(tmp_path / "model")
    assert head.scale.data.tolist() == [1.0] * 3


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^cannot load '.*missing': No such file or directory"):
        Head().load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="Is a directory"):
        Head().load(tmp_path)


@pytest.mark.parametrize("place", ["missing/model", "file/model", "folder"])
def test_an_impossible_place_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"^cannot save the parameters of Head to '.*': .*; choose .* folder"):
        Head().save(tmp_path / place)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_device_is_not_replaced_by_a_file() -> None:
    with pytest.raises(CheckpointError, match=r"it exists and is not a regular file"):
        Head().save(os.devnull)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match=r"Permission denied"):
        Head().save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_disk_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    Head(1.0).save(tmp_path / "model")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        Head(2.0).save(tmp_path / "model")
    head = Head()
    head.load(tmp_path / "model")
    assert head.scale.data.tolist() == [1.0] * 3
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_of_a_part_of_a_model(tmp_path: Path) -> None:
    head, model = Head(2.0), Model()
    head.save(tmp_path / "head")
    missing, unexpected = model.load(tmp_path / "head", strict=False)
    assert (missing, unexpected) == (NAMES, ["scale"])
    with pytest.raises(CheckpointError, match="unexpected: 'scale'"):
        model.load(tmp_path / "head")
