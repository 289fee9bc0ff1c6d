"""A FastAPI service: orders that are taken once, though browsers, proxies and people send them again.

pip install fastapi uvicorn
oncegate dev --nodes 3 &
uvicorn examples.applications.service:app
curl -X PUT localhost:8000/orders/o-17 -H 'content-type: application/json' -d '{"item": "tea", "count": 2}'
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from oncegate import Client, OperationFailed, Outcome, Session


class Order(BaseModel):
    """What a customer wants."""

    item: str = Field(min_length=1, max_length=100)
    count: int = Field(ge=1, le=1000)


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """One client and one session for the service: requests of all customers travel together."""
    async with Client() as client:
        await client.declare_table("orders")
        async with client.session(renew_lost=True) as session:  # a service outlives a lease: the machine may sleep
            yield {"session": session}


app = FastAPI(lifespan=connected)


def session_of(request: Request) -> Session:
    """Return the session that the service holds."""
    held: Session = request.state.session
    return held


@app.put("/orders/{order_id}", status_code=201)
async def take(order_id: str, order: Order, session: Annotated[Session, Depends(session_of)]) -> dict[str, Any]:
    """Take an order: the same order again is fine, another one under the same id is a conflict."""
    taken = await session.insert("orders", order_id, order.model_dump())
    if not taken.applied and taken.value != order.model_dump():
        raise HTTPException(409, "that id names another order")
    return {"order": order_id, "commit": taken.commit, "new": taken.applied}


@app.get("/orders/{order_id}")
async def show(order_id: str, session: Annotated[Session, Depends(session_of)]) -> dict[str, Any]:
    """Show an order, as new as this service has written and read."""
    row = await session.get("orders", order_id)
    if row is None or not isinstance(row.value, dict):
        raise HTTPException(404, "no such order")
    return {"order": order_id, **row.value}


@app.exception_handler(OperationFailed)
async def failed(request: Request, failure: OperationFailed) -> JSONResponse:
    """Tell the caller what is known: whether it may simply try again, or must ask first."""
    status = 503 if failure.outcome is Outcome.NOT_APPLIED else 504
    told = {"code": failure.code, "outcome": failure.outcome, "request": str(failure.request_id or "")}
    return JSONResponse(told, status)
