# SPDX-License-Identifier: LGPL-2.1-or-later
"""The same as pulse.go, for Python: threads, a timer's signals, children."""
import json
import os
import re
import signal
import subprocess
import sys
import threading

wrong, stop = [], threading.Event()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)


def work():
    while not stop.is_set():
        if json.loads(json.dumps({"a": [1, 2.5, "x"]})) != {"a": [1, 2.5, "x"]} or re.sub(r"(\w)\1", "-", "aabb") != "--":
            wrong.append(1)
        if sum(i * i for i in range(1000)) != 332833500:
            wrong.append(2)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
print("ready", flush=True)


def wait():
    sys.stdin.read()
    stop.set()


threading.Thread(target=wait).start()
while not stop.wait(0.05):
    if subprocess.run(["true"]).returncode != 0:
        wrong.append(3)
for thread in threads:
    thread.join()
print(f"rounds, wrong {len(wrong)}", flush=True)
os._exit(7)
