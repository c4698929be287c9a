"""JSON Schema of scenario files: docs/schema/scenario.schema.json is this text, and a test keeps it so."""

from __future__ import annotations

import json

from prefixsim.scenario.models import Scenario


def schema_text() -> str:
    """The schema as JSON text."""
    schema = Scenario.model_json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "prefixsim scenario", **schema}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
