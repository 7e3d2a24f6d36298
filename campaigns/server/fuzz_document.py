"""Requests made by schemathesis from the server's own OpenAPI document, right ones and wrong ones.

Knows the library. Every answer must be one the document names, of the shape it gives, and no failure.
"""

from collections.abc import Callable
from typing import Any, cast

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


def press_operations(
    url: str, count: int, first_seed: int, patience: float, note: Callable[[int], None]
) -> list[str]:
    """So many requests, most of them to operations with a body; what was wrong with the answers."""
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations: list[Any] = [cast(Any, each).ok() for each in document.get_all_operations()]
    with_body = [each for each in operations if each.body]
    assert len(with_body) == 5, "the document has lost its bodies"
    faults: list[str] = []
    for operation in operations:
        modes = MODES if operation.body else MODES[:1]
        share = count // (len(with_body) * len(modes)) if operation.body else 2
        for mode in modes:
            faults += _press(operation, mode, share, first_seed, patience, note)
    return faults


def _press(
    operation: Any, mode: Any, count: int, first_seed: int, patience: float, note: Callable[[int], None]
) -> list[str]:
    faults: list[str] = []
    session = requests.Session()

    @seed(first_seed)
    @settings(
        max_examples=max(1, count),
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def press(case: Any) -> None:
        where = f"{operation.label} {mode.value}: {str(case.body)[:300]}"
        try:
            response = case.call(session=session, timeout=patience)
            note(response.status_code)
            case.validate_response(response, checks=CHECKS)
        except requests.Timeout:
            faults.append(f"no answer within {patience} s to {where}")
        except (Exception, BaseExceptionGroup) as error:  # A group of failures is no Exception.
            faults.append(f"{error!s:.500} at {where}")

    press()
    return faults
