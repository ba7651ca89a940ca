"""The OpenAPI document of a server."""

from __future__ import annotations

from typing import Any

from autobatch.release import VERSION


def describe(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Describe all documented routes, with the JSON schema of an instance."""
    error = _object({"error": {"type": "string"}})
    outcome = {
        "type": "object",
        "properties": {"result": {}, "error": {"type": "string"}, "status": {"type": "integer"}},
    }
    one = _object({"instance": schema})
    many = _object({"instances": {"type": "array", "items": schema, "minItems": 1}})
    answers = {"oneOf": [_object({"result": {}}), _object({"results": {"type": "array", "items": outcome}})]}
    refusals = {
        "400": "Not JSON, or not of this form.", "401": "Missing or wrong token.", "413": "Too large.",
        "422": "An instance that the model rejects.", "503": "Too many waiting requests.", "504": "Deadline passed.",
    }  # fmt: skip
    predict = {
        "summary": "Compute results of instances.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [one, many]}},
                "application/x-ndjson": {"schema": schema},
            },
        },
        "responses": {
            "200": {"description": "Results.", "content": _json(answers)},
            **{status: {"description": text, "content": _json(error)} for status, text in refusals.items()},
        },
    }
    plain = {"get": {"responses": {"200": {"description": "Yes."}, "503": {"description": "No."}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": VERSION},
        "paths": {"/predict": {"post": predict}, "/healthz": plain, "/readyz": plain},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
