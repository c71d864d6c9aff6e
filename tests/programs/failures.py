"""Checks of a script that goes on after one has failed: `check(what holds, "what")`, and `sys.exit(check.failures > 0)` at its end."""


class Check:
    failures = 0

    def __call__(self, holds, what):
        if not holds:
            self.failures += 1
            print(f"FAILED: {what}")
