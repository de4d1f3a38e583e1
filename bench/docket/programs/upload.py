#!/usr/bin/python3
"""Uploads over HTTP/2 with curl, one file after the other: upload.py URL MB SECONDS. Prints the same figures as load.c."""
import json
import os
import subprocess
import sys
import time

url, mb, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
name = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"upload-{os.getpid()}")
with open(name, "wb") as f:
    f.write(os.urandom(int(mb * 1e6)))
ms, errors, sent, begun = [], 0, 0, time.monotonic()
try:
    while (left := seconds - (time.monotonic() - begun)) > 0.05:
        form = "%{http_code} %{size_upload} %{time_total}"
        done = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", form, "--max-time", f"{left:.2f}", "--http2-prior-knowledge",
                               "-T", name, url], capture_output=True, text=True, check=False)
        code, size, took = done.stdout.split()
        sent += int(size)
        if code == "200":
            ms.append(float(took) * 1e3)
        elif done.returncode != 28:  # 28: the time was up
            errors += 1
finally:
    os.unlink(name)
took = time.monotonic() - begun
ms.sort()
out = {"requests": len(ms), "errors": errors, "rate": len(ms) / took, "mb_s": sent / took / 1e6}
if ms:
    out |= {"mean_ms": sum(ms) / len(ms), "p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)]}
print(json.dumps(out))
