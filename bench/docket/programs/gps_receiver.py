#!/usr/bin/python3
"""A GPS receiver behind a serial server on port 4000, which reports a position each second."""
import datetime
import socket
import time


def sentence(text):
    check = 0
    for character in text:
        check ^= ord(character)
    return f"${text}*{check:02X}\r\n"


listener = socket.create_server(("127.0.0.1", 4000))
reader, _ = listener.accept()
while True:
    now = datetime.datetime.utcnow()
    hour, day = now.strftime("%H%M%S.00"), now.strftime("%d%m%y")
    reader.sendall((sentence(f"GPRMC,{hour},A,5231.2000,N,01324.6000,E,0.2,10.0,{day},,,A") +
                    sentence(f"GPGGA,{hour},5231.2000,N,01324.6000,E,1,08,1.0,40.0,M,45.0,M,,") +
                    sentence("GPGSA,A,3,01,02,03,04,05,06,07,08,,,,,1.5,1.0,1.1")).encode())
    time.sleep(1 - time.time() % 1)
