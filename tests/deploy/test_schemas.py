"""The files of deploy/ against the schemas of Compose, Kubernetes and KEDA, which packages from PyPI bring."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from cloudcoil.models.keda.v1alpha1 import ScaledObject

from tests.support.deployment import COMPOSE, KUBERNETES, documents, objects

VERSIONS = ("1.28", "1.31", "1.34")
"""Releases of Kubernetes."""


def test_compose_file_is_valid() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"

    jsonschema.validate(documents(COMPOSE)[0], json.loads(schema.read_text("utf-8")))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_objects_of_kubernetes_are_valid(path: Path, version: str) -> None:
    for found in documents(path):
        if not found["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("found", [found for _, found in objects("ScaledObject")])
def test_scaled_objects_are_valid(found: dict[str, Any]) -> None:
    read = ScaledObject.model_validate(found)

    # The model drops fields that it doesn't know.
    assert json.loads(read.model_dump_json(by_alias=True, exclude_unset=True)) == found
