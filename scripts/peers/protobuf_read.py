"""Compiles a schema with Google's compiler of protobuf, and prints each message of a stream as JSON, all fields as lists and bytes in
hexadecimal: protobuf_read.py DIRECTORY SCHEMA MESSAGE STREAM."""
import json
import os
import sys
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32 as varint
from grpc_tools import protoc


def compiled(directory, schema):
    with tempfile.TemporaryDirectory() as out:
        file = os.path.join(out, "set")
        if protoc.main(["protoc", f"-I{directory}", f"--descriptor_set_out={file}", schema]):
            sys.exit(f"{schema} does not compile")
        with open(file, "rb") as opened:
            return descriptor_pb2.FileDescriptorSet.FromString(opened.read())


def shown(value):
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return value.encode().hex()
    return value.hex() if isinstance(value, bytes) else fields(value)


def fields(message):
    listed = ((field.name, value) for field, value in message.ListFields())
    return {name: [shown(v) for v in (value if hasattr(value, "append") or hasattr(value, "add") else [value])]
            for name, value in listed}


def main():
    directory, schema, message, stream = sys.argv[1:]
    pool = descriptor_pool.DescriptorPool()
    for file in compiled(directory, schema).file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    with open(stream, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        length, at = varint(data, at)
        print(json.dumps(fields(kind.FromString(data[at:at + length]))))
        at += length


main()
