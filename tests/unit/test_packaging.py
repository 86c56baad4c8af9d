"""The contents of the wheel and the source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "scrapy_prioqueue")
INSTALL = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
INSTALLED = """
import sys
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import scrapy_prioqueue
from scrapy_prioqueue.frontier.redis import scripts

assert scripts.joined_sources()
found = distribution("scrapy-prioqueue")
(command,) = found.entry_points.select(group="scrapy.commands")
print(Path(scrapy_prioqueue.__file__).parent, found.version, command.load().__name__)
"""


def run(*words: str) -> str:
    """Run a program that has to succeed, and return what it prints."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel built from it, both without a network."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation", "--outdir", str(built), str(source)]
    run(sys.executable, "-m", "build", *options)
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


def test_distributions_are_fit_for_the_index(distributions: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions.iterdir()))


def test_installed_wheel_has_the_package_its_version_and_its_command(distributions: Path, tmp_path: Path) -> None:
    """The wheel was built from the source distribution, as pip would; `make dist` installs both."""
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "-q", *INSTALL, "--target", str(tmp_path), str(wheel))

    printed = run(sys.executable, "-c", INSTALLED, str(tmp_path))

    folder = tmp_path / "scrapy_prioqueue"
    assert printed.split() == [str(folder), version("scrapy-prioqueue"), "FrontierCommand"]


def test_source_distribution_holds_each_module_and_script_and_the_licence(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")

    with tarfile.open(archive) as files:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in files.getnames()}

    assert needed_files() | {PurePosixPath("LICENSE"), PurePosixPath("README.md")} <= names
