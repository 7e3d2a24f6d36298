"""The routes of the HTTP server. Each one only calls the module that does the work.

Probes: /livez (does the engine make progress?), /health (can it answer?) and /ready (send requests here?). A
server that is loading its model is alive. Healthy means alive and loaded, which is what clients and load
generators wait for. A server without its draft is ready but degraded: same tokens, slower.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from ssd.config import EngineConfig
from ssd.models.hub import model_title
from ssd.server.answering import Answering
from ssd.server.body import BoundedRoute, check_text
from ssd.server.body_limit import BodyLimit
from ssd.server.chat import ChatJob
from ssd.server.completions import CompletionJob
from ssd.server.errors import ApiError, add_error_handlers
from ssd.server.middleware import AccessLog, ApiKeys, KnownHosts
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest
from ssd.server.serving import Caller, Serving
from ssd.version import __version__

_PAGE = Path(__file__).parent / "static" / "index.html"
_PAGE_HEADERS = {
    # The page is self-contained and talks to this server only.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def build_app(serving: Serving) -> ASGIApp:
    app = FastAPI(openapi_url=None)  # Without a schema FastAPI has no documentation pages either.
    routers = (_openai_routes(serving), _operations_routes(serving))
    for each in routers:
        app.include_router(each)
    add_error_handlers(app)
    config = serving.config
    # Check the host after the body is read: clients that are still sending may miss an earlier answer.
    named = KnownHosts(app, config.host, config.api_keys)
    guarded = ApiKeys(BodyLimit(named, config, _paths_with_bodies(routers)), config.api_keys)
    return AccessLog(guarded, serving.metrics.note_http)


def _paths_with_bodies(routers: Sequence[APIRouter]) -> set[str]:
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return {route.path for route in routes if "POST" in (route.methods or ())}


def _openai_routes(serving: Serving) -> APIRouter:
    routes = APIRouter(prefix="/v1", dependencies=[Depends(check_text)], route_class=BoundedRoute)

    @routes.get("/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model(serving)]})

    # A model's name may be a repository on the hub and then contains a slash.
    @routes.get("/models/{name:path}")
    async def model(name: str) -> Response:
        serving.check_model(name)
        return JSONResponse(_model(serving))

    @routes.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return Answering(serving, partial(CompletionJob.make, serving, body, Caller.of(request)))

    @routes.post("/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        return Answering(serving, partial(ChatJob.make, serving, body, Caller.of(request)))

    return routes


def _model(serving: Serving) -> dict[str, object]:
    return {
        "id": serving.model_name,
        "object": "model",
        "created": serving.started,
        "owned_by": "ssd",
        "max_model_len": serving.llm.max_model_len or None,
        "decoding": _decoding(serving.llm.config),
    }


def _decoding(config: EngineConfig) -> dict[str, str | None]:
    """The mode, and the name of a draft of this server. Callers do not learn addresses of drafts."""
    draft = config.own_draft
    return {"mode": config.mode, "draft": None if draft is None else model_title(draft.model)}


def _operations_routes(serving: Serving) -> APIRouter:
    routes = APIRouter()

    @routes.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @routes.get("/livez")
    async def is_alive() -> Response:
        return _liveness(serving)

    @routes.get("/health")
    async def is_healthy() -> Response:
        return _health(serving)

    @routes.get("/ready")
    async def is_ready() -> Response:
        return _readiness(serving)

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(serving.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/")
    async def page() -> Response:
        if not _PAGE.is_file():
            raise ApiError(404, "this installation has no page")
        # Range requests are ignored: the page is small.
        return HTMLResponse(_PAGE.read_bytes(), headers=_PAGE_HEADERS)

    return routes


def _liveness(serving: Serving) -> JSONResponse:
    waiting = serving.llm.seconds_without_progress
    if serving.llm.state == "dead":
        return JSONResponse({"status": "dead"}, 503)
    is_stuck = waiting > serving.config.stuck_seconds
    progress = {"status": "stuck" if is_stuck else "ok", "seconds_without_progress": round(waiting, 1)}
    return JSONResponse(progress, 503 if is_stuck else 200)


def _health(serving: Serving) -> JSONResponse:
    if serving.llm.state == "loading":
        return JSONResponse({"status": "loading"}, 503)
    return _liveness(serving)


def _readiness(serving: Serving) -> JSONResponse:
    if serving.gate.is_draining:
        return JSONResponse({"status": "draining"}, 503)
    found = _health(serving)
    if found.status_code != 200:
        return found
    beat = serving.llm.heartbeat
    if beat is not None and beat.is_draft_ready is False:
        return JSONResponse({"status": "degraded", "reason": "the draft is away"})
    return JSONResponse({"status": "ready"})
