"""The routes of the service."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from groundup import __version__
from groundup.serve import chat, completions, megatron_api, playground_page
from groundup.serve.openai_requests import ChatFields, CompletionFields
from groundup.serve.refusal import ERRORS, Refusal, field_name, json_response, refused
from groundup.serve.request_guard import RequestGuard
from groundup.serve.service import Service


class _StrictJsonRequest(Request):
    """One whose body is parsed by the letter: without NaN, half characters, or endless nesting."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())


class _StrictJsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictJsonRequest(request.scope, request.receive))

        return handle_strictly


def build_app(service: Service) -> FastAPI:
    """Returns the ASGI application of a service."""
    app = FastAPI(
        title="groundup",
        version=__version__,
        description=f"{service.name}: completions by OpenAI's API and by Megatron-LM's.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        responses=ERRORS,
    )
    app.router.route_class = _StrictJsonRoute
    _add_routes(app, service)
    app.add_exception_handler(Refusal, _say_refusal)
    app.add_exception_handler(RequestValidationError, _say_invalid)
    app.add_exception_handler(HTTPException, _say_http)
    app.add_exception_handler(Exception, _say_failure)
    app.add_middleware(RequestGuard, service=service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    for path in playground_page.PATHS:
        app.add_api_route(path, _page, include_in_schema=False)

    @app.put("/api", openapi_extra=megatron_api.OPENAPI, responses=megatron_api.RESPONSES)
    async def api(http: Request) -> Response:
        """Completes prompts by Megatron-LM's protocol."""
        return await megatron_api.answer(service, http)

    @app.post("/v1/completions")
    async def complete(http: Request, fields: CompletionFields) -> Response:
        """Completes prompts by OpenAI's protocol."""
        return await completions.complete(service, http, fields)

    @app.post("/v1/chat/completions")
    async def converse(http: Request, fields: ChatFields) -> Response:
        """Answers in a conversation by OpenAI's protocol."""
        return await chat.converse(service, http, fields)

    @app.get("/v1/models")
    async def models() -> Response:
        """Lists the model."""
        return json_response({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """Describes the model."""
        service.require_model(name)
        return json_response(_model(service))

    @app.get("/health")
    async def health() -> Response:
        """Says whether requests are taken."""
        if service.draining or service.engine.failed:
            raise Refusal(503, "the service is shutting down")
        return json_response({"status": "ok", "model": service.name})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Reports figures to Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


async def _page(http: Request) -> Response:
    return playground_page.page_file(http.url.path)


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": service.began, "owned_by": "groundup"}


async def _say_refusal(http: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response(http.url.path)


async def _say_invalid(http: Request, error: Exception) -> Response:
    """Names the first field that is wrong; its value is the client's own, and is not sent back."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = field_name(error.body, first["loc"][1:], missing=first["type"] == "missing")
    if first["type"] == "json_invalid":
        return refused(http.url.path, 400, "the body is not JSON")
    return refused(http.url.path, 422, f"{field or 'body'}: {first['msg']}", field=field)


async def _say_http(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 405:
        message = "The method is not allowed for the requested URL."  # as Megatron-LM's server says it
    return refused(http.url.path, error.status_code, message, headers=error.headers)


async def _say_failure(http: Request, error: Exception) -> Response:
    return refused(http.url.path, 500, "an error of the service; its log has more")
