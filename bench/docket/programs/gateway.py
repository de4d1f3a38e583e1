#!/usr/bin/python3
"""An HTTP service on port 8080 that asks orders.py with gRPC, on one channel."""
import asyncio

import grpc


async def main():
    get = grpc.aio.insecure_channel("127.0.0.1:50051").unary_unary("/shop.Orders/Get")

    async def client(reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                body = await get(b"7")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(client, "127.0.0.1", 8080) as s:
        await s.serve_forever()


asyncio.run(main())
