"""The ASGI application: routes, refusals, key and body limit around one ``ServerState``."""

from fastapi import FastAPI
from starlette.middleware import Middleware

from kvasir import __version__
from kvasir.server.errors import exception_handlers
from kvasir.server.middleware import ApiKeyGate, BodyLimit
from kvasir.server.routes import router
from kvasir.server.state import ServerState


def make_app(state: ServerState) -> FastAPI:
    """Bodies are checked by ``parsing``, not by FastAPI, whose schema pages would therefore be empty: they are off."""
    config = state.config
    on_refused = state.metrics.refused
    middleware = [Middleware(BodyLimit, max_bytes=config.max_request_bytes, on_refused=on_refused)]
    if config.api_key is not None:
        middleware.insert(0, Middleware(ApiKeyGate, api_key=config.api_key, on_refused=on_refused))
    app = FastAPI(
        title="Kvasir",
        version=__version__,
        openapi_url=None,
        middleware=middleware,
        exception_handlers=exception_handlers(on_refused),
    )
    app.state.server = state
    app.include_router(router)
    return app
