"""The JSON Schemas in manifests/schema, generated from the types of the documents, with their docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.limits import LimitsManifest
from flagbench.manifests.model import CaseManifest
from flagbench.manifests.rows import ClaimsManifest
from flagbench.manifests.stack import StackManifest
from flagbench.records.model import Record
from flagbench.records.series_document import SeriesDocument
from flagbench.schema import json_schema

DOCUMENTS = (CaseManifest, DeviceModel, StackManifest, ClaimsManifest, LimitsManifest, Record, SeriesDocument)


def schema_files() -> dict[str, str]:
    """The text of each schema by its file's name."""
    schemas = [(json_schema(model), model) for model in DOCUMENTS]
    for schema, model in schemas:
        _describe(schema, model)
    return {schema["$id"]: json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for schema, _ in schemas}


def _describe(schema: dict[str, Any], model: type) -> None:
    """Add the docstrings of classes and fields to a schema as descriptions."""
    for part in _classes(model):
        described = schema if part is model else schema["$defs"][part.__name__]
        described["description"] = " ".join((part.__doc__ or "").split())
        for name, text in _field_docstrings(part).items():
            if name in described["properties"]:
                described["properties"][name]["description"] = text


def _classes(hint: Any) -> set[type]:
    """The classes with fields that a type consists of."""
    classes: set[type] = set()

    def visit(hint: Any) -> None:
        for inner in get_args(hint):
            visit(inner)
        if isinstance(hint, type) and hint not in classes and hint.__module__.startswith("flagbench"):
            classes.add(hint)
            for inner in get_type_hints(hint, include_extras=True).values():
                visit(inner)

    visit(hint)
    return classes


def _field_docstrings(model: type) -> dict[str, str]:
    """The strings below the fields of a class, and below those that it inherits."""
    docstrings: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if not part.__module__.startswith("flagbench"):
            continue
        for field, text in pairwise(_classes_of(part.__module__)[part.__name__].body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    docstrings[name] = " ".join(words.split())
    return docstrings


@cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module as they are written, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
