"""Which files are images, and what they are called."""

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from jaxtern.artifact.image_files import ImageFiles

TINY = simplejpeg.encode_jpeg(np.zeros((2, 2, 3), np.uint8))  # bytes behind it are no damage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.png", "a.JPG", "sub/c.jpeg", "notes.txt", ".hidden/d.png", ".e.png", "other/a.JPG"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TINY + name.encode())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(files: ImageFiles) -> list[str]:
    return [files.key(index) for index in range(files.size)]


@pytest.mark.usefixtures("folder")
def test_files_of_a_folder_are_its_images_sorted_by_their_paths_in_it():
    files = ImageFiles(["./photos"])
    assert keys(files) == ["a.JPG", "b.png", "other/a.JPG", "sub/c.jpeg"]
    assert files.read(3).image == TINY + b"sub/c.jpeg"
    assert files.left_out == [Path("photos/notes.txt")]
    assert files.describe(3) == "photos/sub/c.jpeg"


def test_links_are_read_as_files_or_told(folder: Path):
    for name, target in (("linked", "sub"), ("f.png", "b.png"), ("up", ".."), ("g.png", "nowhere")):
        (folder / "photos" / name).symlink_to(folder / "photos" / target)
    files = ImageFiles(["photos"])
    assert keys(files) == ["a.JPG", "b.png", "f.png", "other/a.JPG", "sub/c.jpeg"]
    assert files.left_out == [Path("photos", name) for name in ("g.png", "linked", "notes.txt", "up")]
    assert keys(ImageFiles(["photos/linked"])) == ["c.jpeg"]


@pytest.mark.usefixtures("folder")
def test_files_given_keep_their_paths_and_no_two_have_one_key():
    files = ImageFiles(["photos/notes.txt", "photos/sub", "photos/other", "./photos/a.JPG"])
    assert keys(files) == ["photos/notes.txt", "photos/sub/c.jpeg", "photos/other/a.JPG", "./photos/a.JPG"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("given", "words"), [("nowhere", "'nowhere': no such file or folder"), ("empty", "'empty': holds no images")]
)
def test_files_that_are_none_are_refused(given: str, words: str):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        ImageFiles(["photos", given])
