"""Numbers of the published systems that both peers need."""

# Newton-Schulz coefficients of Muon's steps.
MUON = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]

# Rungs of the ablation ladder: what is left of LaCT. Only W1 learns.
LADDER = {
    "lact-v1": dict(swiglu=True, rates=True, momentum=True, muon=True, norm=True),
    "lact-v2": dict(swiglu=True, rates=True, momentum=True, muon=True),
    "lact-v3": dict(rates=True, momentum=True, muon=True),
    "lact-v4": dict(momentum=True, muon=True),
    "lact-v5": dict(muon=True),
    "lact-v6": dict(),
}
