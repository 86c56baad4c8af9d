"""The files of deploy/ that start crawls, as data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def objects(*kinds: str) -> Iterator[tuple[Path, Document]]:
    """Yield the objects of Kubernetes of these kinds, with their files."""
    for path in KUBERNETES:
        yield from ((path, found) for found in documents(path) if found["kind"] in kinds)


def pods() -> Iterator[tuple[str, Document, Document]]:
    """Yield each file's name, and the metadata and specification of its pods."""
    for path, found in objects("Deployment", "StatefulSet", "Job", "CronJob"):
        spec = found["spec"]["jobTemplate"]["spec"] if found["kind"] == "CronJob" else found["spec"]
        yield path.name, spec["template"].get("metadata", {}), spec["template"]["spec"]


def commands() -> Iterator[list[str]]:
    """Yield the arguments of `scrapy` in all files."""
    for service in documents(COMPOSE)[0]["services"].values():
        if "build" in service:
            yield [str(argument) for argument in service["command"]]
    for _, _, pod in pods():
        yield from (each["args"] for each in pod["containers"] if each["image"].startswith("registry.example/"))
