"""Fields of the Kubernetes objects that our job template uses, as the API declares them (v1 ConfigMap, batch/v1 Job), and a strict check.

A dict maps a field to its type: ``str``, ``int``, ``bool``, a pattern, a tuple of allowed words, another dict, ``[type]`` for a list, or
``{ANY: type}`` for a map of names of the user's own. ``REQUIRED`` in a dict names fields that may not be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ANY, REQUIRED = "*", "!"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
LABELS = {ANY: str}
METADATA = {"name": NAME, "namespace": NAME, "labels": LABELS, "annotations": LABELS}
RESOURCES = {"requests": {ANY: QUANTITY}, "limits": {ANY: QUANTITY}}
ENV = {
    REQUIRED: ("name",),
    "name": re.compile(r"[A-Z_][A-Z0-9_]*"),
    "value": str,
    "valueFrom": {
        "fieldRef": {REQUIRED: ("fieldPath",), "fieldPath": ("metadata.name", "metadata.namespace", "spec.nodeName", "status.podIP")},
        "resourceFieldRef": {REQUIRED: ("resource",), "containerName": NAME, "resource": ("limits.cpu", "limits.memory", "requests.cpu")},
    },
}
CONTAINER = {
    REQUIRED: ("name", "image"),
    "name": NAME,
    "image": str,
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "command": [str],
    "args": [str],
    "resources": RESOURCES,
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str], "add": [str]},
    },
    "env": [ENV],
    "volumeMounts": [{REQUIRED: ("name", "mountPath"), "name": NAME, "mountPath": re.compile(r"/.*"), "readOnly": bool}],
}
VOLUME = {
    REQUIRED: ("name",),
    "name": NAME,
    "configMap": {"name": NAME, "optional": bool},
    "persistentVolumeClaim": {REQUIRED: ("claimName",), "claimName": NAME, "readOnly": bool},
    "emptyDir": {"medium": ("", "Memory"), "sizeLimit": QUANTITY},
}
POD = {
    REQUIRED: ("containers", "restartPolicy"),
    "restartPolicy": ("Never", "OnFailure"),
    "automountServiceAccountToken": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "fsGroup": int, "seccompProfile": {"type": ("RuntimeDefault",)}},
    "containers": [CONTAINER],
    "initContainers": [CONTAINER],
    "volumes": [VOLUME],
}
KINDS: dict[tuple[str, str], dict[str, Any]] = {
    ("v1", "ConfigMap"): {REQUIRED: ("metadata",), "apiVersion": ("v1",), "kind": ("ConfigMap",), "metadata": METADATA, "data": {ANY: str}},
    ("batch/v1", "Job"): {
        REQUIRED: ("metadata", "spec"),
        "apiVersion": ("batch/v1",),
        "kind": ("Job",),
        "metadata": METADATA,
        "spec": {
            REQUIRED: ("template",),
            "completions": int,
            "parallelism": int,
            "backoffLimit": int,
            "activeDeadlineSeconds": int,
            "ttlSecondsAfterFinished": int,
            "template": {REQUIRED: ("spec",), "metadata": METADATA, "spec": POD},
        },
    },
}


def wrong(value: object, declared: Any, path: str = "") -> Iterator[str]:
    """Every place where ``value`` is not as declared."""
    if isinstance(declared, dict):
        yield from _mapping(value, declared, path)
    elif isinstance(declared, list):
        items = value if isinstance(value, list) else []
        yield from () if isinstance(value, list) else (f"{path}: no list",)
        for i, item in enumerate(items):
            yield from wrong(item, declared[0], f"{path}[{i}]")
    elif isinstance(declared, tuple):
        yield from () if value in declared else (f"{path}={value!r}: not one of {declared}",)
    elif isinstance(declared, re.Pattern):
        yield from () if isinstance(value, str) and declared.fullmatch(value) else (f"{path}={value!r}: not {declared.pattern}",)
    elif type(value) is not declared:
        yield f"{path}={value!r}: no {declared.__name__}"


def _mapping(value: object, declared: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: no mapping"
        return
    yield from (f"{path}.{name}: missing" for name in declared.get(REQUIRED, ()) if name not in value)
    for name, child in value.items():
        one = declared.get(name, declared.get(ANY))
        if one is None or name == REQUIRED:
            yield f"{path}.{name}: unknown field"
        else:
            yield from wrong(child, one, f"{path}.{name}")
