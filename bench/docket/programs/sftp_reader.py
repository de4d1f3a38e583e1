#!/usr/bin/python3
"""Fetches a file over SFTP with paramiko again and again: sftp_reader.py HOST PORT KEY PATH MODE SECONDS. In mode "read" it opens the
file and reads it; in mode "prefetch" it asks for all parts ahead. Prints the same figures as load.c, with mb_s."""
import json
import sys
import time

import paramiko

host, port, key, path, mode, seconds = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6], float(sys.argv[6])
ssh = paramiko.SSHClient()
ssh.set_missing_host_key_policy(paramiko.AutoAddPolicy())
ssh.connect(host, port, username="root", key_filename=key, look_for_keys=False, allow_agent=False)
sftp = ssh.open_sftp()
begun = time.monotonic()
moved, taken = 0, []
while time.monotonic() - begun < seconds:
    start = time.monotonic()
    with sftp.open(path) as f:
        if mode == "prefetch":
            f.prefetch(f.stat().st_size)
        while time.monotonic() - begun < seconds:
            part = f.read(32768)
            if not part:
                taken.append((time.monotonic() - start) * 1e3)
                break
            moved += len(part)
spent = time.monotonic() - begun
print(json.dumps({"requests": len(taken), "errors": 0, "mb_s": round(moved / spent / 1e6, 3)}))
ssh.close()
