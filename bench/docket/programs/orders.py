#!/usr/bin/python3
"""orders.py STREAMS: a gRPC service on port 50051 whose calls take 20 ms and that allows so many streams per connection."""
import asyncio
import sys

import grpc


async def get(_request, _context):
    await asyncio.sleep(0.02)
    return b"x" * 200


async def main(streams):
    s = grpc.aio.server(options=[("grpc.max_concurrent_streams", streams)])
    s.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Orders", {"Get": grpc.unary_unary_rpc_method_handler(get)})])
    s.add_insecure_port("127.0.0.1:50051")
    await s.start()
    await s.wait_for_termination()


asyncio.run(main(int(sys.argv[1])))
