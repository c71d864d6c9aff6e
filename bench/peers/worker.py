"""Runs the works of bench/compare in a peer: `worker.py torch|jax [device]`. The same protocol as bench/works.cpp:

    {"do": "prepare", "work": .., "dtype": .., "folder": F, "variant": V, ..sizes}  reads F/in.*.npy
    {"do": "check"}             runs once, writes F/out.NAME.npy
    {"do": "time", "runs": n}

A peer is a module with `versions()`, `use(device)`, `load(array, dtype)`, `to_numpy(output)`, `wait(outputs)`,
`finish()` (waits for all that is still queued) and WORKS: work -> function of
(sizes, inputs by name, variant) that returns a function without arguments; that one runs the work once and
returns its outputs by name. It may compile ahead: the time of making it is reported as "first".
"""

import importlib
import json
import pathlib
import sys
import time
import traceback

import numpy as np


class Server:
    def __init__(self, peer):
        self.peer = peer

    def prepare(self, request):
        self.folder = pathlib.Path(request["folder"])
        dtype = request["dtype"]
        inputs = {
            path.name[len("in.") : -len(".npy")]: self.peer.load(np.load(path), dtype)
            for path in sorted(self.folder.glob("in.*.npy"))
        }
        start = time.perf_counter()
        self.run = self.peer.WORKS[request["work"]](request, inputs, request.get("variant", ""))
        return {"first": time.perf_counter() - start}

    def check(self, request):
        outputs = self.run()
        for name, value in outputs.items():
            np.save(self.folder / f"out.{name}.npy", self.peer.to_numpy(value))
        return {"outputs": list(outputs)}

    def time(self, request):
        start = time.perf_counter()
        for _ in range(request["runs"]):
            self.peer.wait(self.run())
        self.peer.finish()
        return {"seconds": (time.perf_counter() - start) / request["runs"]}

    def versions(self, request):
        return self.peer.versions()


def main():
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    peer = importlib.import_module(f"{sys.argv[1]}_works")
    peer.use(sys.argv[2] if len(sys.argv) > 2 else "cpu")
    server = Server(peer)
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints must not get between the answers
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except Exception as error:  # one failed work must not end the others
            traceback.print_exc()
            first_line = (str(error).strip().splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {first_line}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
