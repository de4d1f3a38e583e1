#!/usr/bin/python3
"""An inverter that speaks Modbus TCP, and a gateway that polls its registers.

    modbus.py serve HOST PORT
    modbus.py poll HOST PORT REGISTERS AT_ONCE SECONDS [GAP_MS]   reads all registers, AT_ONCE in one request; prints times of rounds
"""
import sys
import time

from pymodbus.client import ModbusTcpClient
from pymodbus.datastore import ModbusSequentialDataBlock, ModbusServerContext, ModbusSlaveContext
from pymodbus.server import StartTcpServer

from figures import Figures

what, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def poll(registers, at_once, seconds, gap_ms):
    figures = Figures(seconds)
    client = ModbusTcpClient(host, port=port)
    client.connect()
    while figures.goes_on():
        start = time.monotonic()
        for first in range(0, registers, at_once):
            if client.read_holding_registers(first, at_once, slave=1).isError():
                figures.failed()
                break
        else:
            figures.answered(start)
        time.sleep(gap_ms / 1e3)
    figures.print()


if what == "serve":
    block = ModbusSequentialDataBlock(0, [17] * 200)
    StartTcpServer(context=ModbusServerContext(slaves=ModbusSlaveContext(hr=block), single=True), address=(host, port))
else:
    poll(int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]), float((sys.argv[7:] or [50])[0]))
