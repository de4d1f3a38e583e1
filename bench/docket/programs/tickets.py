"""A FastAPI application whose endpoint is an ordinary function that asks another service and waits for it. Starlette runs such
functions in its pool of threads. DOCKET_THREADS is the size of the pool (0: as installed, 40)."""
import os
import threading

import http.client

import anyio.to_thread
from fastapi import FastAPI, Response

app = FastAPI()
LOCAL = threading.local()


@app.on_event("startup")
async def size():
    if int(os.environ.get("DOCKET_THREADS", "0")):
        anyio.to_thread.current_default_thread_limiter().total_tokens = int(os.environ["DOCKET_THREADS"])


@app.get("/")
def ticket():
    held = getattr(LOCAL, "held", None)
    if held is None:
        held = LOCAL.held = http.client.HTTPConnection("127.0.0.1", 8000)
    held.request("GET", "/")
    return Response(held.getresponse().read(), media_type="text/plain")
