#!/usr/bin/python3
"""Reads standard input at a rate in bytes per second; 0 is unlimited."""
import os
import sys
import time

rate = float(sys.argv[1])
while data := os.read(0, 4096):
    if rate:
        time.sleep(len(data) / rate)
