"""What a user installs: the wheel and the source distribution that the wheel is built from."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "scrapy_prioqueue")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel built from it, both without a network."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation", "--outdir", str(built), str(source)]
    ended = subprocess.run([sys.executable, "-m", "build", *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return built


def needed_files() -> set[PurePosixPath]:
    package = ROOT / "scrapy_prioqueue"
    kinds = ("*.py", "*.lua", "py.typed")
    return {PurePosixPath(path.relative_to(ROOT)) for kind in kinds for path in package.rglob(kind)}


def test_wheel_holds_each_module_and_script_and_the_licence(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")

    names = {PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()}

    assert needed_files() <= names
    assert any(name.name == "LICENSE" for name in names)
    assert {name.parts[0] for name in names if name.suffix == ".py"} == {"scrapy_prioqueue"}


def test_source_distribution_holds_each_module_and_script_and_the_licence(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")

    with tarfile.open(archive) as files:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in files.getnames()}

    assert needed_files() | {PurePosixPath("LICENSE"), PurePosixPath("README.md")} <= names
