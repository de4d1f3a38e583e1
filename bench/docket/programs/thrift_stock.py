#!/usr/bin/python3
"""A stock service of Thrift and its clients. thrift_stock.py serve PORT KIND MS: KIND is simple (TSimpleServer: one connection at a time)
or threaded; a call takes MS milliseconds, in which the service waits for its warehouse. thrift_stock.py load PORT CLIENTS SECONDS: each
client opens a connection, asks for three articles, and closes it. The messages are those of `i32 stock(1: i32 article)`."""
import socket
import sys
import time

from thrift.protocol import TBinaryProtocol
from thrift.server import TServer
from thrift.Thrift import TMessageType, TProcessor, TType
from thrift.transport import TSocket, TTransport

from figures import Figures, side_by_side


class Stock(TProcessor):
    def __init__(self, seconds):
        self.seconds = seconds

    def process(self, source, to):
        name, _, number = source.readMessageBegin()
        source.skip(TType.STRUCT)
        source.readMessageEnd()
        time.sleep(self.seconds)
        to.writeMessageBegin(name, TMessageType.REPLY, number)
        to.writeStructBegin("stock_result")
        to.writeFieldBegin("success", TType.I32, 0)
        to.writeI32(7)
        to.writeFieldEnd()
        to.writeFieldStop()
        to.writeStructEnd()
        to.writeMessageEnd()
        to.trans.flush()
        return True


def serve(port, kind, ms):
    server = {"simple": TServer.TSimpleServer, "threaded": TServer.TThreadedServer}[kind]
    server(Stock(float(ms) / 1e3), TSocket.TServerSocket("127.0.0.1", int(port)), TTransport.TBufferedTransportFactory(),
           TBinaryProtocol.TBinaryProtocolFactory()).serve()


def load(port, clients, seconds):
    figures = Figures(float(seconds))

    def work(_):
        while figures.goes_on():
            begun = time.monotonic()
            try:
                transport = TTransport.TBufferedTransport(TSocket.TSocket("127.0.0.1", int(port)))
                transport._TBufferedTransport__trans.setTimeout(10000)
                transport.open()
                protocol = TBinaryProtocol.TBinaryProtocol(transport)
                for number in range(3):
                    protocol.writeMessageBegin("stock", TMessageType.CALL, number)
                    protocol.writeStructBegin("stock_args")
                    protocol.writeFieldBegin("article", TType.I32, 1)
                    protocol.writeI32(number)
                    protocol.writeFieldEnd()
                    protocol.writeFieldStop()
                    protocol.writeStructEnd()
                    protocol.writeMessageEnd()
                    transport.flush()
                    protocol.readMessageBegin()
                    protocol.skip(TType.STRUCT)
                    protocol.readMessageEnd()
                transport.close()
                figures.answered(begun)
            except (OSError, TTransport.TTransportException, socket.timeout):
                figures.failed()
                time.sleep(0.01)
            time.sleep(0.02)

    side_by_side(work, range(int(clients)))
    figures.print()


{"serve": serve, "load": load}[sys.argv[1]](*sys.argv[2:])
